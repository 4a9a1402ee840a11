"""Keeps on disk which process and folder belong to which machine, so that nothing is lost when the service is killed.

One folder a machine, `machine.json` in it: written before the process starts, completed with its mark after.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtimed.core.boot import ImageFiles
from runtimed.core.specs import Shape
from runtimed.node.vmm.base import OWN, MachinePlan, Template
from runtimed.node.vmm.processes import ProcessMark, end, same, started_for

RECORD = "machine.json"


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """All that is needed to find a machine again, or to end it."""

    plan: MachinePlan
    template: Template | None
    """What its memory is mapped from; None for a machine that booted cold."""
    owner: ProcessMark | None
    """The service that answers for it: while that lives, the machine is not left over."""
    jail: ProcessMark | None
    """The process that we started (the jail's own)."""
    vmm: ProcessMark | None
    """QEMU itself."""
    sandbox: dict[str, Any] | None = None
    """Whose it is: a MachineSpec without its environment. None for a spare."""


def write(record: MachineRecord) -> None:
    """Replace the record in its machine's folder, in one step."""
    directory = record.plan.directory
    temporary = directory / f".{RECORD}"
    temporary.write_text(json.dumps(asdict(record), default=str))
    os.replace(temporary, directory / RECORD)


def read(directory: Path) -> MachineRecord | None:
    """The record of a machine's folder; None when there is none that can be read."""
    try:
        raw = json.loads((directory / RECORD).read_text())
        return MachineRecord(
            plan=plan_from(raw["plan"]),
            template=template_from(raw["template"]),
            owner=_mark(raw["owner"]),
            jail=_mark(raw["jail"]),
            vmm=_mark(raw["vmm"]),
            sandbox=raw["sandbox"],
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def plan_from(raw: dict[str, Any]) -> MachinePlan:
    """A plan from what `asdict` made of it."""
    image = dict(raw["image"])
    for name in ("rootfs", "kernel", "initrd", "agent_disk"):
        image[name] = Path(image[name])
    return MachinePlan(
        machine_id=raw["machine_id"],
        directory=Path(raw["directory"]),
        image=ImageFiles(**image),
        shape=Shape(**raw["shape"]),
        layers=tuple(Path(layer) for layer in raw["layers"]),
    )


def template_from(raw: dict[str, Any] | None) -> Template | None:
    return None if raw is None else Template(key=raw["key"], directory=Path(raw["directory"]))


def _mark(raw: dict[str, Any] | None) -> ProcessMark | None:
    return None if raw is None else ProcessMark(**raw)


def machines(root: Path) -> list[Path]:
    """Folders of machines, with or without a record."""
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def left_over(root: Path) -> list[Path]:
    """Folders of machines that nobody will ever end: their service is gone, and no next one will adopt them."""
    return [
        directory
        for directory in machines(root)
        if not _is_owned(read(directory)) and not adoptable(directory) and not has_a_disk(directory)
    ]


def adoptable(directory: Path) -> bool:
    """Whether this is a sandbox's machine that lives without its service, until the next one or the guard comes."""
    record = read(directory)
    if record is None or record.sandbox is None or _is_owned(record):
        return False
    return record.vmm is not None and same(record.vmm)


def has_a_disk(directory: Path) -> bool:
    """Whether it has a sandbox's only disk: the next service keeps that, however the machine came to its end."""
    record = read(directory)
    return record is not None and record.sandbox is not None and bool(disks(record.plan))


def disks(plan: MachinePlan) -> list[Path]:
    """The files that a machine writes to, or has written to and is making a layer of."""
    return sorted(plan.own.glob("disk*.qcow2"))


def _is_owned(record: MachineRecord | None) -> bool:
    return record is not None and record.owner is not None and same(record.owner)


def end_machine(directory: Path) -> None:
    """Kill what the record names and remove the folder. Idempotent."""
    end_processes(directory)
    shutil.rmtree(directory, ignore_errors=True)


def end_processes(directory: Path) -> None:
    """Kill what the record names; the folder stays. Idempotent."""
    for seen in processes(directory):
        end(seen)


def processes(directory: Path) -> list[ProcessMark]:
    """What the machine's record names, or where its service died before that was written, what there is of it."""
    record = read(directory)
    marks = [seen for seen in (record.vmm, record.jail) if seen is not None] if record else []
    if marks or not directory.is_dir():
        return marks
    return started_for(directory / OWN)
