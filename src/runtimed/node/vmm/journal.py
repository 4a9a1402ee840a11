"""Keeps on disk which process and folder belong to which machine, so that nothing is lost when the service is killed.

One folder a machine, `machine.json` in it: written before the process starts, completed with its mark after.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimed.node.vmm.processes import ProcessMark, end, same

RECORD = "machine.json"


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    machine_id: str
    owner: ProcessMark | None
    """The service that started it: while that lives, the machine is not left over."""
    jail: ProcessMark | None
    """The process that we started (the jail's own)."""
    vmm: ProcessMark | None
    """QEMU itself."""


def write(directory: Path, record: MachineRecord) -> None:
    """Replace the record in one step."""
    temporary = directory / f".{RECORD}"
    temporary.write_text(json.dumps(asdict(record)))
    os.replace(temporary, directory / RECORD)


def read(directory: Path) -> MachineRecord | None:
    """The record of a machine's folder; None when there is none that can be read."""
    try:
        raw = json.loads((directory / RECORD).read_text())
        marks = {k: ProcessMark(**raw[k]) if raw[k] else None for k in ("owner", "jail", "vmm")}
        return MachineRecord(machine_id=str(raw["machine_id"]), **marks)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def machines(root: Path) -> list[Path]:
    """Folders of machines, with or without a record."""
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def left_over(root: Path) -> list[Path]:
    """Folders of machines whose service is gone: nobody will ever end them."""
    left = []
    for directory in machines(root):
        record = read(directory)
        if record is None or record.owner is None or not same(record.owner):
            left.append(directory)
    return left


def end_machine(directory: Path) -> None:
    """Kill what the record names and remove the folder. Idempotent."""
    record = read(directory)
    for seen in (record.vmm, record.jail) if record else ():
        if seen is not None:
            end(seen)
    shutil.rmtree(directory, ignore_errors=True)
