"""What a hostile guest sends costs that guest: no request goes by unjudged, memory is bounded, others are served."""

from __future__ import annotations

import asyncio
import base64
import gc
import tracemalloc

import dns.message
import pytest

from runtimed.core.egress import EgressBinding
from runtimed.core.ids import SandboxId
from runtimed.core.network import OPEN
from runtimed.egress import connection, exchanges
from runtimed.egress.bound import HELD_MAX_BYTES, QUESTIONS_AT_ONCE
from runtimed.wire.streams import StreamReset

from .conftest import ACCOUNT, House, joined, read_all, read_until
from .test_gateway import Guest, Recorder, intercepted, resolve, server_side
from .test_passing import to_api
from .test_presigned import KEY, MADE, presigned
from .test_tls import hello_of

OTHER = SandboxId("6c3f7a52-2b8f-4c7e-9a55-0d6c4a6f2b33")


# A request that nobody judged.


@pytest.mark.parametrize(
    "pieces",
    [
        [b"FOO / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"get / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b" GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"PURGE\t/ HTTP/1.1\nHost: other.test\n\n"],
        [b"\r\n", b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"F", b"OO / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"FOO / HTTP/1.1", b"\r\nHost: other.test\r\n\r\n"],
        [b"\r\n" * 40_000, b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"],
        [b"FOO /" + b"x" * 100_000, b" HTTP/1.1\r\nHost: other.test\r\n\r\n"],
    ],
    ids=lambda pieces: repr(pieces[0][:24]),
)
async def test_a_request_that_does_not_begin_as_usual_is_judged_or_does_not_arrive(house: House, pieces) -> None:
    server = Recorder()
    stream = await to_api(house, server)
    for piece in pieces:
        await stream.send(piece)
        await asyncio.sleep(0)
    await read_all(stream)

    assert b"other.test" not in server.got
    assert any(not it.allowed for it in house.told())


async def test_an_unusual_method_to_the_host_that_was_asked_for_passes(house: House) -> None:
    server = Recorder()
    stream = await to_api(house, server)
    await stream.send(b"PURGE /x HTTP/1.1\r\nHost: api.test\r\n\r\n")

    assert await read_until(stream, b"ok") == server.answer and server.got.startswith(b"PURGE /x ")


async def test_a_program_whose_protocol_has_no_lines_does_not_wait(house: House) -> None:
    stream = await to_api(house, Recorder(b"echo"))
    for piece in (b"hello", b" again", b"\r\n", b"more"):
        await stream.send(piece)
        assert await read_until(stream, b"echo") == b"echo"


@pytest.mark.parametrize("before", [b"", b"\x15\3\1\0\2\1\0", b"\x14\3\3\0\1\1"], ids=["hello", "alert", "ciphers"])
@pytest.mark.parametrize("version", [b"\3\1", b"\3\x7f", b"\0\1", b"\x0f\xff"])
async def test_no_odd_start_of_tls_takes_another_name_along(house: House, before: bytes, version: bytes) -> None:
    server = Recorder()
    stream = await to_api(house, server)
    hello = hello_of("other.test")
    await stream.send(before + hello[:1] + version + hello[3:])
    await read_all(stream)

    assert server.got == b"" and any(not it.allowed for it in house.told())


async def test_an_upgrade_to_what_has_requests_of_its_own_is_not_offered(house: House) -> None:
    for offered in ("h2c", "websocket, h2c", "HTTP/2.0", "TLS/1.3", "h2c;x"):
        server = Recorder()
        stream = await to_api(house, server)
        await stream.send(f"GET / HTTP/1.1\r\nHost: api.test\r\nUpgrade: {offered}\r\n\r\n".encode())
        await read_until(stream, b"ok")

        assert b"Upgrade" not in server.got


async def test_a_switch_in_the_middle_of_a_request_is_refused(house: House) -> None:
    async def server(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
        got.extend(await reader.read(65536))

    got = bytearray()
    stream = await to_api(house, server)
    await stream.send(b"POST / HTTP/1.1\r\nHost: api.test\r\nUpgrade: x\r\nContent-Length: 9\r\n\r\n")
    await stream.receive()
    await stream.send(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
    await read_all(stream)

    assert b"other.test" not in got


async def test_bytes_that_come_unasked_are_not_the_next_answer(house: House) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    server = Recorder(answer + answer.replace(b"ok", b"xx"))
    stream = await to_api(house, server)
    for _ in range(2):
        await stream.send(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert await read_until(stream, b"\r\n\r\nok") == answer

    assert server.connections == 2


# What is held, and for how long.


async def test_headers_that_do_not_end_are_a_408_and_idle_connections_are_not(house: House, monkeypatch) -> None:
    real = exchanges.Manner
    monkeypatch.setattr(connection, "Manner", lambda **manner: real(**manner, head_s=0.2))
    server = Recorder()
    house.sockets.hosts["api.test"] = "127.0.0.1"
    port = await house.serve(server)
    house.bind()
    slow, idle = house.proxy(), house.proxy()
    await slow.send(b"GET http://api.test/ HTTP/1.1\r\nHost: a")

    assert b"408" in (said := await read_all(slow)) and b"did not end in 0.2 s" in said
    await idle.send(f"GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test\r\n\r\n".encode())
    assert await read_until(idle, b"ok") == server.answer


@pytest.mark.parametrize(
    "line", [b"X: y\r\n", b"X: " + b"y" * 8000 + b"\r\n", b"y" * 8000], ids=["many", "long", "one"]
)
async def test_headers_without_end_are_a_400_before_much_is_held(house: House, line: bytes) -> None:
    house.bind()
    stream = house.proxy()
    sent = await sends_until_refused(stream, b"GET http://a.test/ HTTP/1.1\r\n", line)

    assert b"400" in await read_all(stream)
    assert sent < 512 * 1024


async def sends_until_refused(stream, first: bytes, line: bytes) -> int:
    """How much could be sent."""
    sent = len(first)
    try:
        await stream.send(first)
        while sent < 4 << 20 and not stream._items:
            await stream.send(line * max(1, 8000 // len(line)))
            sent += 8000
    except StreamReset:
        pass
    return sent


async def test_pieces_of_one_byte_that_nobody_reads_do_not_cost_a_hundred_each(house: House) -> None:
    async def deaf(reader, writer):
        writer.write(b"hi")
        await asyncio.sleep(60)

    stream = await to_api(house, deaf)
    await read_until(stream, b"hi")
    await stream.send(b"\0" * 65536)
    hostside = house.opened[-1]
    hostside._items.clear()
    hostside.receive = None  # Nobody reads any more.
    tracemalloc.start()
    try:
        for _ in range(50_000):
            hostside.put(b"x", 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 200_000
    with pytest.raises(StreamReset, match="carries bytes"):
        hostside.put({}, 2)
        raise hostside._failure


async def test_bodies_that_wait_to_be_signed_are_bounded_in_all(house: House) -> None:
    server = Recorder()
    port, _ = await intercepted(house, server)
    bound = house.gateway._bound[next(iter(house.gateway._bound))]
    bound.held_bytes = HELD_MAX_BYTES - 10
    auth = f"AWS4-HMAC-SHA256 Credential=A/20261129/x/sqs/aws4_request, SignedHeaders=host, Signature={'0' * 64}"
    head = f"POST / HTTP/1.1\r\nHost: api.test\r\nAuthorization: {auth}\r\nContent-Length: "
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        assert b"429" in await guest.ask(head + "11\r\n\r\n" + "x" * 11, until=b"send fewer")
    assert bound.held_bytes == HELD_MAX_BYTES - 10 and server.got == b""

    bound.held_bytes = 0
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        assert await guest.ask(head + "11\r\n\r\n" + "x" * 7 + "\r\n\r\n") == server.answer
    assert bound.held_bytes == 0


async def test_ten_thousand_connections_are_refused_clearly_and_another_sandbox_is_served(house: House) -> None:
    port = await house.serve(Recorder())
    house.bind()
    house.gateway.bind(OTHER, EgressBinding(account_id=ACCOUNT, rules=OPEN))
    other = joined(lambda stream: house.gateway.opened(OTHER, stream))
    await asyncio.sleep(0)
    held = [house.proxy() for _ in range(20)]
    while len(bound_of(house).live) < 20:
        await asyncio.sleep(0)
    reasons, refused, before = set(), 0, 0
    tracemalloc.start()
    try:
        while refused < 10_000:
            streams = [house.guest.open("egress.open", {"via": "proxy", "x": "y" * 2000}) for _ in range(400)]
            for stream in streams:
                try:
                    async with asyncio.timeout(10):
                        await stream.receive()
                except StreamReset as why:
                    reasons.add(why.message)
                    refused += 1
            gc.collect()
            before = before or tracemalloc.get_traced_memory()[0]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(bound_of(house).live) == len(held) == 20 and reasons == {"more than 20 connections at once"}
    assert after - before < 2 << 20
    assert len(house.told("limit")) < 60, "a record a second and reason, not one a connection"
    stream = other.open("egress.open", {"via": "proxy"})
    await stream.send(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert b"ok" in await read_until(stream, b"ok")


def bound_of(house: House):
    return next(iter(house.gateway._bound.values()))


async def test_a_flood_of_questions_is_cut_down_and_another_sandbox_is_answered(house: House) -> None:
    house.bind(allow=["api.test"])
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.gateway.bind(OTHER, EgressBinding(account_id=ACCOUNT, rules=OPEN))
    other = joined(lambda stream: house.gateway.opened(OTHER, stream))
    await asyncio.sleep(0)
    query = base64.b64encode(dns.message.make_query("other.test", "A").to_wire()).decode()
    answered = refused = 0
    for _ in range(100):
        streams = [house.guest.open("egress.dns", {"query": query}, last=True) for _ in range(40)]
        for stream in streams:
            try:
                async with asyncio.timeout(10):
                    answered += isinstance(await stream.receive(), dict)
            except StreamReset as why:
                refused += 1
                assert "DNS questions" in why.message

    assert answered >= QUESTIONS_AT_ONCE and refused > 1000 and answered + refused == 4000
    assert len(house.told("limit")) < 60
    stream = other.open("egress.dns", {"query": query.replace("other", "api")}, last=True)
    assert isinstance(await stream.receive(), dict)
    async with asyncio.timeout(30):
        assert (await _later(house)).answer


async def _later(house: House):
    """The flooded sandbox's own next question, once its rate has recovered."""
    while True:
        try:
            return await resolve(house, "api.test")
        except StreamReset:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("params", [{}, {"host": 5, "port": "x"}, {"host": "a", "port": 2**40}, {"via": ["proxy"]}])
async def test_what_asks_for_nothing_is_reset(house: House, params: dict) -> None:
    house.bind()
    with pytest.raises(StreamReset):
        async with asyncio.timeout(10):
            await house.guest.open("egress.open", params).receive()


# A presigned URL, all the way.


async def test_a_presigned_url_arrives_signed_by_the_real_key_and_its_signature_does_not_come_back(house) -> None:
    url, _, marked, real, *_ = MADE["S3, with an odd key"]
    asked: list[bytes] = []

    async def s3(reader, writer):
        while True:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
            body = b"ok" if len(asked) == 1 else asked[-1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    port = await house.serve(s3, tls=server_side(house, "api.test"))
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    mark = house.secret(f"api.test:{port}", KEY, name="0123456789abcdefghij")
    text = f"GET {presigned(*url)}{marked} HTTP/1.1\r\nHost: api.test\r\n\r\n"
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        assert mark in "rtsec_0123456789abcdefghij"
        assert (await guest.ask(text)).endswith(b"ok")
        echoed = await guest.ask(text, until=b"never")

    assert [line.split(b" ")[1].decode() for line in asked] == [presigned(*url) + real] * 2
    assert real.encode() not in echoed and house.told("secret")
