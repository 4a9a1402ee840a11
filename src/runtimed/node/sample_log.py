"""Keeps usage samples on disk until they are collected: lines of JSON in numbered segments, synced before they count.

    append --> samples-0000000000000007.jsonl (open)
    close_segment --> the next number is opened; older ones wait --> read --> collected (removed)

A start of the service opens a new segment, so that a line torn by a crash is never written after.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimed.core.usage import Sample, Used

_NAME = "samples-{:016d}.jsonl"
_GLOB = "samples-*.jsonl"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What one file holds."""

    path: Path
    samples: tuple[Sample, ...]
    damaged: int
    """Lines that cannot be read or whose hash does not fit: torn by a crash, or changed."""


class SampleLog:
    """The samples of one host. One writer; calls block on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem.split("-")[1]) for path in directory.glob(_GLOB)]
        self._number = max(numbers, default=0) + 1
        self._lines = 0

    def append(self, samples: Sequence[Sample]) -> None:
        """Write and sync. When this returns they outlive the service and the host's crash.

        Raises:
            OSError: some, all or none were written; writing them again, numbered alike, is safe.
        """
        if not samples:
            return
        text = "".join(json.dumps(asdict(sample), separators=(",", ":")) + "\n" for sample in samples)
        new = self._lines == 0
        self._lines += len(samples)
        try:
            with self._open_path().open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            if new:
                self._sync_directory()
        except OSError:
            self.close_segment()  # its last line may be torn: never write after it
            raise

    def close_segment(self) -> None:
        """What was appended so far may be collected. Idempotent while nothing is appended."""
        if self._lines:
            self._number += 1
            self._lines = 0

    def closed(self) -> list[Path]:
        """Segments that nothing is appended to any more, oldest first."""
        return sorted(path for path in self._directory.glob(_GLOB) if path != self._open_path())

    def read(self, path: Path) -> Segment:
        """A segment's samples. Damaged lines are counted, and their use is in the next sample's counters."""
        samples, damaged = list[Sample](), 0
        for line in path.read_bytes().splitlines():
            sample = _sample(line)
            if sample is None:
                damaged += 1
            else:
                samples.append(sample)
        return Segment(path=path, samples=tuple(samples), damaged=damaged)

    def collected(self, path: Path) -> None:
        """Whoever counts has kept these samples: forget them. Idempotent."""
        path.unlink(missing_ok=True)
        self._sync_directory()

    def _open_path(self) -> Path:
        return self._directory / _NAME.format(self._number)

    def _sync_directory(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sample(line: bytes) -> Sample | None:
    try:
        raw = json.loads(line)
        sample = Sample(**{**raw, "counters": Used(**raw["counters"])})
        return sample if sample.intact else None
    except (ValueError, TypeError, KeyError):
        return None
