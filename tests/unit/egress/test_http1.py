"""HTTP/1 messages come out as they went in, and what two readers could understand differently is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.egress.http1 import BadMessage, Body, End, RequestReader, ResponseReader, could_be_http, request_bytes

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
]


@pytest.mark.parametrize("data", SMUGGLED)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read_all(data)


@pytest.mark.parametrize(
    "body", [b"5\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n", b"-5\r\n", b"\r\n", b"5 5\r\nhello", b"z\r\n"]
)
def test_bad_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        read_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)


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


def test_the_first_bytes_of_a_request_are_recognised() -> None:
    assert could_be_http(b"G") and could_be_http(b"PROPFIND /") and could_be_http(b"CONNECT a:1")
    assert not could_be_http(b"SSH-2.0") and not could_be_http(b"\x16\x03")
