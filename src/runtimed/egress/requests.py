"""Judges one HTTP request on a connection: the host it was made for, its Host header and its target must agree. Pure.

The same host, or each of them allowed by the rules; CONNECT inside a connection is refused, and so is what cannot be
read in one way only. What comes out is the request as the server is to get it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from runtimed.core.network import Host, read_host
from runtimed.egress.http1 import RequestHead
from runtimed.egress.policy import Policy, Ruling

_ABSOLUTE = re.compile(rb"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\s]+)(?::(?P<port>[0-9]{1,5}))?")
_PROXY_HEADERS = frozenset({b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"})
_HTTP2_HEADERS = frozenset({b"http2-settings"})
_WITH_REQUESTS = (b"h2", b"http/", b"tls/")
HTTP_PORT = 80


class Unreadable(Exception):
    """The request does not say in one way which host it is for."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where a request goes."""

    host: Host
    port: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    verdict: Ruling
    head: RequestHead
    """As the server gets it: in origin form, without what is meant for a proxy."""


def read_authority(text: bytes, *, default_port: int | None) -> Route:
    """`host:port`. Raises Unreadable."""
    found = _AUTHORITY.fullmatch(text.decode("latin-1"))
    port = int(found["port"]) if found and found["port"] else default_port
    if found is None or port is None or not 0 < port <= 65535:
        raise Unreadable("a host and port that are none")
    try:
        return Route(host=read_host(found["host"]), port=port)
    except ValueError:
        raise Unreadable("a host that is no name and no address") from None


def route_of_proxied(head: RequestHead) -> Route:
    """Where a request to a proxy goes: CONNECT host:port, or an absolute http:// target. Raises Unreadable."""
    if head.method == b"CONNECT":
        return read_authority(head.target, default_port=None)
    absolute = _ABSOLUTE.fullmatch(head.target)
    if absolute is None:
        raise Unreadable("a proxy needs the whole URL, or CONNECT")
    if absolute["scheme"].lower() != b"http":
        raise Unreadable("only http:// goes without CONNECT")
    return read_authority(absolute["authority"], default_port=HTTP_PORT)


def judge_request(head: RequestHead, asked: Route, policy: Policy, *, exact: bool) -> Judged:
    """`exact` is for intercepted hosts: every name must be the one that was asked for.

    Raises:
        Unreadable: it does not say which host it is for.
    """
    if head.method == b"CONNECT":
        return _refused(head, "a tunnel inside a connection")
    if exact and head.method == b"TRACE":
        return _refused(head, "TRACE to a host that has a secret")
    named, forwarded = _named_hosts(head, asked.port)
    for host in named:
        if host == asked.host:
            continue
        if exact:
            return _refused(head, f"the request is for {host}, the connection for {asked.host}")
        verdict = policy.judge(host, asked.port)
        if not verdict.allowed:
            return _refused(head, f"the request is for {host}, which is refused: {verdict.rule}")
    return Judged(verdict=policy.judge(asked.host, asked.port), head=_without_hops(forwarded))


def _named_hosts(head: RequestHead, port: int) -> tuple[list[Host], RequestHead]:
    """Every host that the request names, and the request in origin form."""
    found: list[Host] = []
    absolute = _ABSOLUTE.fullmatch(head.target)
    if absolute is not None:
        found.append(read_authority(absolute["authority"], default_port=port).host)
        rest = absolute["rest"].split(b"#")[0]
        head = replace(head, target=rest if rest.startswith(b"/") else b"/" + rest)
    elif not head.target.startswith(b"/") and head.target != b"*":
        raise Unreadable("a target that is no path")
    host = head.one(b"host")
    if host:
        found.append(read_authority(host, default_port=port).host)
    return found, head


def _without_hops(head: RequestHead) -> RequestHead:
    """Without headers for a proxy, and without the offer to go on in what has requests of its own: none is judged."""
    hides = any(token.startswith(_WITH_REQUESTS) for token in head.tokens(b"upgrade"))
    dropped = _PROXY_HEADERS | (_HTTP2_HEADERS | {b"upgrade"} if hides else frozenset())
    return replace(head, headers=tuple(pair for pair in head.headers if pair[0].lower() not in dropped))


def _refused(head: RequestHead, rule: str) -> Judged:
    return Judged(verdict=Ruling(allowed=False, rule=rule), head=head)
