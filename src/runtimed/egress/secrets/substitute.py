"""Puts the values of secrets into a request's URL and headers where their rules allow it. Pure; bodies stay whole.

A secret with a `header` is put there, on every request that its rules allow, and nowhere else. One without is put
where its placeholder stands: in the URL, in any header, and inside Basic credentials.
"""

from __future__ import annotations

import base64
import binascii
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runtimed.core.network import Target
from runtimed.core.secrets import SecretPlan, canonical_path, covers
from runtimed.egress.http1 import Headers, RequestHead
from runtimed.egress.secrets import sigv4
from runtimed.egress.secrets.guard import Watched

_OTHER_REQUEST = frozenset(
    {b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url"}
)
"""Many servers take the method or the path from these."""
_NEVER = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade"})


@dataclass(frozen=True, kw_only=True)
class OpenSecret:
    """A secret with its value. It lives in the gateway only."""

    plan: SecretPlan
    targets: tuple[Target, ...]
    placeholder: str
    value: str

    def __repr__(self) -> str:
        return f"OpenSecret({self.plan.name})"

    @cached_property
    def watched(self) -> Watched:
        """What of it is looked for in answers."""
        return Watched.of(self.value)

    def goes_to(self, name: str, port: int) -> bool:
        return covers(self.targets, name, port)

    def allows(self, head: RequestHead) -> bool:
        """Whether its rules let this request carry it. One that could be read in two ways never does."""
        if self.plan.rules is None:
            return True
        if any(name.lower().replace(b"_", b"-") in _OTHER_REQUEST for name, _ in head.headers):
            return False
        path = canonical_path(head.target.split(b"?")[0].decode("latin-1"))
        method = head.method.decode("ascii")
        return path is not None and any(
            (not rule.methods or method in rule.methods) and any(_path_matches(path, p) for p in rule.paths)
            for rule in self.plan.rules
        )


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The request to send, and the secrets that are in it."""

    head: RequestHead
    used: tuple[OpenSecret, ...]
    watched: tuple[str, ...] = ()
    """Made with a secret, and not to come back either: the signature of a URL is good for days, for anybody."""


def _path_matches(path: str, rule: str) -> bool:
    if rule.endswith("/*"):
        prefix = canonical_path(rule[:-1])
        return prefix is not None and path.startswith(prefix)
    return path == canonical_path(rule)


def apply(
    head: RequestHead,
    secrets: Sequence[OpenSecret],
    *,
    body_sha256: str | None = None,
    changed: RequestHead | None = None,
) -> Applied:
    """`body_sha256` is needed only where `sigv4.needs_body_hash` says so.

    `head` is as the guest may have signed it; `changed`, if given, is what is to go out in its place.

    Raises:
        sigv4.CannotSign: a signature that only the value could make again.
    """
    carried = [secret for secret in secrets if secret.allows(head)]
    signed = sigv4.read(head)
    signer = sigv4.find_signer(head, signed, [s.placeholder for s in carried], body_sha256) if signed else None
    used: list[OpenSecret] = []
    changed = changed or head
    for secret in carried:
        before = changed
        if signer is not None and secret.placeholder == signer.key:
            used.append(secret)
            continue
        changed = _put_header(changed, secret) if secret.plan.header else _put_everywhere(changed, secret)
        if changed is not before:
            used.append(secret)
    if signed is None or signer is None:
        return Applied(head=changed, used=tuple(used))
    value = next(s.value for s in carried if s.placeholder == signer.key)
    changed = sigv4.sign_again(changed, signed, signer, value)
    again = sigv4.read(changed) if signed.in_url else None
    return Applied(head=changed, used=tuple(used), watched=(again.signature,) if again else ())


def _put_header(head: RequestHead, secret: OpenSecret) -> RequestHead:
    assert secret.plan.header is not None
    name = secret.plan.header.encode("ascii")
    value = (secret.plan.format or "{value}").replace("{value}", secret.value).strip().encode("ascii")
    kept = tuple(pair for pair in head.headers if pair[0].lower() != name.lower())
    return replace(head, headers=(*kept, (name, value)))


def _put_everywhere(head: RequestHead, secret: OpenSecret) -> RequestHead:
    mark, value = secret.placeholder.encode(), secret.value.encode("ascii")
    target = head.target.replace(mark, urllib.parse.quote(secret.value, safe="-_.~").encode())
    headers: Headers = tuple(
        (name, old if name.lower() in _NEVER else _in_value(old, mark, value)) for name, old in head.headers
    )
    if target == head.target and headers == head.headers:
        return head
    return replace(head, target=target, headers=headers)


def _in_value(old: bytes, mark: bytes, value: bytes) -> bytes:
    if mark in old:
        return old.replace(mark, value).strip()
    scheme, space, coded = old.partition(b" ")
    if not space or scheme.lower() != b"basic":
        return old
    try:
        plain = base64.b64decode(coded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return old
    return scheme + b" " + base64.b64encode(plain.replace(mark, value)) if mark in plain else old
