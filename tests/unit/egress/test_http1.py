"""HTTP/1 messages come out as they went in, and what two readers could understand differently is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.egress.http1 import (
    BadMessage,
    Body,
    End,
    FirstLine,
    RequestReader,
    ResponseReader,
    could_be_http,
    is_request,
    request_bytes,
)

GET = b"GET /a?b=c HTTP/1.1\r\nHost: a.test\r\nX-Odd-CASE:  v \r\n\r\n"


def read_all(data: bytes, *, step: int = 1 << 20):
    """Every request in the data: (method, target, raw body, content)."""
    reader, found, at = RequestReader(), [], 0
    while True:
        head = reader.head()
        if head is None:
            if at >= len(data):
                return found, reader
            reader.feed(data[at : at + step])
            at += step
            continue
        raw = content = b""
        while not isinstance(event := reader.body_event(), End):
            if event is None:
                reader.feed(data[at : at + step])
                if at >= len(data):
                    reader.close()
                at += step
            else:
                assert isinstance(event, Body)
                raw, content = raw + event.raw, content + event.content
        found.append((head, raw, content))


def test_a_request_comes_out_as_it_went_in_but_for_blanks_around_values() -> None:
    [(head, raw, _)], _ = read_all(GET)

    assert request_bytes(head) == GET.replace(b":  v ", b": v") and raw == b""


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 50))
def test_a_chunked_body_is_byte_identical_in_pieces_of_any_size(chunks: list[bytes], step: int) -> None:
    wire = b"".join(b"%x;e=1\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nX-Trailer: t\r\n\r\n"
    post = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + wire

    [(_, raw, content), (second, _, _)], _ = read_all(post + GET, step=step)

    assert (raw, content, second.target) == (wire, b"".join(chunks), b"/a?b=c")


@given(st.binary(max_size=200), st.integers(1, 50))
def test_a_body_of_known_length_ends_where_it_says(body: bytes, step: int) -> None:
    post = b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)

    [(_, raw, _), (second, _, _)], _ = read_all(post + body + GET, step=step)

    assert raw == body and second.method == b"GET"


SMUGGLED = [
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    b"G\tET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    b"GET /" + b"a" * 70000,
    b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n",
    b"GET / HTTP/1.1\r\nHost: a\n\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nCONTENT_LENGTH: 5\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("data", SMUGGLED)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    for step in (1 << 20, 1):
        with pytest.raises(BadMessage):
            read_all(data, step=step)


@pytest.mark.parametrize(
    "body",
    [
        *(b"5\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n", b"-5\r\n", b"\r\n", b"5 5\r\nhello", b"z\r\n"),
        *(b" 5\r\nhello\r\n", b"5 \r\nhello\r\n", b"5 ;a\r\nhello\r\n", b"5;a\rb\r\nhello\r\n", b"5;\0\r\nhello\r\n"),
        *(b"0x5\r\nhello\r\n", b"5_0\r\n", b"1" * 16 + b"\r\n", b"0\r\nX y\r\n\r\n", b"0\r\n folded: x\r\n\r\n"),
        *(b"0\r\nContent-Length: 9\r\n\r\n", b"0\r\ntransfer-encoding: chunked\r\n\r\n", b"0\r\nHOST: b\r\n\r\n"),
        b"0\r\n" + b"X: y\r\n" * 201 + b"\r\n",
    ],
)
def test_bad_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (data, GET + data, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data):
        try:
            read_all(start)
        except BadMessage:
            pass


def test_a_response_without_a_length_lasts_until_the_end() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    head = reader.head(b"GET")

    assert head is not None and head.status == 200
    assert reader.body_event() == Body(b"abc", b"abc") and reader.body_event() is None
    reader.close()
    assert isinstance(reader.body_event(), End)


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304), (b"GET", 103)])
def test_some_responses_have_no_body_whatever_they_say(method: bytes, status: int) -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)

    assert reader.head(method) is not None
    assert isinstance(reader.body_event(), End)


def test_a_padded_chunk_of_a_server_passes_as_old_servers_write_it() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5   \r\nhello\r\n0\r\n\r\n")
    assert reader.head(b"GET") is not None
    events = []
    while not isinstance(event := reader.body_event(), End):
        assert isinstance(event, Body)
        events.append(event.content)

    assert b"".join(events) == b"hello"


@pytest.mark.parametrize("line", [b"HTTP/1.1 099 X", b"HTTP/1.1 20 X", b"HTTP/1.1  200 X", b"HTTP/2 200 X", b"200 X"])
def test_a_status_line_that_is_none_is_refused(line: bytes) -> None:
    reader = ResponseReader()
    reader.feed(line + b"\r\n\r\n")
    with pytest.raises(BadMessage):
        reader.head(b"GET")


@pytest.mark.parametrize(
    "data",
    [
        *(b"GET / HTTP/1.1\r\n", b"FOO / HTTP/1.1\r\n", b"purge\t/ http/1.1\n", b"\r\nGET ", b"\n \tX / HTTP/1.0\r"),
        *(b"PRI * HTTP/2.0\r\n", b"\xc3\xa4 / HTTP/1.1\n", b"GET /\r\n"),
    ],
)
def test_what_a_server_would_take_for_a_request_is_one(data: bytes) -> None:
    assert is_request(data) is True


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x y\r\n", b"get key\r\n", b"*1\r\n$4\r\n", b"\0\0\0\1", b"EHLO a\r\n", b"\x0b / HTTP/1.1\n"]
)
def test_other_protocols_are_no_requests(data: bytes) -> None:
    assert is_request(data) is False


@pytest.mark.parametrize("data", [b"FOO / HTTP/1.1", b"\r\n", b"hello", b"G", b"A" * 2_000_000, b"\r\n" * 100_000])
def test_it_is_open_until_the_first_line_ends(data: bytes) -> None:
    assert is_request(data) is None


@given(st.binary(max_size=40) | st.from_regex(rb"[\r\n ]{0,3}[A-Z]{0,12}[ \t]?[a-z/ ]{0,9}(HTTP/1)?[\r\n]?"), st.data())
def test_the_first_line_is_judged_alike_however_it_is_cut(text: bytes, drawn: st.DataObject) -> None:
    line, at = FirstLine(), 0
    while at < len(text):
        until = drawn.draw(st.integers(at + 1, len(text)))
        line.take(text[at:until])
        at = until

    assert line.take(b"") is is_request(text)


def test_the_first_bytes_of_a_request_are_recognised() -> None:
    assert could_be_http(b"G") and could_be_http(b"PROPFIND /") and could_be_http(b"CONNECT a:1")
    assert not could_be_http(b"SSH-2.0") and not could_be_http(b"\x16\x03")
