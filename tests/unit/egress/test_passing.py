"""What passes through the gateway is the same at both ends; limits and an upstream proxy hold."""

from __future__ import annotations

import asyncio

import pytest

from runtimed.egress.bound import EgressLimits
from runtimed.egress.sockets import Network
from runtimed.wire.streams import StreamReset

from .conftest import SANDBOX, House, read_all, read_until
from .test_gateway import Recorder, resolve

ODD = (
    b"DELETE /a%2Fb/../c;d?x=%20&y=a+b&&z HTTP/1.1\r\nHost: api.test\r\nConnection: keep-alive, X-Hop\r\n"
    b"Keep-Alive: timeout=5\r\nX-Hop: 1\r\nTE: trailers\r\nX-UPPER: V\r\nContent-Length: 4\r\n\r\nbody"
)
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def to_api(house: House, handler):
    """A stream to api.test the way a program has one that knows no proxy."""
    port = await house.serve(handler)
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind(allow=["api.test"])
    return house.tcp((await resolve(house, "api.test")).answer[0][0].address, port)


async def test_nw_21_a_request_arrives_as_it_was_sent(house: House) -> None:
    got = bytearray()

    async def server(reader, writer):
        got.extend(await reader.readexactly(len(ODD)))
        writer.write(b"HTTP/1.1 200 Fine\r\nX-Odd-CASE: v\r\nContent-Length: 2\r\n\r\nok")

    stream = await to_api(house, server)
    await stream.send(ODD)
    answer = await read_until(stream, b"ok")

    assert bytes(got) == ODD and answer == b"HTTP/1.1 200 Fine\r\nX-Odd-CASE: v\r\nContent-Length: 2\r\n\r\nok"


async def test_nw_21_frames_of_a_websocket_are_the_same_at_both_ends(house: House) -> None:
    fragments = b"\x02\x83abcd123" + b"\x00\x81abcd4" + b"\x80\x80abcd" + b"\x88\x82abcd\x62\x8a"
    back = b"\x02\x03\x00\xff\x80" + b"\x80\x01z" + b"\x88\x02\x0f\xa1"
    got = bytearray()

    async def server(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        got.extend(await reader.readexactly(len(fragments)))
        writer.write(back)
        writer.close()

    stream = await to_api(house, server)
    await stream.send(UPGRADE)
    await read_until(stream, b"\r\n\r\n")
    await stream.send(fragments, last=True)

    assert await read_all(stream) == back and bytes(got) == fragments


async def test_nw_21_a_refused_upgrade_is_an_answer_like_any_other(house: House) -> None:
    stream = await to_api(house, Recorder(b"HTTP/1.1 426 No\r\nContent-Length: 2\r\n\r\nno"))
    for _ in range(2):
        await stream.send(UPGRADE)
        assert b"426" in await read_until(stream, b"\r\n\r\nno")


async def test_what_goes_out_counts_while_the_connection_is_open(house: House) -> None:
    stream = await to_api(house, Recorder(b"HTTP/1.1 200 Fine\r\nContent-Length: 3\r\n\r\nyes"))
    before = house.gateway.traffic(SANDBOX).sent
    head = b"POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 50000\r\n\r\n"
    await stream.send(head + b"x" * 49_996 + b"\r\n\r\n")
    await read_until(stream, b"yes")

    assert house.told("closed") == []
    assert house.gateway.traffic(SANDBOX).sent - before == len(head) + 50_000
    house.gateway.unbind(SANDBOX)
    assert house.gateway.traffic(SANDBOX).sent == 0


async def test_bytes_are_limited_in_the_middle_of_a_connection(house: House) -> None:
    async def endless(reader, writer):
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    port = await house.serve(endless)
    house.bind()
    house.gateway._bound[SANDBOX].limits = EgressLimits(bytes_total=300_000)
    stream, got = house.tcp("127.0.0.1", port), 0
    with pytest.raises(StreamReset, match="more than 300000 bytes"):
        async with asyncio.timeout(10):
            while (item := await stream.receive()) is not None:
                got += len(item)

    assert got <= 300_000
    with pytest.raises(StreamReset, match="more than 300000 bytes"):
        await house.tcp("127.0.0.1", port).receive()


async def test_nw_27_every_connection_goes_through_the_upstream_proxy(house: House) -> None:
    server, asked = Recorder(), []
    port = await house.serve(server)

    async def proxy(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        there, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await there.readuntil(b"ok"))

    house.sockets._network = Network(upstream_proxy=("127.0.0.1", await house.serve(proxy)))
    house.bind()
    stream = house.proxy()
    await stream.send(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await read_until(stream, b"ok")

    assert asked == [f"CONNECT 127.0.0.1:{port} HTTP/1.1".encode()]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 No\r\n\r\n", b"", None], ids=["refuses", "hangs up", "is not there"])
async def test_nw_27_a_failing_upstream_proxy_is_never_gone_around(house: House, answer: bytes | None) -> None:
    async def proxy(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer or b"")
        writer.close()

    server = Recorder()
    port, at = await house.serve(server), await house.serve(proxy)
    house.sockets._network = Network(upstream_proxy=("127.0.0.1", 1 if answer is None else at))
    house.bind()
    stream = house.proxy()
    await stream.send(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    assert b"502" in (said := await read_all(stream)) and b"upstream proxy" in said
    assert server.connections == 0
