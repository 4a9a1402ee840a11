"""Carries the connections of the machine's programs to the host, each on a stream of its own, and judges nothing.

    10800  programs that know a proxy    \\
    10802  all other TCP, by redirect     > egress.open: bytes both ways until both ends are done
    10853  DNS over UDP and TCP           > egress.dns: one question, one answer
"""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
from typing import Any, cast

from runtime_guest import network
from runtime_guest.identity import log
from runtime_guest.streams import Link, LinkLost, Stream, StreamReset

_SO_ORIGINAL_DST = 80
_QUEUED_MAX = 256 * 1024
"""Bytes of one connection that wait for the host before its program must."""
_UNREAD_MAX = 1 << 20
"""Bytes from the host that wait for a program, so that neither side of the relay stands still for the other."""
_WIDE_AFTER = 512 * 1024
_DNS_AT_ONCE = 48
_DNS_MAX_BYTES = 4096
_BACKLOG = 1024
_NO_LINGER = struct.pack("ii", 1, 0)
_Gone = (StreamReset, LinkLost)


class Relay:
    """The three listeners. They live as long as the agent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dns_now = 0
        self._servers: list[Any] = []

    async def start(self) -> None:
        """Listen. A port that is taken is a line on the console: what goes through it stays without a way out."""
        for port, made in (
            (network.PROXY_PORT, lambda: _Local(self, transparent=False)),
            (network.TRANSPARENT_PORT, lambda: _Local(self, transparent=True)),
        ):
            try:
                self._servers.append(await self._loop.create_server(made, "127.0.0.1", port, backlog=_BACKLOG))
            except OSError as failure:
                log(f"relay: port {port}: {failure}")
        try:
            self._servers.append(await asyncio.start_server(self._dns_tcp, "127.0.0.1", network.DNS_PORT))
            where = ("127.0.0.1", network.DNS_PORT)
            self._servers.append(await self._loop.create_datagram_endpoint(lambda: _Questions(self), local_addr=where))
        except OSError as failure:
            log(f"relay: port {network.DNS_PORT}: {failure}")

    def spawn(self, work: Any) -> None:  # noqa: ANN401 - any coroutine
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def open(self, params: dict[str, Any]) -> Stream | None:
        """A stream to the host; None when there are too many."""
        try:
            return self._link.open("egress.open", params)
        except (OverflowError, ValueError):
            return None

    async def ask(self, question: bytes) -> bytes:
        """The host's answer to a DNS question, or one that says at once that there is none."""
        if self._dns_now >= _DNS_AT_ONCE:
            return _no_answer(question)
        self._dns_now += 1
        try:
            query = base64.b64encode(question).decode("ascii")
            stream = self._link.open("egress.dns", {"query": query}, last=True)
            item = await stream.receive()
            return base64.b64decode(item["answer"]) if isinstance(item, dict) else _no_answer(question)
        except (*_Gone, OverflowError, ValueError, KeyError):
            return _no_answer(question)
        finally:
            self._dns_now -= 1

    async def _dns_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                if size > _DNS_MAX_BYTES:
                    break
                answer = await self.ask(await reader.readexactly(size))
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


class _Local(asyncio.Protocol):
    """One connection of a program."""

    def __init__(self, relay: Relay, *, transparent: bool) -> None:
        self._relay, self._transparent = relay, transparent
        self._queue = bytearray()
        self._ended = self._lost = self._paused = False
        self._sides = 2
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = cast(Any, transport)
        self._transport.set_write_buffer_limits(high=_UNREAD_MAX)
        params: dict[str, Any] | None = {"via": "proxy"}
        if self._transparent:
            params = _wanted(transport.get_extra_info("socket"))
        stream = self._relay.open(params) if params is not None else None
        if stream is None:
            self._reset()
            return
        self._stream = stream
        self._relay.spawn(self._up(stream))
        self._relay.spawn(self._down(stream))

    def data_received(self, data: bytes) -> None:
        self._queue += data
        self._changed.set()
        if len(self._queue) > _QUEUED_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._changed.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._ended = True
        self._changed.set()
        self._room.set()
        if exc is not None and hasattr(self, "_stream"):
            self._stream.reset("cancelled", "the program hung up")

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def _up(self, stream: Stream) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._queue:
                    data, self._queue = bytes(self._queue), bytearray()
                    if self._paused:
                        self._paused = False
                        self._transport.resume_reading()
                    await stream.send(data)
                if self._ended:
                    stream.end()
                    self._side_done()
                    return
        except _Gone:
            self._reset()

    async def _down(self, stream: Stream) -> None:
        taken, wide = 0, False
        try:
            while True:
                item = await stream.receive()
                if item is None:
                    break
                if not isinstance(item, bytes) or self._lost:
                    raise LinkLost("the program is gone")
                self._transport.write(item)
                taken += len(item)
                if taken > _WIDE_AFTER and not wide:
                    wide = True
                    stream.widen()
                await self._room.wait()
            if not self._lost:
                self._transport.write_eof()
            self._side_done()
        except _Gone:
            stream.reset("cancelled", "the program hung up")
            self._reset()
        except OSError:
            self._reset()

    def _side_done(self) -> None:
        self._sides -= 1
        if not self._sides:
            self._transport.close()

    def _reset(self) -> None:
        """The program sees its connection reset, at once."""
        if self._lost:
            return
        try:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        except OSError:
            pass
        self._transport.abort()


class _Questions(asyncio.DatagramProtocol):
    """DNS over UDP."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = cast(Any, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ANN401 - an address
        if 12 <= len(data) <= _DNS_MAX_BYTES:
            self._relay.spawn(self._answer(data, addr))

    async def _answer(self, data: bytes, addr: Any) -> None:  # noqa: ANN401
        self._transport.sendto(await self._relay.ask(data), addr)


def _wanted(local: socket.socket) -> dict[str, Any] | None:
    """Where the program wanted to go; None for one that connected to the relay itself."""
    try:
        raw = local.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    except OSError:
        return None
    port, address = struct.unpack_from("!2xH4s", raw)
    if address[0] == 127:
        return None
    return {"via": "tcp", "host": socket.inet_ntoa(address), "port": port}


def _no_answer(question: bytes) -> bytes:
    """SERVFAIL for the question, so that nobody waits for a timeout."""
    at = 12
    while at < len(question) and question[at]:
        at += question[at] + 1
    asked = question[12 : at + 5]
    flags = 0x8082 | (int.from_bytes(question[2:4], "big") & 0x0100)
    return question[:2] + flags.to_bytes(2, "big") + b"\0\1\0\0\0\0\0\0" + asked
