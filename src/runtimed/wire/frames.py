"""Turns bytes of the guest channel into events and calls into bytes: the frame format, without any input or output.

Both ends use this file (the guest a generated copy), so it needs the standard library only and runs on Python 3.9.
The format and its bounds are described in docs/guest-protocol.md.

    unsynced --HELLO found--> synced --HELLO--> synced (guest: every stream forgotten)
        ^                        |
        '-----restart()----------'

A peer that breaks a rule raises ProtocolViolation; the connection is of no use after that until `restart`.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Union

HEADER = struct.Struct(">BBHII")
_CREDIT = struct.Struct(">I")

HELLO, OPEN, MESSAGE, DATA, END, RESET, WINDOW, PING, PONG = range(1, 10)
LAST = 1
"""Flag on OPEN, MESSAGE and DATA: nothing follows on this stream from this side, as if END came next."""

VERSION = 1
MAGIC = b"\x89runtime-agent\r\n"
NONCE_BYTES = 16
MAX_FRAME = 1 << 20
"""Largest payload: bounds what a peer can make us hold for one frame."""
MAX_CONTROL = 64 * 1024
"""Largest HELLO and RESET, and OPEN of a guest; nothing real comes near it."""
MAX_MESSAGE = 32 * 1024
"""Largest MESSAGE: half of the smallest window, so that credit for it always comes. Longer values travel as DATA."""
MAX_PING = 64
HOST_WINDOW = 256 * 1024
"""Start credit of a stream that the host opened, each way."""
GUEST_WINDOW = 64 * 1024
"""Start credit of a stream that the guest opened, each way."""
MAX_WINDOW = 16 << 20
"""Most credit that one stream may ever hold."""
MAX_GUEST_STREAMS = 512
MAX_HOST_STREAMS = 4096
"""Streams open at once from each side: bounds memory; the host's own figure is only a fence against a leak."""
MAX_DEPTH = 32
"""Nesting of a JSON value."""

_LIMITS = {
    HELLO: MAX_CONTROL,
    OPEN: MAX_FRAME,
    MESSAGE: MAX_MESSAGE,
    DATA: MAX_FRAME,
    END: 0,
    RESET: MAX_CONTROL,
    WINDOW: 4,
    PING: MAX_PING,
    PONG: MAX_PING,
}
_MAY_BE_LAST = (OPEN, MESSAGE, DATA)

Buffer = Union[bytes, bytearray, memoryview]  # noqa: UP007 - evaluated, also by Python 3.9
Json = dict[str, Any]


class ProtocolViolation(Exception):
    """The peer sent what the protocol forbids."""


class Event:
    """Something that the peer did."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __repr__(self) -> str:
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]


class HelloReceived(Event):
    """If `fresh`, no stream of before is left; else the peer only repeats itself."""

    __slots__ = ("fresh", "info", "nonce")

    def __init__(self, nonce: bytes, info: Json, *, fresh: bool) -> None:
        super().__init__(0)
        self.nonce, self.info, self.fresh = nonce, info, fresh


class Opened(Event):
    __slots__ = ("method", "params")

    def __init__(self, stream: int, method: str, params: Json) -> None:
        super().__init__(stream)
        self.method, self.params = method, params


class MessageReceived(Event):
    """`size` counts against the window, as the length of DataReceived.data does."""

    __slots__ = ("size", "value")

    def __init__(self, stream: int, value: Json, size: int) -> None:
        super().__init__(stream)
        self.value, self.size = value, size


class DataReceived(Event):
    __slots__ = ("data",)

    def __init__(self, stream: int, data: bytes) -> None:
        super().__init__(stream)
        self.data = data


class EndReceived(Event):
    """`over` when both sides have ended, so that nothing more can happen on the stream."""

    __slots__ = ("over",)

    def __init__(self, stream: int, *, over: bool) -> None:
        super().__init__(stream)
        self.over = over


class ResetReceived(Event):
    __slots__ = ("code", "details", "message")

    def __init__(self, stream: int, code: str, message: str, details: Json) -> None:
        super().__init__(stream)
        self.code, self.message, self.details = code, message, details


class CreditReceived(Event):
    __slots__ = ()


class PingReceived(Event):
    """Already answered."""

    __slots__ = ()


class PongReceived(Event):
    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        super().__init__(0)
        self.payload = payload


class _Flow:
    """What both sides may still send on one stream."""

    __slots__ = ("local_done", "receive_credit", "remote_done", "send_credit")

    def __init__(self, window: int) -> None:
        self.send_credit = window
        self.receive_credit = window
        self.local_done = False
        self.remote_done = False


def encode_json(value: Json) -> bytes:
    """JSON whose strings may hold any bytes (as surrogate escapes).

    Raises:
        ValueError: a number that JSON does not have, or a surrogate that stands for no byte.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "surrogateescape")


def decode_json(payload: Buffer) -> object:
    """The value, at most MAX_DEPTH deep.

    Raises:
        ProtocolViolation: it is no JSON, or too deep.
    """
    try:
        value = json.loads(bytes(payload).decode("utf-8", "surrogateescape"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise ProtocolViolation("a frame holds no JSON") from wrong
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return value
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise ProtocolViolation("a frame holds JSON that is nested too deep")


def _no_constant(name: str) -> None:
    raise ValueError(name)


class Connection:
    """One end of a channel. Feed it what arrived; send what `take` gives; nothing here waits or knows the time."""

    def __init__(self, *, host: bool) -> None:
        self.host = host
        self._window = {True: HOST_WINDOW, False: GUEST_WINDOW}
        self._most = {True: MAX_HOST_STREAMS, False: MAX_GUEST_STREAMS}
        self.restart()

    def restart(self) -> None:
        """Forget the peer: parser, streams and everything not yet sent. The next thing understood is a HELLO."""
        self._in = bytearray()
        self._synced = False
        self._greeted = False
        self._nonce = b""
        self._out: list[Buffer] = []
        self.pending_bytes = 0
        self._forget_streams()

    def _forget_streams(self) -> None:
        self._flows: dict[int, _Flow] = {}
        self._open = {True: 0, False: 0}
        self._newest = {True: 0, False: 0}
        self._next = 1 if self.host else 2

    # What this side does. Each call puts bytes behind those that `take` has not given out yet.

    def hello(self, nonce: bytes, info: Json) -> None:
        """The host asks with a new nonce; the guest answers with the host's."""
        if self.host:
            self._nonce = nonce
        self._put(HELLO, 0, 0, MAGIC + nonce + encode_json(info))

    def open(self, method: str, params: Json, *, last: bool = False) -> int:
        """Open a stream and name what is wanted on it.

        Raises:
            ValueError: the parameters do not fit into one frame.
            OverflowError: this side has as many streams open as it may.
        """
        payload = encode_json({"method": method, "params": params})
        if len(payload) > (MAX_FRAME if self.host else MAX_CONTROL):
            raise ValueError("the parameters are too long")
        if self._open[self.host] >= self._most[self.host]:
            raise OverflowError("too many streams are open")
        stream = self._next
        self._next += 2
        self._add(stream, self.host)
        self._put(OPEN, LAST if last else 0, stream, payload)
        if last:
            self._local_done(stream)
        return stream

    def message(self, stream: int, payload: bytes, *, last: bool = False) -> None:
        """`payload` is from encode_json and fits into the credit."""
        if len(payload) > MAX_MESSAGE:
            raise ValueError("the message is too long; send it as data")
        self._spend(stream, len(payload))
        self._put(MESSAGE, LAST if last else 0, stream, payload)
        if last:
            self._local_done(stream)

    def data(self, stream: int, payload: Buffer, *, last: bool = False) -> None:
        """`payload` fits into the credit; it must not change until it has been sent."""
        self._spend(stream, len(payload))
        self._put(DATA, LAST if last else 0, stream, payload)
        if last:
            self._local_done(stream)

    def end(self, stream: int) -> None:
        """Nothing more from this side. Twice is once."""
        flow = self._flows.get(stream)
        if flow is not None and not flow.local_done:
            self._put(END, 0, stream, b"")
            self._local_done(stream)

    def reset(self, stream: int, code: str, message: str, details: Json | None = None) -> None:
        """Give the stream up in both directions, with a reason. On a stream that is gone it does nothing."""
        if stream not in self._flows:
            return
        payload = encode_json({"code": code, "message": message, "details": details or {}})
        if len(payload) > MAX_CONTROL:
            payload = encode_json({"code": code, "message": message[:1024], "details": {}})
        self._put(RESET, 0, stream, payload)
        self._drop(stream)

    def grant(self, stream: int, credit: int) -> None:
        """Allow the peer that many bytes more."""
        flow = self._flows.get(stream)
        if flow is not None and not flow.remote_done and credit > 0:
            flow.receive_credit += credit
            self._put(WINDOW, 0, stream, _CREDIT.pack(credit))

    def ping(self, payload: bytes) -> None:
        self._put(PING, 0, 0, payload)

    def credit(self, stream: int) -> int:
        """Bytes that may be sent on the stream now; 0 when it is gone."""
        flow = self._flows.get(stream)
        return 0 if flow is None or flow.local_done else flow.send_credit

    def knows(self, stream: int) -> bool:
        """Whether anything can still happen on the stream."""
        return stream in self._flows

    def take(self) -> list[Buffer]:
        """What is to be sent, in order; the caller owns it from here on."""
        out, self._out, self.pending_bytes = self._out, [], 0
        return out

    # What the peer does.

    def receive(self, data: Buffer) -> list[Event]:
        """Understand the bytes that came, as far as they make whole frames.

        Raises:
            ProtocolViolation: the peer broke a rule; call `restart` before going on.
        """
        events: list[Event] = []
        buffer = self._in
        buffer += data
        if not self._synced and not self._seek():
            return events
        at, end = 0, len(buffer)
        while end - at >= HEADER.size:
            kind, flags, reserved, stream, length = HEADER.unpack_from(buffer, at)
            self._check_header(kind, flags, reserved, stream, length)
            start = at + HEADER.size
            if end - start < length:
                break
            with memoryview(buffer) as view:
                payload = bytes(view[start : start + length])
            at = start + length
            self._understand(kind, stream, payload, events)
            if flags & LAST:
                self._remote_done(stream, events)
        del buffer[:at]
        return events

    def _seek(self) -> bool:
        """Throw away what an earlier connection left behind, up to the frame of the HELLO that is awaited."""
        mark = MAGIC + self._nonce if self.host else MAGIC
        at = self._in.find(mark, HEADER.size)
        if at < 0:
            keep = HEADER.size + len(mark) - 1
            if len(self._in) > keep:
                del self._in[:-keep]
            return False
        del self._in[: at - HEADER.size]
        if self._in[0] != HELLO:
            del self._in[: HEADER.size + len(mark)]
            return False
        self._synced = True
        return True

    def _check_header(self, kind: int, flags: int, reserved: int, stream: int, length: int) -> None:
        limit = _LIMITS.get(kind)
        if limit is None or reserved or flags & ~LAST or (flags and kind not in _MAY_BE_LAST):
            raise ProtocolViolation(f"a frame of kind {kind} with flags {flags} and reserved {reserved}")
        if kind == OPEN and self.host:
            limit = MAX_CONTROL
        if length > limit:
            raise ProtocolViolation(f"a frame of kind {kind} and {length} bytes")
        if (stream == 0) != (kind in (HELLO, PING, PONG)):
            raise ProtocolViolation(f"a frame of kind {kind} on stream {stream}")
        if kind in (DATA, MESSAGE):
            flow = self._flows.get(stream)
            if flow is not None and length > flow.receive_credit:
                raise ProtocolViolation(f"stream {stream} overran its window")

    def _understand(self, kind: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if kind == HELLO:
            self._hello(payload, events)
        elif kind == PING:
            self._put(PONG, 0, 0, payload)
            events.append(PingReceived(0))
        elif kind == PONG:
            events.append(PongReceived(payload))
        elif kind == OPEN:
            events.append(self._opened(stream, payload))
        else:
            flow = self._flows.get(stream)
            if flow is None:
                self._check_was_open(stream)  # Frames on their way when this side gave the stream up: no fault.
            elif flow.remote_done and kind not in (WINDOW, RESET):
                raise ProtocolViolation(f"stream {stream} went on after its end")
            else:
                self._on_stream(kind, stream, flow, payload, events)

    def _on_stream(self, kind: int, stream: int, flow: _Flow, payload: bytes, events: list[Event]) -> None:
        if kind == DATA:
            flow.receive_credit -= len(payload)
            events.append(DataReceived(stream, payload))
        elif kind == MESSAGE:
            flow.receive_credit -= len(payload)
            events.append(MessageReceived(stream, _object(payload), len(payload)))
        elif kind == END:
            self._remote_done(stream, events)
        elif kind == RESET:
            value = _object(payload)
            code, message, details = value.get("code"), value.get("message"), value.get("details", {})
            if not (isinstance(code, str) and isinstance(message, str) and isinstance(details, dict)):
                raise ProtocolViolation("a RESET without code and message")
            self._drop(stream)
            events.append(ResetReceived(stream, code, message, details))
        elif kind == WINDOW:
            if len(payload) != _CREDIT.size:
                raise ProtocolViolation("a WINDOW that is not 4 bytes")
            flow.send_credit += _CREDIT.unpack(payload)[0]
            if flow.send_credit > MAX_WINDOW:
                raise ProtocolViolation(f"stream {stream} was given too much credit")
            events.append(CreditReceived(stream))

    def _hello(self, payload: bytes, events: list[Event]) -> None:
        if not payload.startswith(MAGIC) or len(payload) < len(MAGIC) + NONCE_BYTES:
            raise ProtocolViolation("a HELLO without magic")
        nonce = payload[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        info = _object(payload[len(MAGIC) + NONCE_BYTES :])
        if self.host and nonce != self._nonce:
            raise ProtocolViolation("a HELLO for somebody else")
        fresh = not self._greeted if self.host else nonce != self._nonce
        self._greeted = True
        if fresh and not self.host:  # The same nonce again is the host asking again: its streams stay.
            self._nonce = nonce
            self._out, self.pending_bytes = [], 0
            self._forget_streams()
        events.append(HelloReceived(nonce, info, fresh=fresh))

    def _opened(self, stream: int, payload: bytes) -> Opened:
        theirs = not self.host
        if bool(stream % 2) != theirs or stream <= self._newest[theirs]:
            raise ProtocolViolation(f"stream {stream} is not the peer's to open")
        if self._open[theirs] >= self._most[theirs]:
            raise ProtocolViolation("the peer opened too many streams")
        value = _object(payload)
        method, params = value.get("method"), value.get("params")
        if not (isinstance(method, str) and isinstance(params, dict)):
            raise ProtocolViolation("an OPEN without method and params")
        self._add(stream, theirs)
        return Opened(stream, method, params)

    def _check_was_open(self, stream: int) -> None:
        if stream > self._newest[bool(stream % 2)]:
            raise ProtocolViolation(f"stream {stream} was never opened")

    # Bookkeeping.

    def _put(self, kind: int, flags: int, stream: int, payload: Buffer) -> None:
        self._out.append(HEADER.pack(kind, flags, 0, stream, len(payload)))
        if len(payload):
            self._out.append(payload)
        self.pending_bytes += HEADER.size + len(payload)

    def _add(self, stream: int, by_host: bool) -> None:
        self._newest[by_host] = stream
        self._open[by_host] += 1
        self._flows[stream] = _Flow(self._window[by_host])

    def _drop(self, stream: int) -> None:
        if self._flows.pop(stream, None) is not None:
            self._open[bool(stream % 2)] -= 1

    def _spend(self, stream: int, size: int) -> None:
        flow = self._flows.get(stream)
        if flow is None or flow.local_done or size > flow.send_credit:
            raise ValueError(f"stream {stream} has no room for {size} bytes")
        flow.send_credit -= size

    def _local_done(self, stream: int) -> None:
        flow = self._flows[stream]
        flow.local_done = True
        if flow.remote_done:
            self._drop(stream)

    def _remote_done(self, stream: int, events: list[Event]) -> None:
        flow = self._flows.get(stream)
        if flow is None:
            return
        flow.remote_done = True
        events.append(EndReceived(stream, over=flow.local_done))
        if flow.local_done:
            self._drop(stream)


def _object(payload: bytes) -> Json:
    value = decode_json(payload)
    if not isinstance(value, dict):
        raise ProtocolViolation("a frame holds JSON that is no object")
    return value
