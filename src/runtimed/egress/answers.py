"""Carries one server's answer to the client, guarded where the host has secrets: events in, bytes out. Pure."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from runtimed.egress.http1 import Body, End, RequestHead, ResponseHead, response_bytes
from runtimed.egress.secrets.guard import CannotLook, Guard, Inflated

H = TypeVar("H", RequestHead, ResponseHead)
_CHUNKED = (b"Transfer-Encoding", b"chunked")


class PlainAnswer:
    """As it came."""

    def head(self, head: ResponseHead) -> bytes:
        return response_bytes(head)

    def body(self, event: Body | End) -> bytes:
        return event.raw if isinstance(event, Body) else b""


class GuardedAnswer:
    """Every byte is looked at first; what is compressed goes on unpacked, and what is chunked in chunks of our own."""

    def __init__(self, guard: Guard, *, client_minor: int) -> None:
        self._guard, self._client_minor = guard, client_minor
        self._inflated: Inflated | None = None
        self._chunks = False

    def head(self, head: ResponseHead) -> bytes:
        """Raises SecretFound, or CannotLook for an encoding that hides what is inside."""
        plain = response_bytes(head)
        self._guard.check(plain)
        codings = [coding for coding in head.tokens(b"content-encoding") if coding not in (b"", b"identity")]
        chunked = bool(head.all(b"transfer-encoding"))
        if codings:
            if len(codings) > 1:
                raise CannotLook("several codings")
            self._inflated = Inflated(codings[0].decode("latin-1"))
            head = _without(head, b"content-encoding", b"content-length", b"transfer-encoding", b"etag", b"digest")
            chunked = self._client_minor == 1
            head = dataclasses.replace(head, headers=(*head.headers, *([_CHUNKED] if chunked else [])))
            plain = response_bytes(head)
        self._chunks = chunked
        return plain

    def body(self, event: Body | End) -> bytes:
        """Raises SecretFound, CannotLook."""
        if isinstance(event, End):
            rest = self._frame(self._guard.ends())
            return rest + b"0\r\n\r\n" if self._chunks else rest
        if self._inflated is None:
            return self._frame(self._guard.passes(event.content))
        pieces = self._inflated.unpack(event.content)
        return b"".join(self._frame(self._guard.passes(piece)) for piece in pieces)

    def raw(self, data: bytes) -> bytes:
        """Bytes after the protocol was switched. Raises SecretFound."""
        return self._guard.passes(data)

    def _frame(self, data: bytes) -> bytes:
        if not self._chunks or not data:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)


def readable_only(head: RequestHead) -> RequestHead:
    """The request, asking for an answer that can be looked into."""
    kept = _without(head, b"accept-encoding", b"sec-websocket-extensions")
    return dataclasses.replace(kept, headers=(*kept.headers, (b"Accept-Encoding", b"identity")))


def lasts(request: RequestHead, response: ResponseHead) -> bool:
    """Whether the connection goes on after this answer."""
    if b"close" in request.tokens(b"connection") or b"close" in response.tokens(b"connection"):
        return False
    keeps = request.minor == 1 and response.minor == 1
    framed = bool(response.all(b"content-length") or response.all(b"transfer-encoding"))
    return keeps and (framed or request.method == b"HEAD" or response.status in (204, 304))


def _without(head: H, *names: bytes) -> H:
    return dataclasses.replace(head, headers=tuple(pair for pair in head.headers if pair[0].lower() not in names))
