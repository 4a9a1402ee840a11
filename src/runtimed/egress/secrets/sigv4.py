"""Signs an AWS request again with the real key, where the guest signed it with a placeholder. Pure.

The signature is in the Authorization header, or in the URL when that was signed in advance ("presigned").

Which secret is the key is found out, not configured: the one whose placeholder gives the signature that is there.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
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
_CREDENTIAL = re.compile(r"[^/]+/([0-9]{8}/[^/\s]+/[^/\s]+/aws4_request)")
CHUNK_BY_CHUNK = (
    "its body is signed chunk by chunk, and bodies are never rewritten; turn chunked encoding off in the client, "
    "or let it send x-amz-content-sha256: UNSIGNED-PAYLOAD, which HTTPS protects as well"
)
_UNSIGNED = "UNSIGNED-PAYLOAD"
_SIGNATURE = "X-Amz-Signature"


class CannotSign(Exception):
    """The request's signature cannot be made again; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What a request says of its signature."""

    scope: str
    headers: tuple[bytes, ...]
    signature: str
    date: str
    in_url: bool = False


@dataclass(frozen=True, kw_only=True)
class Signer:
    """How the guest's signature came about."""

    key: str
    """The placeholder it was made with."""
    path_encoded_twice: bool
    payload: str


def read(head: RequestHead) -> Signed | None:
    """None when the request has no such signature, or has it in a way that could be read twice."""
    found = _PARTS.fullmatch((head.all(b"authorization") or [b""])[0])
    if found is None:
        return _read_url(head)
    dates = head.all(b"x-amz-date") or head.all(b"date") or [b""]
    return Signed(
        scope=found["scope"].decode("latin-1"),
        headers=tuple(found["headers"].split(b";")),
        signature=found["signature"].decode("ascii"),
        date=dates[0].decode("latin-1"),
    )


def _read_url(head: RequestHead) -> Signed | None:
    said = [(name, value) for name, value in _pairs(head) if name.startswith("X-Amz-")]
    named = dict(said)
    scope = _CREDENTIAL.fullmatch(named.get("X-Amz-Credential", ""))
    headers = named.get("X-Amz-SignedHeaders", "")
    if len(named) != len(said) or scope is None or named.get("X-Amz-Algorithm", "").encode() != ALGORITHM:
        return None
    if not re.fullmatch(r"[a-z0-9;_-]+", headers) or not re.fullmatch("[0-9a-f]{64}", named.get(_SIGNATURE, "")):
        return None
    return Signed(
        scope=scope[1],
        headers=tuple(headers.encode().split(b";")),
        signature=named[_SIGNATURE],
        date=named.get("X-Amz-Date", ""),
        in_url=True,
    )


def needs_body_hash(head: RequestHead) -> bool:
    """Whether the signature covers the body without saying its hash. URLs for S3 never cover it."""
    signed = read(head)
    if signed is None or head.all(_CONTENT_HASH):
        return False
    return not (signed.in_url and signed.scope.split("/")[2] == "s3")


def find_signer(
    head: RequestHead, signed: Signed, placeholders: Sequence[str], body_sha256: str | None
) -> Signer | None:
    """Who signed; None when no placeholder gives this signature, so that it is none of ours.

    Raises:
        CannotSign: every chunk of the body is signed too, and bodies are not rewritten.
    """
    said = [value.decode("latin-1") for value in head.all(_CONTENT_HASH)[:1]]
    payloads = said or [body_sha256 or hashlib.sha256(b"").hexdigest()]
    if signed.in_url:
        payloads = list(dict.fromkeys([_UNSIGNED, *payloads]))
    for placeholder in placeholders:
        for twice, payload in itertools.product((False, True), payloads):
            signer = Signer(key=placeholder, path_encoded_twice=twice, payload=payload)
            if hmac.compare_digest(signature(head, signed, signer, placeholder), signed.signature):
                if payload.startswith("STREAMING-AWS4-HMAC"):
                    raise CannotSign(CHUNK_BY_CHUNK)
                return signer
    return None


def sign_again(head: RequestHead, signed: Signed, signer: Signer, value: str) -> RequestHead:
    """The request with the signature that the real key gives."""
    new = signature(head, signed, signer, value).encode()
    if signed.in_url:
        path, _, query = head.target.partition(b"?")
        parts = (
            b"%b=%b" % (part.split(b"=")[0], new) if _names(part) == _SIGNATURE else part for part in query.split(b"&")
        )
        return replace(head, target=path + b"?" + b"&".join(parts))
    headers = tuple(
        (name, old.replace(signed.signature.encode(), new) if name.lower() == b"authorization" else old)
        for name, old in head.headers
    )
    return replace(head, headers=headers)


def signature(head: RequestHead, signed: Signed, signer: Signer, key: str) -> str:
    """What `key` gives for this request."""
    canonical = hashlib.sha256(_canonical(head, signed, signer)).hexdigest()
    text = "\n".join([ALGORITHM.decode(), signed.date, signed.scope, canonical])
    secret = b"AWS4" + key.encode()
    for part in signed.scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.digest(secret, text.encode(), "sha256").hex()


def _canonical(head: RequestHead, signed: Signed, signer: Signer) -> bytes:
    path, _, query = head.target.partition(b"?")
    if signer.path_encoded_twice:
        path = urllib.parse.quote(path, safe="/-_.~").encode()
    parts = [part for part in query.split(b"&") if part and not (signed.in_url and _names(part) == _SIGNATURE)]
    pairs = sorted((_again(name), _again(value)) for name, _, value in (part.partition(b"=") for part in parts))
    values = [b",".join(b" ".join(v.split()) for v in head.all(name)) for name in signed.headers]
    return b"\n".join(
        [
            head.method,
            path or b"/",
            "&".join(f"{name}={value}" for name, value in pairs).encode(),
            *(name + b":" + value for name, value in zip(signed.headers, values, strict=True)),
            b"",
            b";".join(signed.headers),
            signer.payload.encode(),
        ]
    )


def _pairs(head: RequestHead) -> list[tuple[str, str]]:
    parts = head.target.partition(b"?")[2].split(b"&")
    return [(_names(part), urllib.parse.unquote(part.partition(b"=")[2].decode("latin-1"))) for part in parts if part]


def _names(part: bytes) -> str:
    """The name of a query parameter."""
    return urllib.parse.unquote(part.partition(b"=")[0].decode("latin-1"))


def _again(text: bytes) -> str:
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text), safe="-_.~")
