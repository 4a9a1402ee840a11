"""The host's end of a machine's channel: connects, greets, carries streams; a hostile guest costs only its own channel.

connecting --HELLO answered--> open --hang-up, violation or close()--> closed (for good; open another)
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtimed.core import errors
from runtimed.wire import frames
from runtimed.wire.frames import Json
from runtimed.wire.streams import Link, LinkLost, Stream, StreamReset

HELLO_FIRST_S, HELLO_GROWTH, HELLO_SLOWEST_S = 0.05, 1.5, 0.3
"""A greeting sent before the guest opened its port can be lost: it is repeated, ever more slowly."""
RECONNECT_AFTER_S = 1.0
"""No answer for so long: the guest may sit in a half-read frame, and only a hang-up takes it out of there."""
HANG_UP_S = 0.03
"""How long the hang-up lasts, so that the guest sees it."""
WRITE_HIGH_BYTES = 1 << 20
UNSENT_MAX_BYTES = 32 << 20
"""More than this not taken by the guest: it asks without reading. Senders wait long before; only answers get here."""
RESULT_MAX_BYTES = 32 << 20
"""A result that does not fit into one message, such as a long listing."""
REQUEST_WITHIN_S = 60.0


class ChannelClosed(errors.MachineGone):
    """The channel cannot be used any more; the machine itself may live."""


@dataclass(frozen=True, kw_only=True)
class Closing:
    """Why a channel was closed. After a `hostile` guest broke the protocol, do not open another one."""

    reason: str
    hostile: bool = False


class _Transport(asyncio.Protocol):
    """Hands bytes from the event loop to the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def data_received(self, data: bytes) -> None:
        self._channel._received(data)

    def pause_writing(self) -> None:
        self._channel.link.transport_full()

    def resume_writing(self) -> None:
        self._channel.link.transport_ready()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._end(f"the connection failed: {exc}" if exc else "the machine hung up")


class Channel:
    """One connection to one guest. `closed` is done, with the reason, once it is of no more use."""

    def __init__(self) -> None:
        """Use `Channel.open`."""
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Closing] = loop.create_future()
        self.closed_for_a_pause = False
        self.info: Json = {}
        """What the guest said of itself in its greeting."""
        self.serve: Callable[[Stream], None] | None = None
        """Takes the streams that the guest opens; without it they are refused."""
        self._connection = frames.Connection(host=True)
        self.link = Link(self._connection, write=self._write, opened=self._opened, greeted=self._greeted)
        self._nonce = os.urandom(frames.NONCE_BYTES)
        self._answered = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, socket_path: Path, *, within_s: float) -> Channel:
        """Connect and greet until the guest answers.

        Raises:
            TimeoutError: it did not within `within_s` seconds.
        """
        refused = "it does not answer"
        try:
            async with asyncio.timeout(within_s):
                while True:
                    channel = cls()
                    try:
                        await channel._connect(socket_path)
                        if await channel._greet():
                            return channel
                    except OSError as failure:
                        refused = f"{failure.strerror or failure}"
                    finally:
                        if not channel._answered.is_set():
                            await channel.close("it was not answered")
                    if channel.closed.result().hostile:
                        raise errors.GuestUnresponsive(channel.closed.result().reason)
                    await asyncio.sleep(HANG_UP_S)
        except TimeoutError:
            raise errors.GuestUnresponsive(
                f"the machine's agent was not reached in {within_s:g} s: {refused}"
            ) from None

    async def close(self, why: str = "closed", *, for_a_pause: bool = False) -> None:
        """Hang up. Commands in the guest go on; `for_a_pause` those who wait for them are told so. Idempotent."""
        self.closed_for_a_pause = self.closed_for_a_pause or for_a_pause
        self._end(why)
        await self.closed

    async def ping(self, *, within_s: float = 5.0) -> None:
        """Raises GuestUnresponsive when no answer comes in time, ChannelClosed on a closed channel."""
        self._check_open()
        try:
            async with asyncio.timeout(within_s):
                await self.link.ping()
        except TimeoutError:
            raise errors.GuestUnresponsive(f"the machine's agent did not answer within {within_s:g} s") from None
        except LinkLost as lost:
            raise ChannelClosed(f"the connection to the machine is gone: {lost}") from lost

    async def request(self, method: str, params: Json, *, within_s: float = REQUEST_WITHIN_S) -> Json:
        """Ask once and return the answer.

        Raises:
            CallerError: what the guest answered.
            ChannelClosed, Interrupted: the channel was closed before, or broke in between.
            GuestUnresponsive: no answer in time.
        """
        try:
            async with asyncio.timeout(within_s), self.stream(method, params, last=True) as stream:
                return await result_of(stream)
        except TimeoutError:
            raise errors.GuestUnresponsive(f"the machine did not answer {method} within {within_s:g} s") from None

    @asynccontextmanager
    async def stream(self, method: str, params: Json, *, last: bool = False) -> AsyncIterator[Stream]:
        """Open a stream, and give it up on leaving unless it is over. With `last`, nothing but `params` is sent.

        Raises:
            CallerError: the guest reset the stream.
            ChannelClosed, Interrupted: the channel was closed before, or broke in between.
            InvalidRequest: `params` are too long or hold what no JSON can.
        """
        self._check_open()
        try:
            stream = self.link.open(method, params, last=last)
        except OverflowError as many:
            raise errors.GuestBusy("too many requests of the machine are under way", retry_after_ms=500) from many
        except ValueError as wrong:
            raise errors.InvalidRequest([{"field": "request", "message": str(wrong)}]) from wrong
        try:
            with self.told():
                yield stream
        finally:
            stream.reset("cancelled", "the host does not need it any more")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell failures of a stream as errors of ours; for code that hands them on from inside `stream`.

        Raises:
            CallerError, ServiceError: what the guest answered.
            Interrupted: the channel broke, or was closed because the guest broke the protocol.
        """
        try:
            yield
        except StreamReset as reset:
            raise error_of(reset) from reset
        except LinkLost as lost:
            raise errors.Interrupted(f"the connection to the machine was lost: {lost}") from lost
        except frames.ProtocolViolation as violation:
            self._violated(violation)
            raise errors.Interrupted("the machine's agent broke the protocol") from violation

    async def _connect(self, socket_path: Path) -> None:
        """A socket's path may have 107 bytes only: name it from its folder's descriptor."""
        loop = asyncio.get_running_loop()
        folder = os.open(socket_path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await loop.sock_connect(peer, f"/proc/self/fd/{folder}/{socket_path.name}")
            transport, _ = await loop.create_unix_connection(lambda: _Transport(self), sock=peer)
        except BaseException:
            peer.close()
            raise
        finally:
            os.close(folder)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_HIGH_BYTES // 4)

    async def _greet(self) -> bool:
        wait_s, left_s = HELLO_FIRST_S, RECONNECT_AFTER_S
        while left_s > 0 and not self.closed.done():
            self._connection.hello(self._nonce, {"version": frames.VERSION, "max_frame": frames.MAX_FRAME})
            self.link.flush()
            try:
                async with asyncio.timeout(wait_s):
                    await self._answered.wait()
                return not self.closed.done()
            except TimeoutError:
                left_s -= wait_s
                wait_s = min(wait_s * HELLO_GROWTH, HELLO_SLOWEST_S)
        return self._answered.is_set() and not self.closed.done()  # the answer may come with the last timeout

    def _greeted(self, hello: frames.HelloReceived) -> None:
        if hello.fresh:
            self.info = hello.info
            self._answered.set()

    def _opened(self, stream: Stream) -> None:
        if self.serve is not None:
            self.serve(stream)
            return
        stream.reset("unavailable", f"the host has no method {stream.method[:64]}")

    def _received(self, data: bytes) -> None:
        try:
            self.link.feed(data)
        except frames.ProtocolViolation as violation:
            self._violated(violation)

    def _violated(self, violation: frames.ProtocolViolation) -> None:
        self._end(f"the guest broke the protocol: {violation}", hostile=True)

    def _write(self, data: bytes) -> None:
        if self._transport is None or self.closed.done():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNSENT_MAX_BYTES:
            self._end("the guest asks without reading the answers", hostile=True)

    def _end(self, why: str, *, hostile: bool = False) -> None:
        if not self.closed.done():
            self.closed.set_result(Closing(reason=why, hostile=hostile))
            self.link.fail(why)
        if self._transport is not None:
            self._transport.abort()

    def _check_open(self) -> None:
        if self.closed.done():
            raise ChannelClosed(f"the connection to the machine is gone: {self.closed.result().reason}")


async def result_of(stream: Stream) -> Json:
    """The answer on a stream: one message, or bytes that make one JSON object."""
    item = await stream.receive()
    if isinstance(item, dict):
        return item
    found = bytearray()
    while isinstance(item, bytes):
        found += item
        if len(found) > RESULT_MAX_BYTES:
            raise frames.ProtocolViolation("a result without end")
        item = await stream.receive()
    value = frames.decode_json(found) if item is None and found else None
    if not isinstance(value, dict):
        raise frames.ProtocolViolation("an answer that is none")
    return value


_FROM_GUEST = frozenset(
    {
        "invalid_request", "permission_denied", "not_found", "file_not_found", "process_not_found", "upload_not_found",
        "conflict", "cwd_not_found", "is_a_directory", "not_a_directory", "directory_not_empty", "already_exists",
        "upload_incomplete", "stdin_closed", "process_ended", "process_limit", "unsafe_archive", "disk_full",
        "too_large", "unavailable", "start_failed", "guest_busy",
    }
)  # fmt: skip
"""Codes that a guest may answer with; any other is a fault and not the caller's."""


def error_of(reset: StreamReset) -> errors.RuntimedError:
    """The error that the guest's answer stands for."""
    if reset.code not in _FROM_GUEST:
        return errors.ServiceError("the machine's agent failed", details={"agent": json.dumps(reset.message)[:500]})
    return errors.from_code(reset.code, reset.message[:4096], reset.details)
