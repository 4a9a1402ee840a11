"""Signs an AWS request again with the real key, where the guest signed it with a placeholder. Pure.

Which secret is the key is found out, not configured: the one whose placeholder gives the signature that is there.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtimed.egress.http1 import RequestHead

ALGORITHM = b"AWS4-HMAC-SHA256"
_PARTS = re.compile(
    rb"AWS4-HMAC-SHA256 +Credential=(?P<id>[^/,\s]+)/(?P<scope>[0-9]{8}/[^/,\s]+/[^/,\s]+/aws4_request), *"
    rb"SignedHeaders=(?P<headers>[a-z0-9;_-]+), *Signature=(?P<signature>[0-9a-f]{64})"
)
_CONTENT_HASH = b"x-amz-content-sha256"


class CannotSign(Exception):
    """The request's signature cannot be made again; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What an Authorization header says of its signature."""

    scope: str
    headers: tuple[bytes, ...]
    signature: str


@dataclass(frozen=True, kw_only=True)
class Signer:
    """How the guest's signature came about."""

    key: str
    """The placeholder it was made with."""
    path_encoded_twice: bool
    payload: str


def read(head: RequestHead) -> Signed | None:
    """None when the request has no such signature in its headers."""
    found = _PARTS.fullmatch((head.all(b"authorization") or [b""])[0])
    if found is None:
        return None
    return Signed(
        scope=found["scope"].decode("latin-1"),
        headers=tuple(found["headers"].split(b";")),
        signature=found["signature"].decode("ascii"),
    )


def needs_body_hash(head: RequestHead) -> bool:
    """Whether the signature covers the body without saying its hash in a header."""
    return read(head) is not None and not head.all(_CONTENT_HASH)


def find_signer(
    head: RequestHead, signed: Signed, placeholders: Sequence[str], body_sha256: str | None
) -> Signer | None:
    """Who signed; None when no placeholder gives this signature, so that it is none of ours.

    Raises:
        CannotSign: every chunk of the body is signed too, and bodies are not rewritten.
    """
    said = head.all(_CONTENT_HASH)
    payload = said[0].decode("latin-1") if said else body_sha256 or hashlib.sha256(b"").hexdigest()
    for placeholder in placeholders:
        for twice in (False, True):
            signer = Signer(key=placeholder, path_encoded_twice=twice, payload=payload)
            if hmac.compare_digest(_signature(head, signed, signer, placeholder), signed.signature):
                if payload.startswith("STREAMING-AWS4-HMAC"):
                    raise CannotSign("a body signed chunk by chunk; send it unsigned or with its hash")
                return signer
    return None


def sign_again(head: RequestHead, signed: Signed, signer: Signer, value: str) -> RequestHead:
    """The request with the signature that the real key gives."""
    new = _signature(head, signed, signer, value).encode()
    headers = tuple(
        (name, old.replace(signed.signature.encode(), new) if name.lower() == b"authorization" else old)
        for name, old in head.headers
    )
    return replace(head, headers=headers)


def _signature(head: RequestHead, signed: Signed, signer: Signer, key: str) -> str:
    dates = head.all(b"x-amz-date") or head.all(b"date") or [b""]
    canonical = hashlib.sha256(_canonical(head, signed, signer)).hexdigest()
    text = "\n".join([ALGORITHM.decode(), dates[0].decode("latin-1"), signed.scope, canonical])
    secret = b"AWS4" + key.encode()
    for part in signed.scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.digest(secret, text.encode(), "sha256").hex()


def _canonical(head: RequestHead, signed: Signed, signer: Signer) -> bytes:
    path, _, query = head.target.decode("latin-1").partition("?")
    if signer.path_encoded_twice:
        path = urllib.parse.quote(path, safe="/-_.~")
    pairs = sorted(
        (_again(name), _again(value)) for name, _, value in (part.partition("=") for part in query.split("&") if part)
    )
    values = [b",".join(b" ".join(v.split()) for v in head.all(name)) for name in signed.headers]
    return b"\n".join(
        [
            head.method,
            (path or "/").encode("latin-1"),
            "&".join(f"{name}={value}" for name, value in pairs).encode(),
            *(name + b":" + value for name, value in zip(signed.headers, values, strict=True)),
            b"",
            b";".join(signed.headers),
            signer.payload.encode(),
        ]
    )


def _again(text: str) -> str:
    return urllib.parse.quote(urllib.parse.unquote(text), safe="-_.~")
