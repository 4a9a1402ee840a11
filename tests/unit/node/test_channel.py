"""The host's end of a channel against scripted guests: deaf, late, stale, hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtimed.core import errors
from runtimed.core.commands import Command
from runtimed.core.ids import ProcessId
from runtimed.node import channel as channels
from runtimed.node.channel import Channel, ChannelClosed
from runtimed.node.guest import GuestClient, processes
from runtimed.wire import frames

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def guest_that(talk: Talk, folder: Path) -> AsyncIterator[Path]:
    """A socket behind which `talk` plays the guest, once for each connection."""
    server = await asyncio.start_unix_server(talk, folder / "a.sock")
    try:
        yield folder / "a.sock"
    finally:
        server.close()


async def next_nonce(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(frames.HEADER.size)
    payload = await reader.readexactly(frames.HEADER.unpack(header)[4])
    assert payload.startswith(frames.MAGIC)
    return payload[16:32]


def hello(nonce: bytes) -> bytes:
    payload = frames.MAGIC + nonce + b'{"version":1}'
    return frames.HEADER.pack(frames.HELLO, 0, 0, 0, len(payload)) + payload


def saying(*said: bytes) -> Talk:
    """A guest that greets, says this, and reads on."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)) + b"".join(said))
        while await reader.read(65536):
            pass
        writer.close()

    return talk


def saying_when_asked(said: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)))
        await reader.readexactly(frames.HEADER.size)
        writer.write(said)
        await reader.read()
        writer.close()

    return talk


async def test_a_greeting_that_is_lost_is_repeated(tmp_path: Path) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await next_nonce(reader)
        assert await next_nonce(reader) == first
        writer.write(b"stale bytes" + hello(b"somebody else..!") + hello(first))
        await reader.read()
        writer.close()

    async with guest_that(late, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        assert channel.info == {"version": 1}
        await channel.close()


async def test_a_guest_that_does_not_answer_is_hung_up_on_and_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "RECONNECT_AFTER_S", 0.1)
    calls = 0

    async def deaf_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            writer.write(hello(await next_nonce(reader)))
        await reader.read()
        writer.close()

    async with guest_that(deaf_twice, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        assert calls == 3
        await channel.close()


async def test_a_socket_with_a_very_long_path_is_reached(tmp_path: Path) -> None:
    async with guest_that(saying(), tmp_path) as socket:
        folder = tmp_path / ("x" * 100) / ("y" * 100)
        folder.mkdir(parents=True)
        (folder / "agent.sock").symlink_to(socket)

        channel = await Channel.open(folder / "agent.sock", within_s=10)

        await channel.close()


HOSTILE = {
    "rubbish": b"\xff" * 100,
    "streams backwards": b"".join(
        frames.HEADER.pack(frames.OPEN, 0, 0, n, 26) + b'{"method":"m","params":{}}' for n in (4, 2)
    ),
    "data on nothing": frames.HEADER.pack(frames.DATA, 0, 0, 1, 1) + b"x",
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_guest_loses_its_channel_with_the_reason(tmp_path: Path, kind: str) -> None:
    async with guest_that(saying_when_asked(HOSTILE[kind]), tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)
        with pytest.raises((ChannelClosed, errors.GuestUnresponsive)):
            await channel.ping(within_s=5)
        async with asyncio.timeout(5):
            closing = await channel.closed

        assert closing.hostile
        assert "broke the protocol" in closing.reason
        with pytest.raises(ChannelClosed, match="broke the protocol"):
            await channel.request("ping", {})
        with pytest.raises(ChannelClosed):
            await channel.ping()


async def test_a_guest_that_is_hostile_from_the_start_is_not_called_again(tmp_path: Path) -> None:
    async with guest_that(saying(HOSTILE["rubbish"]), tmp_path) as socket:
        with pytest.raises(errors.GuestUnresponsive, match="broke the protocol"):
            await Channel.open(socket, within_s=10)


async def test_a_guest_that_opens_streams_is_refused_politely(tmp_path: Path) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def opens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = frames.encode_json({"method": "dial", "params": {}})
        writer.write(hello(await next_nonce(reader)) + frames.HEADER.pack(frames.OPEN, 0, 0, 2, len(body)) + body)
        header = await reader.readexactly(frames.HEADER.size)
        heard.set_result(await reader.readexactly(frames.HEADER.unpack(header)[4]))
        await reader.read()
        writer.close()

    async with guest_that(opens, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)
        async with asyncio.timeout(5):
            said = frames.decode_json(await heard)

        assert isinstance(said, dict)
        assert said["code"] == "unavailable"
        assert not channel.closed.done()
        await channel.close()


async def test_a_guest_that_asks_without_reading_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "UNSENT_MAX_BYTES", 200_000)
    pings = b"".join(frames.HEADER.pack(frames.PING, 0, 0, 0, 64) + bytes(64) for _ in range(1000))

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)))
        try:
            while True:
                writer.write(pings)
                await writer.drain()
        except ConnectionError:
            writer.close()

    async with guest_that(floods, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)
        async with asyncio.timeout(20):
            closing = await channel.closed

        assert closing.hostile
        assert "without reading" in closing.reason


async def test_an_answer_of_the_wrong_shape_ends_the_channel_and_is_no_crash(tmp_path: Path) -> None:
    body = frames.encode_json({"processes": [{"id": 7}]})
    said = frames.HEADER.pack(frames.MESSAGE, frames.LAST, 0, 1, len(body)) + body

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)))
        await reader.readexactly(frames.HEADER.size)
        writer.write(said)
        await reader.read()
        writer.close()

    async with guest_that(answers, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        with pytest.raises(errors.Interrupted, match="broke the protocol"):
            await GuestClient(channel).processes.processes()
        assert channel.closed.result().hostile


async def test_a_code_that_no_guest_may_use_is_a_fault_of_ours(tmp_path: Path) -> None:
    body = frames.encode_json({"code": "unauthorized", "message": "<b>", "details": {}})

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)))
        await reader.readexactly(frames.HEADER.size)
        writer.write(frames.HEADER.pack(frames.RESET, 0, 0, 1, len(body)) + body)
        await reader.read()
        writer.close()

    async with guest_that(answers, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        with pytest.raises(errors.ServiceError, match="agent failed"):
            await channel.request("anything", {})
        await channel.close()


async def test_a_guest_that_never_answers_is_unresponsive_and_the_channel_lives(tmp_path: Path) -> None:
    async with guest_that(saying(), tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        with pytest.raises(errors.GuestUnresponsive):
            await channel.request("anything", {}, within_s=0.05)
        with pytest.raises(errors.GuestUnresponsive):
            await channel.ping(within_s=0.05)
        assert not channel.closed.done()
        await channel.close()


async def test_a_machine_that_hangs_up_during_a_command_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(await next_nonce(reader)))
        await reader.readexactly(frames.HEADER.size)
        writer.close()

    async with guest_that(hangs_up, tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        with pytest.raises(errors.OutcomeUnknown) as unknown:
            await GuestClient(channel).processes.capture(ProcessId("p"), Command(argv=("true",)), keep_bytes=1)
        assert unknown.value.details == {"processId": "p"}
        assert not (await channel.closed).hostile


async def test_a_command_that_a_pause_cuts_off_is_interrupted_and_can_be_named(tmp_path: Path) -> None:
    async with guest_that(saying(), tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)
        capture = GuestClient(channel).processes.capture(ProcessId("p"), Command(argv=("true",)), keep_bytes=1)
        waiting = asyncio.get_running_loop().create_task(capture)
        await asyncio.sleep(0)

        await channel.close("the sandbox was paused", for_a_pause=True)

        with pytest.raises(errors.Interrupted) as cut:
            await waiting
        assert cut.value.details == {"processId": "p", "cursor": 0}


async def test_a_guest_that_never_tells_the_end_of_a_command_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LATE_S", 0.05)
    async with guest_that(saying(), tmp_path) as socket:
        channel = await Channel.open(socket, within_s=10)

        with pytest.raises(errors.OutcomeUnknown, match="past its deadline"):
            command = Command(argv=("true",), timeout_ms=10)
            await GuestClient(channel).processes.capture(ProcessId("p"), command, keep_bytes=1)
        await channel.close()


async def test_an_answer_that_comes_with_the_last_timeout_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "RECONNECT_AFTER_S", 0.0)
    channel = Channel()
    channel._answered.set()

    assert await channel._greet()
