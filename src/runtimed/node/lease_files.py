"""Writes down until when each machine may run, for the guard, which ends what is past that when the service is dead."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path


class LeaseFiles:
    """One small file a machine: its folder, and its end on the clock that counts since the host's start."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, machine_id: str, directory: Path, ends_in_s: float) -> None:
        """Set or move the end. Idempotent."""
        ends_at_s = time.clock_gettime(time.CLOCK_BOOTTIME) + max(ends_in_s, 0.0)
        temporary = self._root / f".{machine_id}"
        temporary.write_text(json.dumps({"directory": str(directory), "ends_at_s": ends_at_s}))
        os.replace(temporary, self._root / machine_id)

    def remove(self, machine_id: str) -> None:
        """Idempotent."""
        (self._root / machine_id).unlink(missing_ok=True)

    def clear_all_but(self, machine_ids: Iterable[str]) -> None:
        kept = set(machine_ids)
        for path in self._root.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def past(self, grace_s: float) -> list[tuple[str, Path]]:
        """Machines whose end was more than `grace_s` seconds ago, with their folders."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        found = []
        for path in self._root.iterdir():
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                lease = json.loads(path.read_text())
                if float(lease["ends_at_s"]) + grace_s < now_s:
                    found.append((path.name, Path(lease["directory"])))
        return found


def has_leases(root: Path) -> bool:
    """Whether a machine has one. A folder that is gone is left so."""
    try:
        return any(not path.name.startswith(".") for path in root.iterdir())
    except FileNotFoundError:
        return False
