"""Reads HTTP/1 messages so that nothing can hide between them: bytes in, heads and untouched body bytes out. Pure.

What two readers could understand differently (two lengths, odd line ends, folded lines, a space before a colon) is
refused instead of understood. Body bytes come out exactly as they came in, chunk frames included.

    head --complete--> body (length | chunked | until close | none) --end--> head of the next message
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_MAX_BYTES = 64 * 1024
"""A request line and its headers, together: what large cookies and signed URLs need, and no more."""
HEADERS_MAX = 200
LINE_MAX_BYTES = 1024
"""A chunk's size line, or one trailer."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VALUE = re.compile(rb"[\x21-\x7e\x80-\xff](?:[\t \x21-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?|")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [\t \x21-\x7e\x80-\xff]*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t \x21-\x7e\x80-\xff]*)?")
_CHUNK_PADDED = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t \x21-\x7e\x80-\xff]*)?")
_NOT_IN_TRAILERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"te", b"trailer", b"expect"}
)
_TAKEN_FOR_FRAMING = frozenset({b"content_length", b"transfer_encoding"})
_BLANK = b"\r\n\t "
_LINE_END = re.compile(rb"[\r\n]")
_WORD = re.compile(rb"[^\s\0]*")
_VERSION = re.compile(rb"HTTP/[0-9]", re.IGNORECASE)
_BARE = re.compile(rb"(?<!\r)\n")
_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ")
_DAV = (b"PROPFIND ", b"REPORT ", b"MKCOL ", b"COPY ", b"MOVE ", b"LOCK ", b"UNLOCK ", b"PROPPATCH ", b"SEARCH ")
_USUAL = (*_METHODS, *_DAV)
_METHOD_MAX_BYTES = max(len(method) for method in _USUAL)
_VERSION_BYTES = len(b"HTTP/")


class BadMessage(Exception):
    """Not HTTP/1 that every reader understands alike; the text says why."""


Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The start of a message with its headers in order, names as they were written."""

    headers: Headers
    minor: int

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header, its name given in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: bytes) -> bytes | None:
        """The header's only value; None when it is missing. Raises BadMessage when it is there twice."""
        found = self.all(name)
        if len(found) > 1:
            raise BadMessage(f"{name.decode('latin-1')} twice")
        return found[0] if found else None

    def tokens(self, name: bytes) -> set[bytes]:
        return {token.strip().lower() for value in self.all(name) for token in value.split(b",")}


@dataclass(frozen=True, kw_only=True)
class RequestHead(Head):
    method: bytes
    target: bytes


@dataclass(frozen=True, kw_only=True)
class ResponseHead(Head):
    status: int
    line: bytes


@dataclass(frozen=True)
class Body:
    """`raw` as it was on the wire; `content` without chunk frames."""

    raw: bytes
    content: bytes


class End:
    """The message is complete."""


HttpEvent = RequestHead | ResponseHead | Body | End


def could_be_http(data: bytes) -> bool:
    """Whether these first bytes are, or can still become, an HTTP/1 request with a usual method."""
    return any(data.startswith(m) or m.startswith(data) for m in _USUAL)


def is_request(data: bytes) -> bool | None:
    """Whether a server would take these first bytes of a connection for an HTTP/1 request; None while it is open."""
    return FirstLine().take(data)


class FirstLine:
    """Judges the first line of a connection as its bytes come, and keeps next to nothing of it, however long it is.

    Servers skip empty lines before a request, many take any word for a method, and some read lines of a MiB.
    """

    def __init__(self) -> None:
        self._found: bool | None = None
        self._begins = b""
        """As much of it as the longest usual method has."""
        self._in_word, self._says_http = True, False
        self._tail = b""
        """The newest bytes behind the word, in which a version may have begun."""

    def take(self, data: bytes) -> bool | None:
        """Whether it is that of an HTTP/1 request, now that these bytes have come too; None while it is open."""
        if self._found is None:
            text, *beyond = _LINE_END.split(data if self._begins else data.lstrip(_BLANK), maxsplit=1)
            self._found = self._judge(text, ends=bool(beyond))
        return self._found

    def _judge(self, text: bytes, *, ends: bool) -> bool | None:
        new = not self._begins
        self._begins = (self._begins + text)[:_METHOD_MAX_BYTES]
        if self._begins.startswith(_USUAL):
            return True
        if self._in_word:
            word = _WORD.match(text)
            assert word is not None
            text = text[word.end() :]
            if text and (text.startswith(b"\0") or (new and not word[0])):
                return False
            self._in_word = not text
        if text:
            seen = self._tail + text
            self._says_http = self._says_http or _VERSION.search(seen) is not None
            self._tail = seen[-_VERSION_BYTES:]
        return self._says_http if ends else None


def has_body(head: RequestHead) -> bool:
    """Whether a body follows this request."""
    return bool(head.all(b"transfer-encoding")) or head.one(b"content-length") not in (None, b"0")


def has_no_body(method: bytes, head: ResponseHead) -> bool:
    """Whether no body follows, whatever the headers say."""
    return head.status < 200 or head.status in (204, 304) or method == b"HEAD"


def encode_head(first_line: bytes, headers: Headers) -> bytes:
    return b"".join((first_line, b"\r\n", *(b"%s: %s\r\n" % pair for pair in headers), b"\r\n"))


def request_bytes(head: RequestHead) -> bytes:
    return encode_head(b"%s %s HTTP/1.%d" % (head.method, head.target, head.minor), head.headers)


def response_bytes(head: ResponseHead) -> bytes:
    return encode_head(head.line, head.headers)


class MessageReader:
    """One direction of a connection. Feed bytes, then ask for events until there is None."""

    def __init__(self) -> None:
        self._in = bytearray()
        self._searched = 0
        """So many bytes hold no end of a head: those that come one by one are looked at once."""
        self._left: int | None = None
        """Bytes of the body still to come; None while a head is awaited."""
        self._chunked = False
        self._in_trailers = False
        self._trailers = 0
        self._chunk_ends = False
        self._until_close = False
        self._closed = False

    def feed(self, data: bytes) -> None:
        self._in += data

    def close(self) -> None:
        """No more bytes come."""
        self._closed = True

    def rest(self) -> bytes:
        """Everything that was not read as a message; for when the connection becomes something else."""
        rest, self._in = bytes(self._in), bytearray()
        return rest

    @property
    def buffered(self) -> int:
        return len(self._in)

    def body_event(self) -> Body | End | None:
        """The next piece of the current body; None when more bytes are needed.

        Raises:
            BadMessage: the framing is wrong, or the connection closed in the middle.
        """
        if self._until_close:
            return self._open_ended()
        if self._chunked:
            return self._chunk()
        assert self._left is not None
        if self._left == 0:
            self._left = None
            return End()
        piece = bytes(self._in[: self._left])
        if not piece:
            self._cut()
            return None
        del self._in[: len(piece)]
        self._left -= len(piece)
        return Body(piece, piece)

    def _open_ended(self) -> Body | End | None:
        piece = self.rest()
        if piece:
            return Body(piece, piece)
        if self._closed:
            self._until_close = False
            return End()
        return None

    def _cut(self) -> None:
        if self._closed:
            raise BadMessage("the connection closed in the middle of a body")

    def _chunk(self) -> Body | End | None:
        if self._left:
            piece = bytes(self._in[: self._left])
            if not piece:
                self._cut()
                return None
            del self._in[: len(piece)]
            self._left -= len(piece)
            self._chunk_ends = self._left == 0
            return Body(piece, piece)
        if self._chunk_ends:
            if len(self._in) < 2:
                self._cut()
                return None
            if self._in[:2] != b"\r\n":
                raise BadMessage("a chunk is longer than it says")
            del self._in[:2]
            self._chunk_ends = False
            return Body(b"\r\n", b"")
        line = self._line()
        if line is None:
            return None
        if self._in_trailers:
            if line == b"":
                self._chunked = self._in_trailers = False
                self._left = 0
                return Body(b"\r\n", b"")
            self._trailer(*_header(line))
            return Body(line + b"\r\n", b"")
        size = self._chunk_line.fullmatch(line)
        if size is None:
            raise BadMessage("a chunk without a size")
        self._left = int(size[1], 16)
        self._in_trailers, self._trailers = self._left == 0, 0
        return Body(line + b"\r\n", b"")

    _chunk_line = _CHUNK_PADDED

    def _trailer(self, name: bytes, value: bytes) -> None:
        self._trailers += 1
        if self._trailers > HEADERS_MAX:
            raise BadMessage("too many trailers")

    def _line(self) -> bytes | None:
        end = self._in.find(b"\n")
        if end < 0:
            if len(self._in) > LINE_MAX_BYTES:
                raise BadMessage("a line without end")
            self._cut()
            return None
        if end > LINE_MAX_BYTES or end == 0 or self._in[end - 1] != 0x0D:
            raise BadMessage("a line that does not end as it should")
        line = bytes(self._in[: end - 1])
        del self._in[: end + 1]
        return line

    def _take_head(self) -> list[bytes] | None:
        """The lines of the next head, without their ends."""
        while self._in.startswith(b"\r\n"):
            del self._in[:2]  # RFC 9112 2.2: an empty line before a request is skipped.
            self._searched = 0
        end = self._in.find(b"\r\n\r\n", self._searched)
        if _BARE.search(self._in, self._searched, end if end >= 0 else len(self._in)):
            raise BadMessage("a line that does not end as it should")
        self._searched = max(0, len(self._in) - 3) if end < 0 else 0
        if end < 0:
            if len(self._in) > HEAD_MAX_BYTES:
                raise BadMessage("the head is too long")
            if self._closed and self._in:
                raise BadMessage("the connection closed in the middle of a head")
            return None
        if end > HEAD_MAX_BYTES:
            raise BadMessage("the head is too long")
        lines = bytes(self._in[:end]).split(b"\r\n")
        del self._in[: end + 4]
        if any(b"\n" in line or b"\r" in line or b"\0" in line for line in lines):
            raise BadMessage("a line that does not end as it should")
        if len(lines) - 1 > HEADERS_MAX:
            raise BadMessage("too many headers")
        return lines

    def _frame(self, head: Head, *, response: bool) -> None:
        """Decide how the body ends. Raises BadMessage where two readers could decide differently."""
        codings, lengths = head.all(b"transfer-encoding"), head.all(b"content-length")
        if codings:
            if lengths:
                raise BadMessage("both Content-Length and Transfer-Encoding")
            if len(codings) != 1 or codings[0].lower() != b"chunked" or head.minor == 0:
                raise BadMessage("a Transfer-Encoding other than chunked")
            self._chunked, self._left = True, 0
        elif lengths:
            if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
                raise BadMessage("a Content-Length that is no number, or two of them")
            self._left = int(lengths[0])
        elif response:
            self._until_close, self._left = True, None
        else:
            self._left = 0


class RequestReader(MessageReader):
    """Requests of a client: stricter, since servers read them in many ways and the rules in one."""

    _chunk_line = _CHUNK

    def _trailer(self, name: bytes, value: bytes) -> None:
        super()._trailer(name, value)
        if name.lower() in _NOT_IN_TRAILERS:
            raise BadMessage(f"{name.decode('latin-1')} after the body")

    def head(self) -> RequestHead | None:
        """The next request's head; None when more bytes are needed. Then read its body to the end."""
        lines = self._take_head()
        if lines is None:
            return None
        parts = lines[0].split(b" ")
        if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
            raise BadMessage("not a request line")
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise BadMessage("not HTTP/1")
        head = RequestHead(
            method=parts[0],
            target=parts[1],
            minor=int(parts[2][-1:]),
            headers=tuple(_header(line) for line in lines[1:]),
        )
        if head.one(b"host") is None and head.minor == 1:
            raise BadMessage("no Host")
        if any(name.lower() in _TAKEN_FOR_FRAMING for name, _ in head.headers):
            raise BadMessage("a header that some servers take for the body's length")
        self._frame(head, response=False)
        return head


class ResponseReader(MessageReader):
    """Responses of a server, each to a request whose method is known."""

    def head(self, method: bytes) -> ResponseHead | None:
        """The next response's head; a 1xx has no body and another head follows, but after a 101 none does."""
        lines = self._take_head()
        if lines is None:
            return None
        start = _STATUS.fullmatch(lines[0])
        if start is None or start[2] < b"100":
            raise BadMessage("not a status line")
        head = ResponseHead(
            status=int(start[2]),
            line=lines[0],
            minor=int(start[1]),
            headers=tuple(_header(line) for line in lines[1:]),
        )
        self._frame(head, response=True)  # Refuses what contradicts itself also where no body follows.
        if has_no_body(method, head):
            self._chunked, self._until_close, self._left = False, False, 0
        return head


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadMessage("a header that is none")
    return name, value
