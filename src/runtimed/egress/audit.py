"""Writes down every verdict: one JSON line each, in files that rotate, and newest first in memory for who asks.

A line names hosts, ports, rules and byte counts. It never holds a path, a header, a body or a secret's value.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from runtimed.core.clock import iso
from runtimed.core.egress import EgressRecord, Happened
from runtimed.core.ids import SandboxId

FILE_MAX_BYTES = 16 << 20
FILES_KEPT = 8
KEPT_PER_SANDBOX = 1000
"""Newest records of one sandbox in memory; older ones are in the store."""
SANDBOXES_KEPT = 512


@dataclass
class _Kept:
    records: deque[EgressRecord] = field(default_factory=lambda: deque(maxlen=KEPT_PER_SANDBOX))
    next: int = 1


class Audit:
    """The record of one gateway. A disk that is full loses lines on disk, and nothing else."""

    def __init__(self, path: Path | None, *, now_s: Callable[[], float], failed: Callable[[str], None]) -> None:
        self._path, self._now_s, self._failed = path, now_s, failed
        self._file: BinaryIO | None = None
        self._size = 0
        self._of: OrderedDict[SandboxId, _Kept] = OrderedDict()
        self._watchers: list[Callable[[EgressRecord], None]] = []
        self._newest: dict[SandboxId, int] = {}
        self._forgotten = 0

    def go_on_after(self, newest: Mapping[SandboxId, int]) -> None:
        """Number what follows above what an earlier service has numbered. Before the first record."""
        self._newest = dict(newest)

    def write(self, sandbox_id: SandboxId, happened: Happened) -> EgressRecord:
        kept = self._of.get(sandbox_id)
        if kept is None:
            # Of sandboxes that were forgotten one number is left, above which all that come back go on.
            newest = max(self._newest.pop(sandbox_id, 0), self._forgotten)
            kept = self._of[sandbox_id] = _Kept(next=newest + 1)
        self._of.move_to_end(sandbox_id)
        if len(self._of) > SANDBOXES_KEPT:
            _, gone = self._of.popitem(last=False)
            self._forgotten = max(self._forgotten, gone.next - 1)
        record = EgressRecord(sequence=kept.next, at_s=self._now_s(), sandbox_id=sandbox_id, happened=happened)
        kept.next += 1
        kept.records.append(record)
        self._to_disk(record)
        for watcher in list(self._watchers):
            watcher(record)
        return record

    def of(self, sandbox_id: SandboxId, *, after: int = 0, limit: int = 100) -> list[EgressRecord]:
        """A sandbox's records with a higher sequence, oldest first; of more than `limit`, the oldest."""
        kept = self._of.get(sandbox_id)
        return [record for record in kept.records if record.sequence > after][:limit] if kept else []

    def watch(self, told: Callable[[EgressRecord], None]) -> Callable[[], None]:
        """Be told of every record from now on; call what comes back to stop."""
        self._watchers.append(told)
        return lambda: self._watchers.remove(told)

    def _to_disk(self, record: EgressRecord) -> None:
        if self._path is None:
            return
        line = json.dumps({"at": iso(record.at_s), **record.as_json()}, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file is None or self._size + len(line) > FILE_MAX_BYTES:
                self._open(self._path, rotate=self._file is not None)
            assert self._file is not None
            self._file.write(line)
            self._size += len(line)
        except OSError as failure:
            self._failed(f"the egress record cannot be written: {failure}")

    def _open(self, path: Path, *, rotate: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if rotate:
            for number in range(FILES_KEPT - 1, 0, -1):
                older = path.with_suffix(f".{number}.jsonl")
                if older.exists():
                    older.replace(path.with_suffix(f".{number + 1}.jsonl"))
            path.replace(path.with_suffix(".1.jsonl"))
            path.with_suffix(f".{FILES_KEPT}.jsonl").unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "ab", buffering=0)
        self._size = os.fstat(fd).st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
