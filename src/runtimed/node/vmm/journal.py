"""Keeps on disk which process and folder belong to which machine, so that nothing is lost when the service is killed.

One folder a machine, `machine.json` in it: written before the process starts, completed with its mark after.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimed.node.vmm.processes import ProcessMark

RECORD = "machine.json"


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    machine_id: str
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
        marks = {k: ProcessMark(**raw[k]) if raw[k] else None for k in ("jail", "vmm")}
        return MachineRecord(machine_id=str(raw["machine_id"]), **marks)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def machines(root: Path) -> list[Path]:
    """Folders of machines, with or without a record."""
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
