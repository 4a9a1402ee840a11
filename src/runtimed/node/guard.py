"""The lease guard: a very small process that ends machines past their lease when the service is not there to do it.

    python -m runtimed.node.guard STATE_DIR

It reads only what the service wrote: leases and the machines' records. It leaves the disks where they are, for the
service to find, and ends by itself when no service runs and no lease is left. One per state folder: it holds
the lock on a file that says its pid, and a service that finds the lock free starts another (`guarding.py`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from runtimed.core import file_lock
from runtimed.node.lease_files import LeaseFiles, has_leases
from runtimed.node.vmm import journal
from runtimed.node.vmm.processes import end

GRACE_S = 5.0
"""The service ends or pauses what is due by itself; the guard comes after it."""
LOOK_EVERY_S = 1.0
SERVICE_LOCK, GUARD_LOCK = "service.lock", "guard.lock"


def main() -> int:
    state = Path(sys.argv[1])
    with file_lock.held_for_life(state / GUARD_LOCK) as lock:
        if lock is None:
            return 0  # there is one
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        _watch(state)
    return 0


def _watch(state: Path) -> None:
    leases = LeaseFiles(state / "leases")
    while True:
        for machine_id, directory in leases.past(GRACE_S):
            end_machine(directory)
            leases.remove(machine_id)
        if not is_needed(state):
            return
        time.sleep(LOOK_EVERY_S)


def is_needed(state: Path) -> bool:
    """Whether there is a lease to watch, or a service that may make one."""
    return has_leases(state / "leases") or service_lives(state)


def end_machine(directory: Path) -> None:
    """Kill the machine's processes, which the record knows by pid and start time. Idempotent."""
    record = journal.read(directory)
    for seen in (record.vmm, record.jail) if record else ():
        if seen is not None:
            end(seen)


def service_lives(state: Path) -> bool:
    """Whether a service holds its lock on this state folder."""
    return file_lock.is_held(state / SERVICE_LOCK)


if __name__ == "__main__":
    sys.exit(main())
