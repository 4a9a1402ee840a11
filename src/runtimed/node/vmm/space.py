"""Decides whether the host's disk has room, before anything is written to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from runtimed.core.errors import NoCapacity
from runtimed.node.vmm import difference
from runtimed.node.vmm.argv import MEMORY
from runtimed.node.vmm.base import Template

DISK_KEEP_FREE_BYTES = 512 << 20
"""Nothing is begun that would leave less than this on the host's disk."""


def check_room(folder: Path, bytes_more: int) -> None:
    """Raises NoCapacity."""
    free = shutil.disk_usage(folder).free
    if free - bytes_more < DISK_KEEP_FREE_BYTES:
        raise NoCapacity(
            f"{free >> 20} MiB are free on the host's disk: {bytes_more >> 20} MiB are needed and "
            f"{DISK_KEEP_FREE_BYTES >> 20} MiB must stay free",
            hint="Free disk space on the host, or move the state folder with RUNTIME_STATE_DIR.",
            retry_after_ms=5000,
        )


def check_room_for_memory(folder: Path, pid: int, template: Template) -> None:
    """The same for what a running machine owns; it is only measured where a quick look does not rule trouble out.

    Raises:
        NoCapacity; OSError when the process is gone.
    """
    if shutil.disk_usage(folder).free - _at_most_bytes(pid) >= DISK_KEEP_FREE_BYTES:
        return
    memory = difference.spans(pid, (template.directory / MEMORY).stat().st_ino)
    check_room(folder, sum(run.length for run in difference.owned(pid, memory)))


def _at_most_bytes(pid: int) -> int:
    """All that the process has of its own, the emulator's own memory included."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(words[1]) << 10 for words in lines if words and words[0] in ("RssAnon:", "VmSwap:"))
