"""Streams over a link: who reads slowly slows the writer, who goes away is heard, either side may open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runtimed.wire import frames
from runtimed.wire.streams import Link, LinkLost, Stream, StreamReset, answer


class Ends:
    """Two links whose bytes reach each other in the next turn of the loop, and what each was asked by the other."""

    def __init__(self) -> None:
        self.asked_of_guest: asyncio.Queue[Stream] = asyncio.Queue()
        self.asked_of_host: asyncio.Queue[Stream] = asyncio.Queue()
        self.host = self._link(True, self.asked_of_host, lambda data: self.guest.feed(data))
        self.guest = self._link(False, self.asked_of_guest, lambda data: self.host.feed(data))
        self.host.connection.hello(bytes(16), {})
        self.host.flush()

    def _link(self, host: bool, asked: asyncio.Queue[Stream], pass_on: Callable[[bytes], None]) -> Link:
        loop = asyncio.get_running_loop()
        link = Link(
            frames.Connection(host=host),
            write=lambda data: loop.call_soon(pass_on, data) and None,
            opened=asked.put_nowait,
            greeted=lambda hello: None if host else self._greet(hello),
        )
        return link

    def _greet(self, hello: frames.HelloReceived) -> None:
        self.guest.connection.hello(hello.nonce, {})
        self.guest.flush()


@pytest.fixture
async def ends() -> Ends:
    made = Ends()
    async with asyncio.timeout(5):
        await made.host.ping()
    return made


async def test_a_request_from_either_side_is_answered(ends: Ends) -> None:
    for asking, asked in ((ends.host, ends.asked_of_guest), (ends.guest, ends.asked_of_host)):
        question = asking.open("add", {"a": 1}, last=True)
        stream = await asked.get()
        assert (stream.method, stream.params, await stream.receive()) == ("add", {"a": 1}, None)
        await answer(stream, {"sum": 2})

        assert await question.receive() == {"sum": 2}
        assert await question.receive() is None


async def test_a_long_answer_comes_in_pieces(ends: Ends) -> None:
    question = ends.host.open("list", {}, last=True)
    stream = await ends.asked_of_guest.get()
    answering = asyncio.ensure_future(answer(stream, {"names": ["x" * 1000] * 500}))

    found = b""
    while isinstance(item := await question.receive(), bytes):
        found += item
    await answering

    assert frames.decode_json(found) == {"names": ["x" * 1000] * 500}


@pytest.mark.parametrize("from_host", [True, False])
async def test_a_reader_that_stops_stops_the_writer(ends: Ends, from_host: bool) -> None:
    opener, asked = (ends.host, ends.asked_of_guest) if from_host else (ends.guest, ends.asked_of_host)
    window = frames.HOST_WINDOW if from_host else frames.GUEST_WINDOW
    writer = opener.open("write", {})
    reader = await asked.get()
    data = bytes(range(256)) * 4096
    sending = asyncio.ensure_future(writer.send(data, last=True))
    for _ in range(50):
        await asyncio.sleep(0)

    assert not sending.done()
    assert opener.connection.credit(writer.id) == 0
    assert sum(size for _, size in reader._items) == window

    found = b""
    while isinstance(item := await reader.receive(), bytes):
        found += item
    await sending
    assert found == data


async def test_a_whole_frame_stays_whole_when_credit_is_short(ends: Ends) -> None:
    writer = ends.host.open("write", {})
    reader = await ends.asked_of_guest.get()

    async def send() -> None:
        for size in (100_000, 100_000, 100_000, 5):
            await writer.send_whole(bytes(size))
        writer.end()

    sending = asyncio.ensure_future(send())
    sizes = []
    while isinstance(item := await reader.receive(), bytes):
        sizes.append(len(item))
    await sending

    assert sizes == [100_000, 100_000, 100_000, 5]


async def test_a_reset_wakes_both_directions_with_its_reason(ends: Ends) -> None:
    question = ends.host.open("m", {})
    stream = await ends.asked_of_guest.get()
    heard: list[Exception] = []
    question.on_failure(heard.append)
    reading = asyncio.ensure_future(question.receive())
    await asyncio.sleep(0)

    stream.reset("file_not_found", "no such file", {"path": "/x"})

    with pytest.raises(StreamReset, match="no such file") as reset:
        await reading
    assert (reset.value.code, reset.value.details) == ("file_not_found", {"path": "/x"})
    assert heard == [reset.value]
    with pytest.raises(StreamReset):
        await question.send(b"x")


async def test_what_came_before_a_reset_is_still_read(ends: Ends) -> None:
    question = ends.host.open("m", {})
    stream = await ends.asked_of_guest.get()
    await stream.send(b"first")
    stream.reset("c", "m")
    await ends.host.ping()

    assert await question.receive() == b"first"
    with pytest.raises(StreamReset):
        await question.receive()


async def test_open_and_reset_in_one_read_are_both_heard(ends: Ends) -> None:
    ends.host.open("m", {}, last=True).reset("cancelled", "never mind")
    stream = await ends.asked_of_guest.get()
    heard: list[Exception] = []
    stream.on_failure(heard.append)
    await ends.host.ping()

    assert [type(why) for why in heard] == [StreamReset]


async def test_a_lost_link_fails_every_waiter(ends: Ends) -> None:
    question = ends.host.open("m", {})
    full = ends.host.open("m", {})

    async def fill() -> None:
        await full.send(bytes(frames.HOST_WINDOW + 1))

    waiting: list[Awaitable[object]] = [
        asyncio.ensure_future(w) for w in (question.receive(), fill(), ends.host.ping())
    ]
    await asyncio.sleep(0)
    ends.host.fail("gone")

    for waiter in waiting:
        with pytest.raises(LinkLost, match="gone"):
            await waiter


async def test_senders_wait_while_the_transport_is_full(ends: Ends) -> None:
    question = ends.host.open("m", {})
    ends.host.transport_full()
    sending = asyncio.ensure_future(question.send(b"x"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not sending.done()

    ends.host.transport_ready()
    await sending


async def test_streams_that_are_over_are_forgotten(ends: Ends) -> None:
    for _ in range(600):
        question = ends.guest.open("m", {}, last=True)
        await answer(await ends.asked_of_host.get(), {})
        await question.receive()

    assert (ends.guest._streams, ends.host._streams) == ({}, {})
