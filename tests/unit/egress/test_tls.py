"""A ClientHello is read as far as it shows its name, whatever the pieces it comes in."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.egress import tls


def hello_of(name: str | None, alpn: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = hello_of("api.example.test")


def test_a_real_hello_shows_its_name_and_protocols() -> None:
    hello = tls.read_client_hello(HELLO)

    assert hello == tls.ClientHello(server_name="api.example.test", alpn=("h2", "http/1.1"))


def test_a_hello_without_a_name_has_none() -> None:
    hello = tls.read_client_hello(hello_of(None))

    assert hello is not None and hello.server_name is None


@given(st.integers(0, len(HELLO) - 1))
def test_a_part_of_a_hello_asks_for_more(size: int) -> None:
    assert tls.read_client_hello(HELLO[:size]) is None


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_a_hello_cut_into_records_is_the_same_hello(sizes: list[int]) -> None:
    message, cut, at = HELLO[5:], b"", 0
    for size in [*sizes, len(message)]:
        piece = message[at : at + size]
        at += len(piece)
        if piece:
            cut += HELLO[:3] + len(piece).to_bytes(2, "big") + piece

    assert tls.read_client_hello(cut) == tls.read_client_hello(HELLO)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (data, HELLO[:5] + data, HELLO[:40] + data):
        try:
            tls.read_client_hello(start)
        except tls.NotTls:
            pass


@given(st.integers(5, len(HELLO) - 1), st.integers(1, 255))
def test_a_hello_with_a_changed_byte_is_read_or_refused(at: int, change: int) -> None:
    changed = bytearray(HELLO)
    changed[at] ^= change
    try:
        tls.read_client_hello(bytes(changed))
    except tls.NotTls:
        pass


def test_two_names_are_refused() -> None:
    names = b"\0\0\3a.b\0\0\3c.d"
    extension = b"\0\0" + (len(names) + 2).to_bytes(2, "big") + len(names).to_bytes(2, "big") + names
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extension).to_bytes(2, "big") + extension
    message = b"\1" + len(body).to_bytes(3, "big") + body

    with pytest.raises(tls.NotTls, match="two"):
        tls.read_client_hello(b"\x16\3\1" + len(message).to_bytes(2, "big") + message)


@pytest.mark.parametrize("minor", [0, 5, 9, 255])
def test_a_record_of_any_minor_version_shows_its_name_since_servers_look_at_no_minor_version(minor: int) -> None:
    hello = HELLO[:2] + bytes((minor,)) + HELLO[3:]

    assert tls.looks_like_tls(hello) and tls.read_client_hello(hello) == tls.read_client_hello(HELLO)


@pytest.mark.parametrize(
    "start",
    [b"\x15\3\1\0\2\1\0", b"\x14\3\3\0\1\1", HELLO[:1] + b"\0" + HELLO[2:], HELLO[:1] + b"\x0f" + HELLO[2:]],
    ids=["alert", "change of ciphers", "major 0", "major 15"],
)
def test_what_some_servers_let_go_before_a_hello_is_refused(start: bytes) -> None:
    """Passed on as if it were no TLS, the name behind it would be judged by nobody."""
    assert all(tls.looks_like_tls(start[:size]) for size in range(1, 7))
    with pytest.raises(tls.NotTls):
        tls.read_client_hello(start + HELLO)


@pytest.mark.parametrize("data", [b"\x16\1\0\0\7\0\0\0", b"\x15\0", b"\x14\0\5", b"\x16\x10\1\0\0\1\0"])
def test_other_protocols_that_begin_alike_are_no_tls(data: bytes) -> None:
    assert not tls.looks_like_tls(data)


def test_http_is_not_tls() -> None:
    with pytest.raises(tls.NotTls):
        tls.read_client_hello(b"GET / HTTP/1.1\r\n")
