"""Streams of the guest channel for asyncio: waits for credit and for bytes, whatever transport carries them.

Both ends use this file (the guest a generated copy), so it needs the standard library only and runs on Python 3.9.
It knows nothing of sockets or ports: the owner of the transport calls `feed` and `fail`, and gives a `write`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Union

from runtimed.wire import frames
from runtimed.wire.frames import Buffer, Json

DATA_CHUNK = 256 * 1024
"""Most bytes in one DATA frame that we send: large enough to be cheap, small enough to let others in between."""
HIGH_WATER = 256 * 1024
"""Bytes on their way out from which on senders wait."""
BULK_WINDOW = 2 << 20
"""Credit worth having on a stream that carries a file: at the start window every quarter MiB costs a round trip."""

JOINED_BYTES = 4096
"""Small pieces of a stream of bytes are kept together up to this size: each alone costs many times what it carries."""

Item = Union[bytes, Json]  # noqa: UP007 - evaluated, also by Python 3.9


class LinkLost(Exception):
    """The connection under the stream is gone; what the peer did meanwhile is not known."""


class StreamReset(Exception):
    """The peer gave the stream up, with a code of runtimed.core.errors."""

    def __init__(self, code: str, message: str, details: Json) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.details = code, message, details


class Stream:
    """One conversation. Reading grants the peer new credit, so a reader that stops reading stops the peer."""

    def __init__(self, link: Link, stream_id: int, method: str, params: Json) -> None:
        self.link, self.id, self.method, self.params = link, stream_id, method, params
        self._items: deque[tuple[Item, int]] = deque()
        self._ended = False
        self._failure: Exception | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        self._taken = 0
        self._bytes_only = False
        self._grant_from = (frames.HOST_WINDOW if stream_id % 2 else frames.GUEST_WINDOW) // 2

    async def receive(self) -> Item | None:
        """The next bytes or message; None when the peer has ended its side.

        Raises:
            StreamReset, LinkLost: after everything that came before it.
        """
        while not self._items:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        item, size = self._items.popleft()
        self._taken += size
        if self._taken >= self._grant_from and not self._ended:
            self.link.grant(self.id, self._taken)
            self._taken = 0
        return item

    async def send(self, data: Buffer, *, last: bool = False) -> None:
        """Send bytes as credit comes. They must not change until they have left.

        Raises:
            StreamReset, LinkLost: the peer does not want them any more.
        """
        view = memoryview(data)
        while len(view):
            size = min(len(view), await self._credit(1), DATA_CHUNK)
            self.link.connection.data(self.id, view[:size], last=last and size == len(view))
            view = view[size:]
            self.link.sent(self.id)
            await self.link.drain()
        if last and not len(data):
            self.end()

    async def send_whole(self, data: bytes) -> None:
        """Send bytes as one frame, so as one item for the peer: at most half of a start window. Raises as `send`."""
        await self._credit(len(data))
        self.link.connection.data(self.id, data)
        self.link.sent(self.id)
        await self.link.drain()

    async def send_message(self, value: Json, *, last: bool = False) -> None:
        """Send one JSON object, of at most frames.MAX_MESSAGE bytes. Raises as `send`, and ValueError when too long."""
        payload = frames.encode_json(value)
        if len(payload) > frames.MAX_MESSAGE:
            raise ValueError("the message is too long; send it as data")
        await self._credit(len(payload))
        self.link.connection.message(self.id, payload, last=last)
        self.link.sent(self.id)
        await self.link.drain()

    def widen(self) -> None:
        """Let the peer send more before it must wait: for streams that carry files."""
        self._grant_from = BULK_WINDOW // 2
        self.link.grant(self.id, BULK_WINDOW - (frames.HOST_WINDOW if self.id % 2 else frames.GUEST_WINDOW))

    def carries_bytes(self) -> None:
        """The peer sends bytes only, and where it cuts them means nothing: what waits to be read is kept small.

        A message fails the stream. To be called before anything is read.
        """
        self._bytes_only = True

    def end(self) -> None:
        """Nothing more from this side."""
        self.link.connection.end(self.id)
        self.link.sent(self.id)

    def reset(self, code: str, message: str, details: Json | None = None) -> None:
        """Give the stream up. Harmless when it is over already."""
        self.link.reset(self.id, code, message, details)

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """Be told once when the stream is reset or lost; at once if it is already."""
        self._on_failure = call
        if self._failure is not None:
            call(self._failure)

    async def _credit(self, least: int) -> int:
        while True:
            if self._failure is not None:
                raise self._failure
            credit = self.link.connection.credit(self.id)
            if credit >= least:
                return credit
            self._sender = asyncio.get_running_loop().create_future()
            try:
                await self._sender
            finally:
                self._sender = None

    # Called by the link.

    def put(self, item: Item, size: int) -> None:
        if self._bytes_only and self._joined(item, size):
            return
        self._items.append((item, size))
        _wake(self._reader)

    def _joined(self, item: Item, size: int) -> bool:
        """Whether the item went to the last one, or was none that this stream carries."""
        if not isinstance(item, bytes):
            self._items.clear()
            self.failed(StreamReset("invalid_request", "this stream carries bytes", {}))
            return True
        last, before = self._items[-1] if self._items else (None, 0)
        if not isinstance(last, bytes) or len(last) + len(item) > JOINED_BYTES:
            return False
        self._items[-1] = (last + item, before + size)
        return True

    def ended(self) -> None:
        self._ended = True
        _wake(self._reader)

    def failed(self, why: Exception) -> None:
        self._failure = why
        _wake(self._reader)
        _wake(self._sender)
        if self._on_failure is not None:
            self._on_failure(why)

    def credited(self) -> None:
        _wake(self._sender)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Link:
    """All streams over one connection. One owner feeds it; any task of the same loop may use its streams."""

    def __init__(
        self,
        connection: frames.Connection,
        *,
        write: Callable[[bytes], None],
        opened: Callable[[Stream], None],
        greeted: Callable[[frames.HelloReceived], None],
    ) -> None:
        self.connection = connection
        self._write, self._opened, self._greeted = write, opened, greeted
        self._streams: dict[int, Stream] = {}
        self._flushing = False
        self._blocked = False
        self._drained: list[asyncio.Future[None]] = []
        self._pongs: dict[bytes, asyncio.Future[None]] = {}
        self._pings = 0
        self._loop = asyncio.get_running_loop()

    # From the owner of the transport.

    def feed(self, data: Buffer) -> None:
        """Understand what arrived and wake whoever waits for it. Raises ProtocolViolation."""
        for event in self.connection.receive(data):
            self._on(event)
        if self.connection.pending_bytes:
            self.flush_soon()

    def fail(self, why: str) -> None:
        """The transport is gone, or its peer starts anew: every stream and every waiter learns it."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.failed(LinkLost(why))
        pongs, self._pongs = self._pongs, {}
        for pong in pongs.values():
            if not pong.done():
                pong.set_exception(LinkLost(why))
                pong.exception()  # Whoever waits still sees it; nobody waiting is no news.
        self.transport_ready()

    def transport_full(self) -> None:
        """The transport has more than it can pass on: senders wait."""
        self._blocked = True

    def transport_ready(self) -> None:
        self._blocked = False
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            _wake(waiter)

    # From whoever speaks.

    def open(self, method: str, params: Json, *, last: bool = False) -> Stream:
        """Open a stream to the peer. Raises ValueError (too long) and OverflowError (too many)."""
        stream = Stream(self, self.connection.open(method, params, last=last), method, params)
        self._streams[stream.id] = stream
        self.flush_soon()
        return stream

    async def ping(self) -> None:
        """Return once the peer has answered. Raises LinkLost. The caller bounds the time."""
        self._pings += 1
        payload = self._pings.to_bytes(8, "big")
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs[payload] = pong
        self.connection.ping(payload)
        self.flush_soon()
        try:
            await pong
        finally:
            self._pongs.pop(payload, None)

    def grant(self, stream_id: int, credit: int) -> None:
        self.connection.grant(stream_id, credit)
        self.flush_soon()

    def reset(self, stream_id: int, code: str, message: str, details: Json | None = None) -> None:
        self.connection.reset(stream_id, code, message, details)
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.failed(StreamReset(code, message, details or {}))
        self.flush_soon()

    def sent(self, stream_id: int) -> None:
        """Something was put on the stream; it may have been the last thing."""
        if not self.connection.knows(stream_id):
            self._streams.pop(stream_id, None)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send everything of this turn of the loop in one write: small answers are made of several frames."""
        if self.connection.pending_bytes >= HIGH_WATER:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self.connection.pending_bytes:
            self._write(b"".join(self.connection.take()))

    async def drain(self) -> None:
        """Wait while the transport is full."""
        while self._blocked:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    def _on(self, event: frames.Event) -> None:
        if isinstance(event, frames.Opened):
            stream = Stream(self, event.stream, event.method, event.params)
            self._streams[stream.id] = stream
            self._opened(stream)
            return
        if isinstance(event, frames.HelloReceived):
            self._greeted(event)
            return
        if isinstance(event, frames.PongReceived):
            _wake(self._pongs.get(event.payload))
            return
        known = self._streams.get(event.stream)
        if known is None:
            return
        if isinstance(event, frames.DataReceived):
            known.put(event.data, len(event.data))
        elif isinstance(event, frames.MessageReceived):
            known.put(event.value, event.size)
        elif isinstance(event, frames.CreditReceived):
            known.credited()
        elif isinstance(event, frames.EndReceived):
            known.ended()
        elif isinstance(event, frames.ResetReceived):
            known.failed(StreamReset(event.code, event.message, event.details))
        # Not what the connection knows by now: it is ahead of these events.
        if isinstance(event, frames.ResetReceived) or (isinstance(event, frames.EndReceived) and event.over):
            self._streams.pop(event.stream, None)


async def answer(stream: Stream, value: Json) -> None:
    """The one answer on a stream: a message, or as bytes when it is too long for one."""
    payload = frames.encode_json(value)
    if len(payload) <= frames.MAX_MESSAGE:
        await stream.send_message(value, last=True)
    else:
        await stream.send(payload, last=True)
