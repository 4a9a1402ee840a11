"""Reads a TLS ClientHello: bytes in, the name, ALPN and ECH that it shows out. Bounded; decrypts nothing.

need more bytes --whole hello--> ClientHello
                --anything else--> NotTls
"""

from __future__ import annotations

from dataclasses import dataclass

HELLO_MAX_BYTES = 32 * 1024
"""Largest ClientHello read: real ones, with post-quantum key shares, have about 2 KiB."""
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SNI, _ALPN, _ECH = 0, 16, 0xFE0D
_HEADER, _CLEAR_BYTES = 5, 7
_BEFORE_HELLO = {b"\x14": (20, 3, None, 0, 1), b"\x15": (21, 3, None, 0, 2)}
"""First bytes of a change of ciphers and of an alert."""
ACCESS_DENIED = bytes((21, 3, 1, 0, 2, 2, 49))
"""The alert record, fatal access_denied, that tells a TLS client it was refused."""
NAME_NOT_AGREED = bytes((21, 3, 1, 0, 2, 2, 112))
"""The same for unrecognized_name."""


class NotTls(Exception):
    """These bytes begin no TLS connection that could be judged."""


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """`server_name` as the client wrote it, not yet checked to be a name."""

    server_name: str | None
    alpn: tuple[str, ...] = ()
    encrypted: bool = False
    """It has Encrypted Client Hello: the name that it shows need not be the one it wants."""


def looks_like_tls(data: bytes) -> bool:
    """Whether a server could take the first bytes, however few, for the start of TLS.

    Servers look at little of a first record: any minor version will do, some take any major one, and some let an
    alert or a change of ciphers go before the ClientHello. Such a start is no ClientHello for us, and is refused.
    """
    if data[:1] in _BEFORE_HELLO:
        alike = _BEFORE_HELLO[data[:1]]
        return all(wanted in (None, byte) for wanted, byte in zip(alike, data, strict=False))
    if data[:1] != bytes((_HANDSHAKE,)) or data[1:2] > b"\x0f":
        return False
    return data[1:2] in (b"", b"\3") or (data[5:6] in (b"", b"\1") and data[6:7] in (b"", b"\0"))


def _is_handshake(data: bytes) -> bool:
    """Whether these bytes begin a record of a handshake, or can still do so."""
    return data[:1] == bytes((_HANDSHAKE,)) and data[1:2] in (b"", b"\3")


def read_client_hello(data: bytes) -> ClientHello | None:
    """None while more bytes are needed.

    Raises:
        NotTls: this is no ClientHello, or one that is malformed or too long.
    """
    message = _handshake(data)
    if message is None:
        return None
    try:
        return _parse(message)
    except (IndexError, UnicodeDecodeError) as wrong:
        raise NotTls("a malformed ClientHello") from wrong


def _handshake(data: bytes) -> bytes | None:
    """The ClientHello message, put together from as many records as it was cut into."""
    found, at = bytearray(), 0
    while True:
        if len(found) >= 4:
            if found[0] != _CLIENT_HELLO:
                raise NotTls("not a ClientHello")
            size = int.from_bytes(found[1:4], "big")
            if size > HELLO_MAX_BYTES:
                raise NotTls("too long")
            if len(found) >= 4 + size:
                return bytes(found[4 : 4 + size])
        rest = data[at:]
        if rest and not _is_handshake(rest):
            if at == 0 and len(rest) < _CLEAR_BYTES and looks_like_tls(rest):
                return None
            raise NotTls("not a handshake record")
        if len(rest) < _HEADER:
            return None
        length = int.from_bytes(rest[3:5], "big")
        if length == 0 or length > 16384 + 256:
            raise NotTls("a record of an impossible length")
        if len(rest) < _HEADER + length:
            if len(found) >= 4 or len(rest) < _HEADER + 1 or rest[_HEADER] == _CLIENT_HELLO:
                return None
            raise NotTls("not a ClientHello")
        found += rest[_HEADER : _HEADER + length]
        at += _HEADER + length


class _Cursor:
    """Reads forwards through bytes; reading past the end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> _Cursor:
        """What a length of `size` bytes announces."""
        return _Cursor(self.take(self.number(size)))

    @property
    def left(self) -> int:
        return len(self.data) - self.at


def _parse(message: bytes) -> ClientHello:
    body = _Cursor(message)
    body.take(2 + 32)
    body.block(1)
    body.block(2)
    body.block(1)
    name: str | None = None
    alpn: tuple[str, ...] = ()
    encrypted = False
    seen: set[int] = set()
    extensions = body.block(2) if body.left else _Cursor(b"")
    if body.left:
        raise IndexError
    while extensions.left:
        kind = extensions.number(2)
        if kind in seen:
            raise NotTls("an extension twice")
        seen.add(kind)
        content = extensions.block(2)
        if kind == _SNI:
            name = _server_name(content)
        elif kind == _ALPN:
            alpn = _protocols(content)
        elif kind == _ECH:
            encrypted = True
    return ClientHello(server_name=name, alpn=alpn, encrypted=encrypted)


def _server_name(content: _Cursor) -> str | None:
    names = content.block(2)
    found: str | None = None
    while names.left:
        kind, name = names.number(1), names.block(2)
        if kind == 0:
            if found is not None:
                raise NotTls("two server names")
            found = name.data.decode("ascii")
    return found


def _protocols(content: _Cursor) -> tuple[str, ...]:
    found, names = [], content.block(2)
    while names.left:
        found.append(names.block(1).data.decode("ascii", "replace"))
    return tuple(found)
