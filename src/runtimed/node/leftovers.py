"""Finds what a killed service left on this host: machines, and templates that were being made. Ends it when told to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtimed.node.kept import taken_disks
from runtimed.node.vmm import journal
from runtimed.node.vmm.processes import ProcessMark, same


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something that nobody will ever end but whoever calls `end`, which is idempotent."""

    line: str
    end: Callable[[], None]


def left_over(*, machines: Path, templates: Path) -> list[Leftover]:
    """What is left in these two folders. Whatever belongs to a process that lives is not in the list."""
    with_a_disk = set(taken_disks(machines.parent).values())  # somebody's only one: the next service takes it
    found = [
        Leftover(line=f"a machine without a service ({path.name})", end=_machine_end(path))
        for path in journal.left_over(machines)
        if path.name not in with_a_disk
    ]
    for path in (*sorted(templates.glob(".building-*")), *sorted(templates.glob(".discarded-*"))):
        if not _owned(path):
            found.append(Leftover(line=f"an unfinished template ({path.name})", end=_template_end(path)))
    return found


def waiting(machines: Path) -> int:
    """How many sandboxes go on without a service; the next one finds them, and the guard ends them at their leases."""
    return sum(journal.adoptable(directory) for directory in journal.machines(machines))


def disks_waiting(machines: Path) -> int:
    """How many disks of dead machines are not on the shelf yet: it had no room, or no service has begun."""
    with_a_disk = set(taken_disks(machines.parent).values())
    return sum(
        (directory.name in with_a_disk or journal.has_a_disk(directory)) and not _lives(directory)
        for directory in journal.machines(machines)
    )


def _lives(directory: Path) -> bool:
    record = journal.read(directory)
    return record is not None and record.vmm is not None and same(record.vmm)


def _owned(building: Path) -> bool:
    try:
        return same(ProcessMark(**json.loads((building / "owner.json").read_text())))
    except (OSError, ValueError, TypeError):
        return False


def _machine_end(directory: Path) -> Callable[[], None]:
    return lambda: journal.end_machine(directory)


def _template_end(directory: Path) -> Callable[[], None]:
    def end() -> None:
        for machine in journal.machines(directory):
            journal.end_machine(machine)
        shutil.rmtree(directory, ignore_errors=True)

    return end
