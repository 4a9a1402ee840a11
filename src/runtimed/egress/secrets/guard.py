"""Finds a secret in what a server answers, plain or encoded, across the borders of chunks, and lets none out. Pure."""

from __future__ import annotations

import base64
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator

ENCODED_LEAST_BYTES = 8
"""An encoded form shorter than this would be found by chance."""
BEGINNING_LEAST_BYTES = 8
"""So much of a secret, or a quarter of it, is taken for its beginning; less may pass before the rest is seen."""
INFLATED_MAX_BYTES = 64 * 1024
"""Looked at in one step of a compressed answer, so that one that grows without end costs time and no memory."""


class SecretFound(Exception):
    """The answer holds the value of a secret."""


def forms_of(value: str) -> frozenset[bytes]:
    """The value as an answer may hold it: as it is, in base64 at any offset, URL-encoded, in JSON, in hexadecimal."""
    raw = value.encode("ascii")
    encoded = {
        urllib.parse.quote(value, safe="").encode(),
        urllib.parse.quote_plus(value).encode(),
        urllib.parse.quote(value).encode(),
        "".join(f"%{byte:02X}" for byte in raw).encode(),
        value.replace("\\", "\\\\").replace('"', '\\"').encode(),
        value.replace("\\", "\\\\").replace('"', '\\"').replace("/", "\\/").encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
    }
    encoded |= {_lower_escapes(form) for form in encoded}
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw)
        # Characters that depend on neighbours of the value are left out.
        first, bits = (before * 8 + 5) // 6, (before + len(raw)) * 8
        certain = whole[first : bits // 6]
        encoded |= {certain, certain.translate(bytes.maketrans(b"+/", b"-_"))}
    return frozenset({raw} | {form for form in encoded if len(form) >= ENCODED_LEAST_BYTES})


def _lower_escapes(form: bytes) -> bytes:
    parts = form.split(b"%")
    return b"%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


class Guard:
    """Watches one answer. What is probably the beginning of a secret waits until it is clear that it is none."""

    def __init__(self, values: Iterable[str]) -> None:
        self._forms = sorted({form for value in values for form in forms_of(value)})
        self._remembered = max((len(form) - 1 for form in self._forms), default=0)
        self._passed = b""
        """The newest bytes that went on: a secret may have begun in them."""
        self._held = b""

    def check(self, data: bytes) -> None:
        """Raises SecretFound if these bytes alone, such as a head, hold a secret."""
        if any(form in data for form in self._forms):
            raise SecretFound

    def passes(self, data: bytes) -> bytes:
        """What may go on. Raises SecretFound."""
        data = self._held + data
        seen = self._passed + data
        self.check(seen)
        keep = max((_beginning(seen, form) for form in self._forms), default=0)
        self._held = data[max(0, len(data) - keep) :] if keep else b""
        self._passed = seen[: len(seen) - len(self._held)][-self._remembered :] if self._remembered else b""
        return data[: len(data) - len(self._held)]

    def ends(self) -> bytes:
        """What was held back and turned out to be nothing."""
        held, self._held = self._held, b""
        return held


def _beginning(data: bytes, form: bytes) -> int:
    """Length of the longest end of `data` that `form` begins with; 0 where it is so short that it is chance.

    A chance match must not wait: the rest of a message that is complete as it is would never come.
    """
    least = min(BEGINNING_LEAST_BYTES, max(1, len(form) // 4))
    start = form[:least]
    at = data.find(start, max(0, len(data) - len(form) + 1))
    while at >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at = data.find(start, at + 1)
    return 0


class CannotLook(Exception):
    """The answer is encoded in a way that cannot be looked into."""


class Inflated:
    """Opens a compressed answer: what it holds goes on unpacked, so that its compression hides nothing."""

    def __init__(self, coding: str) -> None:
        """Raises CannotLook for a coding other than gzip and deflate."""
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise CannotLook(coding)
        self._zlib = zlib.decompressobj(wbits=47 if coding != "deflate" else 15)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """In pieces of a bounded size. Raises CannotLook where the bytes are not what they claim."""
        try:
            while data:
                yield self._zlib.decompress(data, INFLATED_MAX_BYTES)
                data = self._zlib.unconsumed_tail
                if self._zlib.eof and self._zlib.unused_data:
                    data = self._zlib.unused_data
                    self._zlib = zlib.decompressobj(wbits=47)
        except zlib.error as wrong:
            raise CannotLook("compressed bytes that are none") from wrong
