"""Carries one server's answer to the client, guarded where the host has secrets: events in, bytes out. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from runtimed.egress.http1 import Body, End, RequestHead, ResponseHead, has_no_body, response_bytes
from runtimed.egress.secrets.guard import CannotLook, Guard, Inflated

H = TypeVar("H", RequestHead, ResponseHead)
_CHUNKED = (b"Transfer-Encoding", b"chunked")
_DIGESTS = (b"digest", b"content-digest", b"repr-digest", b"content-md5")


class PlainAnswer:
    """As it came."""

    def head(self, head: ResponseHead) -> bytes:
        return response_bytes(head)

    def body(self, event: Body | End) -> Iterator[bytes]:
        """What goes on, in pieces: each is to be taken before the next is made."""
        if isinstance(event, Body):
            yield event.raw


class GuardedAnswer:
    """Every byte is looked at first; what is compressed goes on unpacked, and what is chunked in chunks of our own."""

    def __init__(self, guard: Guard, request: RequestHead) -> None:
        self._guard, self._request = guard, request
        self._inflated: Inflated | None = None
        self._chunks = False

    def head(self, head: ResponseHead) -> bytes:
        """Raises SecretFound, or CannotLook for an encoding that hides what is inside."""
        plain = response_bytes(head)
        self._guard.check(plain)
        self._inflated, self._chunks = None, False
        if has_no_body(self._request.method, head):
            return plain
        # A list: the same coding twice is two codings.
        codings = [c.strip().lower() for value in head.all(b"content-encoding") for c in value.split(b",")]
        codings = [coding for coding in codings if coding not in (b"", b"identity")]
        self._chunks = bool(head.all(b"transfer-encoding"))
        if codings:
            if len(codings) > 1:
                raise CannotLook("several codings")
            self._inflated = Inflated(codings[0].decode("latin-1"))
            head = _without(head, b"content-encoding", b"content-length", b"transfer-encoding", b"etag", *_DIGESTS)
            self._chunks = self._request.minor == 1
            head = dataclasses.replace(head, headers=(*head.headers, *([_CHUNKED] if self._chunks else [])))
            plain = response_bytes(head)
        return plain

    def body(self, event: Body | End) -> Iterator[bytes]:
        """As PlainAnswer. Raises SecretFound, CannotLook."""
        if isinstance(event, End):
            if self._inflated is not None:
                self._inflated.end()
            yield self._frame(self._guard.ends())
            if self._chunks:
                yield b"0\r\n\r\n"
        elif self._inflated is None:
            yield self._frame(self._guard.passes(event.content))
        else:
            for piece in self._inflated.unpack(event.content):
                yield self._frame(self._guard.passes(piece))

    def raw(self, data: bytes) -> bytes:
        """Bytes after the protocol was switched. Raises SecretFound."""
        return self._guard.passes(data)

    def raw_ends(self) -> bytes:
        """What is left of them at the end."""
        return self._guard.ends()

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
    return keeps and (framed or has_no_body(request.method, response))


def _without(head: H, *names: bytes) -> H:
    return dataclasses.replace(head, headers=tuple(pair for pair in head.headers if pair[0].lower() not in names))
