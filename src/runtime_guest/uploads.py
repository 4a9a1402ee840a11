"""Receives large files in checked chunks, in any order, beside the file that they will replace."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from bisect import insort

from runtime_guest.errors import GuestError
from runtime_guest.files import Staging

FORGOTTEN_S = 3600.0
"""An upload that nobody touched for so long is given up."""
UPLOADS_MAX = 64


class Upload:
    """One file on its way. Its methods that block say so."""

    def __init__(self, staging: Staging, size: int, user: str) -> None:
        self.staging, self.size, self.user = staging, size, user
        self.touched = time.monotonic()
        self.busy = 0
        """Chunks being written: it must not be committed or dropped under them."""
        self._ranges: list[tuple[int, int]] = []

    def put(self, offset: int, data: bytes) -> None:
        """Blocks. Write at its place; the same bytes twice are once. Raises OSError."""
        view, at = memoryview(data), offset
        while len(view):
            written = os.pwrite(self.staging.fd, view, at)
            view, at = view[written:], at + written

    def came(self, start: int, end: int) -> None:
        """Remember that these bytes are there."""
        insort(self._ranges, (start, end))
        merged: list[tuple[int, int]] = []
        for low, high in self._ranges:
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self._ranges = merged

    def missing(self) -> int | None:
        """Position of the first byte that has not come; None when all have."""
        if self.size == 0:
            return None
        if not self._ranges or self._ranges[0][0] > 0:
            return 0
        return self._ranges[0][1] if self._ranges[0][1] < self.size else None

    def commit(self, sha256: str | None) -> None:
        """Blocks. Check the digest and put the file in place. After OSError or GuestError it can be tried again."""
        os.ftruncate(self.staging.fd, self.size)
        if sha256 is not None:
            digest, at = hashlib.sha256(), 0
            while data := os.pread(self.staging.fd, 1 << 20, at):
                digest.update(data)
                at += len(data)
            if digest.hexdigest() != sha256.lower():
                raise GuestError(
                    "upload_incomplete", f"{self.staging.path}: the bytes that came have another SHA-256 digest",
                    path=self.staging.path, sha256=digest.hexdigest(),
                )  # fmt: skip
        self.staging.commit(durable=False)


class Uploads:
    """All uploads under way, by the host's ids."""

    def __init__(self) -> None:
        self._uploads: dict[str, Upload] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def get(self, upload_id: str) -> Upload:
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise GuestError("upload_not_found", "there is no such upload", uploadId=upload_id)
        upload.touched = time.monotonic()
        return upload

    def find(self, upload_id: str) -> Upload | None:
        return self._uploads.get(upload_id)

    def check_room(self) -> None:
        if len(self._uploads) >= UPLOADS_MAX:
            raise GuestError("guest_busy", f"{UPLOADS_MAX} uploads are under way already")

    def add(self, upload_id: str, upload: Upload) -> None:
        self._uploads[upload_id] = upload
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(FORGOTTEN_S, self._drop_forgotten)

    def drop(self, upload_id: str) -> Upload | None:
        return self._uploads.pop(upload_id, None)

    def _drop_forgotten(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for upload_id, upload in list(self._uploads.items()):
            if now - upload.touched >= FORGOTTEN_S and not upload.busy:
                del self._uploads[upload_id]
                upload.staging.abort()
        if self._uploads:
            self._sweep = asyncio.get_running_loop().call_later(FORGOTTEN_S / 2, self._drop_forgotten)
