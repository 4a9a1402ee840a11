"""What the gateway forwards is read by another reader of HTTP/1, h11, as the gateway read it: so no rule is judged
on another request than the server answers."""

from __future__ import annotations

import h11
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimed.egress.http1 import BadMessage, Body, End, RequestReader, ResponseReader, request_bytes

Read = list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]]


def ours(data: bytes) -> tuple[Read, bytes, bool]:
    """The requests, what goes on to the server, and whether all of it was read."""
    reader, found, forwarded = RequestReader(), [], b""
    reader.feed(data)
    try:
        while (head := reader.head()) is not None:
            content, raw = b"", request_bytes(head)
            while not isinstance(event := reader.body_event(), End):
                if event is None:
                    return found, forwarded, True
                assert isinstance(event, Body)
                content, raw = content + event.content, raw + event.raw
            found.append((head.method, head.target, [(n.lower(), v) for n, v in head.headers], content))
            forwarded += raw
    except BadMessage:
        return found, forwarded, False
    return found, forwarded, True


def theirs(data: bytes) -> tuple[Read, str | None]:
    """The requests by h11, and why it stopped."""
    connection, found = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), []
    connection.receive_data(data)
    try:
        while isinstance(request := connection.next_event(), h11.Request):
            content = b""
            while isinstance(event := connection.next_event(), h11.Data):
                content += bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                return found, "in the middle"
            found.append((request.method, request.target, [(n, v) for n, v in request.headers], content))
            connection.send(
                h11.Response(
                    status_code=400,  # Not 200: a CONNECT is no tunnel here.
                    headers=[("content-length", "0")],
                )
            )
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return found, "closes"
            connection.start_next_cycle()
    except h11.RemoteProtocolError as wrong:
        return found, str(wrong)
    return found, None


SPACES = st.sampled_from([b" "] * 40 + [b"  ", b"\t", b"", b"\x0b"])
ENDS = st.sampled_from([b"\r\n"] * 60 + [b"\n", b"\r", b"\r\r\n", b"\r\n ", b"\0\r\n"])
METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD"] * 8 + [b"get", b"FOO", b"CONNECT", b"G(T", b""])
TARGETS = st.sampled_from(
    [b"/"] * 40
    + [b"/a?b=c#d", b"*", b"http://b/x", b"//b/x", b"a:443", b"/\x80", b"/\x7f", b"/ x", b"", b"/%zz", b"?x"]
)
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 40 + [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.10", b""])
NAMES = st.sampled_from(
    [
        *(
            b"Host",
            b"Content-Length",
            b"content-length",
            b"Transfer-Encoding",
            b"transfer-encoding",
            b"X",
            b"Connection",
        ),
        *(
            b"Expect",
            b"Upgrade",
            b"Content-Length ",
            b" Transfer-Encoding",
            b"Transfer_Encoding",
            b"Trailer",
            b"TE",
            b"",
        ),
        *(b"X\xe9", b"Transfer-Encoding\x00", b"Content-Length:"),
    ]
)
VALUES = st.sampled_from(
    [
        *(
            b"a",
            b"b",
            b"5",
            b"05",
            b"+5",
            b"5, 5",
            b"5,6",
            b"0",
            b"-1",
            b"5 ",
            b"0x5",
            b"9" * 25,
            b"",
            b"\x0b5",
            b"1_0",
        ),
        *(
            b"chunked",
            b"CHUNKED",
            b" chunked ",
            b"chunked, chunked",
            b"gzip, chunked",
            b"chunked, identity",
            b"identity",
        ),
        *(b"xchunked", b"\x0bchunked", b"chunked;q=1", b'"chunked"', b"close", b"keep-alive", b"100-continue", b"\xb2"),
        *(b"a\r\n b", b"a\rb", b"a\0b", b"a, b", b"a:80", b"u@a", b"websocket"),
    ]
)
PIECES = st.sampled_from(
    [
        *(
            b"0\r\n\r\n",
            b"5\r\nhello\r\n",
            b"5;x=y\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b" 5\r\nhello\r\n",
            b"5\nhello\n",
        ),
        *(b"5;a\rb\r\nhello\r\n", b"5;\0\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5\r\nhelloX\r\n", b"+5\r\nhello\r\n"),
        *(
            b"00000000000000000005\r\nhello\r\n",
            b"0\r\nX: y\r\n\r\n",
            b"0\r\nContent-Length: 9\r\n\r\n",
            b"0\r\nX y\r\n\r\n",
        ),
        *(
            b"0;x\r\n\r\n",
            b"0\n\n",
            b"5_0\r\n",
            b"hello",
            b"\r\n",
            b"GET /s HTTP/1.1\r\nHost: s\r\n\r\n",
            b"\n",
            b"f\r\n",
        ),
    ]
)
HEADER = st.one_of(
    st.sampled_from([b"X: y\r\n"] * 8 + [b"Host: a\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n"]),
    st.builds(lambda n, v, e: n + b":" + v + e, NAMES, VALUES, ENDS),
)
BODY = st.lists(PIECES, max_size=3).map(b"".join)
CHUNKED = st.one_of(BODY, st.lists(PIECES, max_size=2).map(lambda pieces: b"".join(pieces) + b"0\r\n\r\n"))
FRAMED = st.one_of(
    st.builds(lambda b: b"Transfer-Encoding: chunked\r\n\r\n" + b, CHUNKED),
    st.builds(lambda b: b"Content-Length: %d\r\n\r\n" % len(b) + b, BODY),
    st.builds(lambda e, b: e + b, ENDS, BODY),
)
MESSAGE = st.builds(
    lambda m, t, v, gap, headers, rest: m + gap + t + b" " + v + b"\r\n" + b"".join(headers) + rest,
    METHODS,
    TARGETS,
    VERSIONS,
    SPACES,
    st.lists(HEADER, max_size=2).map(lambda headers: [b"Host: a\r\n", *headers]),
    FRAMED,
)
TALK = st.lists(MESSAGE, min_size=1, max_size=3).map(b"".join)


@settings(max_examples=300)
@given(TALK)
def test_what_is_forwarded_is_read_by_h11_as_the_gateway_read_it(data: bytes) -> None:
    read, forwarded, _ = ours(data)
    their_read, why = theirs(forwarded)
    if why is not None:
        # It ends a connection that the gateway ends too, or is stricter about a target that is forwarded as it is.
        stops = read[len(their_read) :]
        assert why == "closes" or not stops or any(byte > 0x7E for byte in stops[0][1]) or b"CONNECT" == stops[0][0], (
            why
        )
        read = read[: len(their_read)]
    assert read == their_read


@settings(max_examples=300)
@given(TALK)
def test_what_h11_refuses_is_refused_or_forwarded_in_a_form_that_it_reads_alike(data: bytes) -> None:
    their_read, why = theirs(data)
    read, _, _ = ours(data)
    if why in (None, "closes", "in the middle", "no request line received"):
        return  # The last is an empty line before a request, which does not go on.
    # Of what came before the refusal at most as much was read; the one that h11 refuses is not among it.
    beyond = read[len(their_read) :]
    assert not beyond or any(byte > 0x7E for byte in beyond[0][1]), (why, beyond)


STATUS = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 20 + [b"HTTP/1.0 200 OK", b"HTTP/1.1 204 N", b"HTTP/1.1 099 x", b"HTTP/1.1 200"]
)
ANSWER = st.builds(
    lambda status, headers, rest: status + b"\r\n" + b"".join(headers) + rest,
    STATUS,
    st.lists(HEADER, max_size=2),
    FRAMED,
)


@settings(max_examples=300)
@given(ANSWER)
def test_an_answer_that_goes_to_a_program_is_read_by_h11_as_the_gateway_read_it(data: bytes) -> None:
    reader, content = ResponseReader(), b""
    reader.feed(data)
    reader.close()
    try:
        head = reader.head(b"GET")
        while head is not None and not isinstance(event := reader.body_event(), End):
            assert isinstance(event, Body)
            content += event.content
    except BadMessage:
        return
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    their_head, their_content = client.next_event(), b""
    while isinstance(event := client.next_event(), h11.Data):
        their_content += bytes(event.data)

    assert head is not None and isinstance(their_head, h11.Response)
    assert (their_head.status_code, their_content) == (head.status, content)
    assert isinstance(event, h11.EndOfMessage)
