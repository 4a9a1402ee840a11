"""Decides what becomes of one connection from what is known so far: the host asked, then the first bytes. Pure.

asked --refused--> Refuse
      --allowed--> first bytes --TLS, name agrees--> Pass | Intercept (the host has a secret)
                               --HTTP-------------> Http (each request is judged)
                               --something else---> Pass
                               --not yet clear----> None: wait for more, or for the server to speak first
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runtimed.core.network import Host, canonical_name
from runtimed.egress import http1, tls
from runtimed.egress.policy import Policy, Ruling

FIRST_BYTES_MAX = tls.HELLO_MAX_BYTES + 1024
_HTTP2 = b"PRI * HTTP/2"

Kind = Literal["tls", "http", "other"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Carry the bytes untouched. While it is `open` whether they are HTTP, a `http1.FirstLine` has to look at them.

    They are not held back, since a program whose protocol has no lines would wait for ever; the end of the line is.
    """

    kind: Kind
    open: bool = False


@dataclass(frozen=True, kw_only=True)
class Intercept:
    """Speak TLS with the client as `name`, and judge each request."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Http:
    """Read each request, and judge it."""


@dataclass(frozen=True, kw_only=True)
class Refuse:
    verdict: Ruling
    kind: Kind


Decision = Pass | Intercept | Http | Refuse


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a connection was asked for: a host and a port."""

    host: Host
    port: int


class Opening:
    """One connection up to the point where its kind is clear."""

    def __init__(self, policy: Policy, asked: Asked, has_secret: Callable[[str, int], bool]) -> None:
        self._policy, self._asked, self._has_secret = policy, asked, has_secret
        self.shown_name: str | None = None
        """The name that the client's TLS showed, for the record."""

    def first_bytes(self, data: bytes, *, ended: bool = False) -> Decision | None:
        """What to do now that the client has sent this much (all of it, from the start)."""
        if not data:
            return Pass(kind="other") if ended else None
        if tls.looks_like_tls(data):
            return self._tls(data, ended=ended)
        if _HTTP2.startswith(data[: len(_HTTP2)]) and len(data) < len(_HTTP2) and not ended:
            return None
        if data.startswith(_HTTP2):
            return Refuse(verdict=Ruling(allowed=False, rule="HTTP/2 without TLS cannot be judged"), kind="other")
        request = http1.is_request(data)
        if request is None and http1.could_be_http(data) and not ended:
            return None
        return Http() if request else Pass(kind="other", open=request is None)

    def _tls(self, data: bytes, *, ended: bool) -> Decision | None:
        try:
            hello = tls.read_client_hello(data)
        except tls.NotTls as wrong:
            return Refuse(verdict=Ruling(allowed=False, rule=f"TLS that cannot be read: {wrong}"), kind="tls")
        if hello is None:
            if ended or len(data) > FIRST_BYTES_MAX:
                return Refuse(verdict=Ruling(allowed=False, rule="TLS without a whole ClientHello"), kind="tls")
            return None
        self.shown_name = hello.server_name
        if hello.encrypted and not _is_grease(hello):
            return Refuse(verdict=Ruling(allowed=False, rule="Encrypted Client Hello hides the name"), kind="tls")
        return self._agree(hello)

    def _agree(self, hello: tls.ClientHello) -> Decision:
        asked = self._asked
        shown: str | None = None
        if hello.server_name is not None:
            try:
                shown = canonical_name(hello.server_name)
            except ValueError:
                refused = Ruling(allowed=False, rule="the TLS server name is not a name")
                return Refuse(verdict=refused, kind="tls")
            if shown != asked.host:
                verdict = self._policy.judge(shown, asked.port)
                if not verdict.allowed:
                    rule = f"the TLS server name {shown} is not {asked.host}, and is refused: {verdict.rule}"
                    return Refuse(verdict=Ruling(allowed=False, rule=rule), kind="tls")
        # A secret goes to the host that was asked for, and only when the client's TLS means the same one.
        if isinstance(asked.host, str) and shown in (asked.host, None) and self._has_secret(asked.host, asked.port):
            return Intercept(name=asked.host)
        return Pass(kind="tls")


def _is_grease(hello: tls.ClientHello) -> bool:
    """Browsers and recent curl send a meaningless ECH extension; without our DNS giving a key, none is real.

    A real one needs a key, which comes from DNS (where we give none) or is brought along by the program itself.
    It cannot be told from the outside, so the name that is shown must be allowed, and the server, which is the one
    that was asked for by name, must be one that the rules allow.
    """
    return hello.server_name is not None
