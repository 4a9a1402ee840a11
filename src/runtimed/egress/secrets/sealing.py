"""Seals secret values at rest: AES-GCM under a key in a file outside the database, bound to what each value is."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES = 32, 12
_VERSION = b"\x01"


class CannotOpen(Exception):
    """The value was sealed under another key, or was changed."""


class Sealer:
    """Seals and opens. `purpose` ties a sealed value to its place: moved to another secret it does not open."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def seal(self, value: bytes, *, purpose: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return _VERSION + nonce + self._aead.encrypt(nonce, value, purpose.encode())

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        """Raises CannotOpen."""
        if sealed[:1] != _VERSION:
            raise CannotOpen("sealed in an unknown way")
        nonce, rest = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return self._aead.decrypt(nonce, rest, purpose.encode())
        except InvalidTag:
            raise CannotOpen("sealed under another key, or changed since") from None


def load_key(path: Path) -> bytes:
    """The key in the file, made on first use; only its owner can read it.

    Raises:
        CannotOpen: the file does not hold a key.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        key = path.read_bytes()
    else:
        key = os.urandom(KEY_BYTES)
        with os.fdopen(fd, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(fd)
    if len(key) != KEY_BYTES:
        raise CannotOpen(f"{path} does not hold a key of {KEY_BYTES} bytes")
    return key
