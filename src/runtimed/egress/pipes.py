"""Byte pipes that the gateway joins: a guest's stream, a TLS server over another pipe, and the pump between two.

A pipe is read until b"", written, ended (half-closed) and, where it goes wrong, aborted. Nobody reads ahead of whom
it writes to, so a slow side stops the fast one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from runtimed.wire.frames import ProtocolViolation
from runtimed.wire.streams import LinkLost, Stream, StreamReset

READ_BYTES = 256 * 1024
WIDE_AFTER_BYTES = 512 * 1024
"""A stream that carried so much is worth a larger window."""
LINGER_S, LINGER_MAX_BYTES = 15.0, 1 << 20
"""How long, and for how much, a program that was sent its end is waited for."""
WIDE_MAX = 16
"""Streams with a large window at once in one sandbox: bounds what a guest can make the service hold."""


class PipeBroken(Exception):
    """The other side is gone, or does not keep to its protocol."""


class UsedUp(PipeBroken):
    """The sandbox has moved as many bytes as it may; the text says how many."""


class ServerBroken(PipeBroken):
    """It was the server's side."""


class Pipe(Protocol):
    async def read(self) -> bytes:
        """The next bytes; b"" at the end. Raises PipeBroken."""

    async def write(self, data: bytes) -> None:
        """Returns once there is room for more. Raises PipeBroken."""

    async def end(self) -> None:
        """Nothing more is written. Raises PipeBroken."""


class Windows:
    """How many streams of one sandbox have a large window."""

    def __init__(self) -> None:
        self.wide = 0


class GuestPipe:
    """One connection of a guest, as the stream that carries it."""

    def __init__(
        self,
        stream: Stream,
        windows: Windows,
        spend: Callable[[int], None] = lambda size: None,
        sent: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`spend` is told of every byte in either direction, and raises UsedUp when there may be no more.

        `sent` is told of those that come from the guest, as they come.
        """
        self._stream, self._windows, self._spend, self._sent = stream, windows, spend, sent
        self._wide = self._ended = False
        self.bytes_out = self.bytes_in = 0
        """From the guest, and to it."""

    async def read(self) -> bytes:
        try:
            item = await self._stream.receive()
        except (StreamReset, LinkLost) as gone:
            raise PipeBroken(str(gone)) from gone
        if item is None:
            return b""
        if not isinstance(item, bytes):
            self._stream.reset("invalid_request", "a connection carries bytes")
            raise PipeBroken("the guest sent a message on a connection")
        self.bytes_out += len(item)
        self._sent(len(item))
        self._spend(len(item))
        if not self._wide and self.bytes_out > WIDE_AFTER_BYTES and self._windows.wide < WIDE_MAX:
            self._wide = True
            self._windows.wide += 1
            self._stream.widen()
        return item

    async def write(self, data: bytes) -> None:
        self._spend(len(data))
        try:
            await self._stream.send(data)
        except (StreamReset, LinkLost, ProtocolViolation) as gone:
            raise PipeBroken(str(gone)) from gone
        self.bytes_in += len(data)

    async def end(self) -> None:
        self._ended = True
        self._stream.end()

    async def linger(self) -> None:
        """After our end: wait for the guest's, so that a reset does not overtake what its program has not read yet.

        What still comes is thrown away; a program that does not close is cut off in the end.
        """
        left = LINGER_MAX_BYTES if self._ended else 0
        try:
            async with asyncio.timeout(LINGER_S):
                while left > 0 and (data := await self.read()):
                    left -= len(data)
        except TimeoutError:
            return

    def reset(self, message: str) -> None:
        """The guest's program sees its connection reset."""
        self._stream.reset("forbidden", message)

    def release(self) -> None:
        """The connection is over."""
        if self._wide:
            self._wide = False
            self._windows.wide -= 1


class WithFirst:
    """A pipe of which some bytes were read already."""

    def __init__(self, first: bytes, pipe: Pipe) -> None:
        self._first, self._pipe = first, pipe
        self.write, self.end = pipe.write, pipe.end

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._pipe.read()


class TlsServerPipe:
    """Speaks TLS, as a server, over another pipe."""

    def __init__(self, context: ssl.SSLContext, pipe: Pipe) -> None:
        self._pipe = pipe
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._writing = asyncio.Lock()

    async def handshake(self) -> None:
        """Raises PipeBroken: the client does not go on, such as one that pins another certificate."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._more():
                    raise PipeBroken("the client went away during the TLS handshake") from None
            except ssl.SSLError as refused:
                await self._flush()
                raise PipeBroken(f"the client does not take the gateway's certificate: {refused.reason}") from refused
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._more():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as wrong:
                raise PipeBroken(f"TLS with the client failed: {wrong.reason}") from wrong

    async def write(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError as wrong:
            raise PipeBroken(f"TLS with the client failed: {wrong.reason}") from wrong
        await self._flush()

    async def end(self) -> None:
        try:
            self._tls.unwrap()
        except (ssl.SSLWantReadError, ssl.SSLError):
            pass  # Our closing word is written; the client's need not come.
        await self._flush()
        await self._pipe.end()

    async def _more(self) -> bool:
        data = await self._pipe.read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return bool(data)

    async def _flush(self) -> None:
        async with self._writing:  # Reader and writer both flush; a pipe has one writer at a time.
            while data := self._out.read():
                await self._pipe.write(data)


async def pump(
    source: Pipe,
    sink: Pipe,
    through: Callable[[bytes], bytes] | None = None,
    held: Callable[[], bytes] = lambda: b"",
) -> None:
    """Carry everything from one to the other, then end it. `through` may raise, or hold bytes back, told by `held`."""
    while data := await source.read():
        passed = data if through is None else through(data)
        if passed:
            await sink.write(passed)
    if rest := held():
        await sink.write(rest)
    await sink.end()
