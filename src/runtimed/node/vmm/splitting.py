"""Brings the split of a machine's disk to an end that was cut short, so that nobody's only content is swept as a layer.

MACHINE/splitting names the layer to be, from before the split until the machine's record has it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtimed.node.vmm import journal
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.qemu import take

MARK = "splitting"


def begin(plan: MachinePlan, layer: Path) -> None:
    """Before the machine's disk is made the file `layer`."""
    (plan.directory / MARK).write_text(str(layer))


def under_way(directory: Path) -> Path | None:
    """The layer that a machine's disk is becoming, or may have become."""
    try:
        return Path(said) if (said := (directory / MARK).read_text()) else None
    except FileNotFoundError:
        return None


def settled(plan: MachinePlan) -> MachinePlan:
    """The plan as the machine's disk is now: its record says the same. Idempotent.

    Of two files the older is below the other, whichever of them the machine still writes to.

    Raises:
        HostUnavailable, OSError: as it was.
    """
    layer = under_way(plan.directory)
    if layer is not None and layer not in plan.layers:
        own = sorted(plan.own.glob("disk*.qcow2"), key=_number)
        if len(own) == 2 and not layer.exists():
            take(own[0], layer)
        if layer.exists():
            plan = replace(plan, layers=(*plan.layers, layer))
            if (record := journal.read(plan.directory)) is not None:
                journal.write(replace(record, plan=plan))
    (plan.directory / MARK).unlink(missing_ok=True)
    return plan


def _number(disk: Path) -> int:
    return int(disk.stem.removeprefix("disk") or 0)
