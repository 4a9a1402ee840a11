"""Finds a secret in what a server answers, plain or encoded, across the borders of chunks, and lets none out. Pure."""

from __future__ import annotations

import base64
import itertools
import re
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

ENCODED_LEAST_BYTES = 8
"""An encoded form shorter than this would be found by chance."""
BEGINNING_LEAST_BYTES = 8
"""So much of a secret, or a quarter of it, is taken for its beginning; less may pass before the rest is seen."""
RUN_LEAST_BYTES = 4
"""A run of letters and digits shorter than this is in every other text."""
INFLATED_MAX_BYTES = 64 * 1024
"""Looked at in one step of a compressed answer, so that one that grows without end costs time and no memory."""


class SecretFound(Exception):
    """The answer holds the value of a secret."""


_URL_SAFE = ("", "/", "*", "!*'()", "$&+=:@", ";,/?:@&=+$!*'()#")
"""What encoders of URLs leave as it is, beside letters, digits and `-._~`: those of Python, Java, JavaScript and Go."""
_JSON_HEX = ("", "<>&", "<>&'", "<>&'\"", "<>&'\"+`")
"""What encoders of JSON write as \\u00XX although they need not, so that it is safe in HTML."""


def forms_of(value: str) -> frozenset[bytes]:
    """The value as an answer may hold it: plain, hexadecimal, in base64 at any offset, as in URLs, JSON and HTML."""
    raw = value.encode("ascii")
    encoded = {form.encode() for form in (*_in_urls(value), *_in_json(value), *_in_html(value))}
    encoded |= {raw.hex().encode(), raw.hex().upper().encode(), value.encode("utf-16-le"), value.encode("utf-16-be")}
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw)
        # Characters that depend on neighbours of the value are left out.
        first, bits = (before * 8 + 5) // 6, (before + len(raw)) * 8
        certain = whole[first : bits // 6]
        encoded |= {certain, certain.translate(bytes.maketrans(b"+/", b"-_")), certain.replace(b"/", b"\\/")}
        in_url = urllib.parse.quote(certain, safe="").encode()
        encoded |= {in_url, _lower_escapes(in_url)}
    return frozenset({raw} | {form for form in encoded if len(form) >= ENCODED_LEAST_BYTES})


def _in_urls(value: str) -> Iterator[str]:
    forms = {"".join(f"%{ord(c):02X}" for c in value)}
    for safe in _URL_SAFE:
        once = urllib.parse.quote(value, safe=safe)
        forms |= {once, once.replace("%20", "+"), once.replace("~", "%7E").replace("%20", "+")}
    for form in forms:
        yield form
        yield (lower := _lower_escapes(form.encode()).decode())
        yield form.replace("%", "%25")  # A URL inside a URL.
        yield lower.replace("%", "%25")


def _in_json(value: str) -> Iterator[str]:
    for hexed in _JSON_HEX:
        for digits in ("02x", "02X"):
            written = "".join(f"\\u00{ord(c):{digits}}" if c in hexed else "\\" + c if c in '"\\' else c for c in value)
            yield written
            yield written.replace("/", "\\/")
    for before, digits in itertools.product(("\\u00", "\\x"), ("02x", "02X")):
        yield "".join(f"{before}{ord(c):{digits}}" for c in value)


def _in_html(value: str) -> Iterator[str]:
    for quote, single in itertools.product(("&quot;", "&#34;", '"'), ("&#39;", "&#039;", "&#x27;", "&apos;", "'")):
        for plus in ("+", "&#43;"):
            named = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': quote, "'": single, "+": plus}
            yield "".join(named.get(c, c) for c in value)
    yield "".join(f"&#{ord(c)};" for c in value)
    yield "".join(f"&#x{ord(c):x};" for c in value)
    yield "".join(f"&#x{ord(c):X};" for c in value)


def _lower_escapes(form: bytes) -> bytes:
    parts = form.split(b"%")
    return b"%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


@dataclass(frozen=True)
class Watched:
    """The forms of one value, each under a part of it that is looked for first: one search instead of a hundred."""

    forms: Mapping[bytes, tuple[bytes, ...]]

    @classmethod
    def of(cls, value: str) -> Watched:
        run = max(re.findall("[A-Za-z0-9]+", value), key=len, default="").encode()
        forms = sorted(forms_of(value))
        if len(run) < RUN_LEAST_BYTES:
            return cls({form: (form,) for form in forms})
        alone = {form: (form,) for form in forms if run not in form}
        return cls({run: tuple(form for form in forms if run in form), **alone})


class Guard:
    """Watches one answer. What is probably the beginning of a secret waits until it is clear that it is none."""

    def __init__(self, values: Iterable[str] = (), known: Iterable[Watched] = ()) -> None:
        """Forms are dear to make: those that are `known` already need not be made again."""
        watched = [*known, *(Watched.of(value) for value in values)]
        self._watched = [group for each in watched for group in each.forms.items()]
        self._forms = sorted({form for _, forms in self._watched for form in forms})
        self._remembered = max((len(form) - 1 for form in self._forms), default=0)
        self._passed = b""
        """The newest bytes that went on: a secret may have begun in them."""
        self._held = b""

    def check(self, data: bytes) -> None:
        """Raises SecretFound if these bytes alone, such as a head, hold a secret."""
        for part, forms in self._watched:
            if part in data and any(form in data for form in forms):
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
        self._begun = False

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """In pieces of a bounded size. Raises CannotLook where the bytes are not what they claim."""
        self._begun = self._begun or bool(data)
        more = bool(data)
        try:
            while more:
                piece = self._zlib.decompress(data, INFLATED_MAX_BYTES)
                yield piece
                data = self._zlib.unconsumed_tail
                if self._zlib.eof and self._zlib.unused_data:
                    data = self._zlib.unused_data
                    self._zlib = zlib.decompressobj(wbits=47)
                # A full piece: there may be more of it inside although every byte was taken.
                more = bool(data) or (len(piece) == INFLATED_MAX_BYTES and not self._zlib.eof)
        except zlib.error as wrong:
            raise CannotLook("compressed bytes that are none") from wrong

    def end(self) -> None:
        """Nothing more comes. Raises CannotLook where something is missing: unpacked, it would look whole."""
        if self._begun and not self._zlib.eof:
            raise CannotLook("compressed bytes that end too early")
