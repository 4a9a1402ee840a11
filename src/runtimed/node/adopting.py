"""Finds, at the start of the service, what an earlier one left: takes over live machines, keeps the disks of dead ones.

Whatever the earlier service was doing when it died is brought to an end that loses nothing: a machine that it had
frozen for a pause goes on, a pause that had got as far as the disk is completed, spares and half-made ones are ended.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from runtimed.core.errors import RuntimedError
from runtimed.core.specs import MachineSpec
from runtimed.node.channel import Channel
from runtimed.node.kept import DISK, KEEP_TRIES, KeptRecord, finish_layers, has_unfinished_disk, spec_from, taken_disks
from runtimed.node.parts import NodeParts, Ready
from runtimed.node.starting import ANSWER_S, Starter
from runtimed.node.vmm import journal, splitting
from runtimed.node.vmm.base import Template
from runtimed.node.vmm.processes import mark, same

_log = logging.getLogger(__name__)

Adopted = tuple[MachineSpec, Ready, int]
"""A machine, whose it is, and the generation of its memory and disk."""


async def adopt(parts: NodeParts, starter: Starter) -> list[Adopted]:
    """Machines that live and answer. All else of an earlier service is on the shelf or gone when this returns."""
    taken: list[Adopted] = []
    finish_layers(parts.machines.parent)
    await _give_disks_back(parts)
    for directory in journal.machines(parts.machines):
        record = journal.read(directory)
        if record is None or record.sandbox is None or record.template is None:
            await _end(parts, directory)
            continue
        spec, generation = spec_from(record.sandbox), int(record.sandbox.get("generation", 0))
        template, record = record.template, _with_its_layers(record)
        ready = await _take_over(parts, starter, record, template, spec)
        if ready is not None:
            taken.append((spec, ready, generation))
            parts.room.sandboxes.remove(spec.sandbox_id)  # what it woke from
            _log.info("adopted the machine of sandbox %s", spec.sandbox_id)
            continue
        await _keep_disk(parts, record, template, spec)
    _finish_pauses(parts)
    parts.room.sweep()
    return taken


def _with_its_layers(record: journal.MachineRecord) -> journal.MachineRecord:
    """A fork or a snapshot that the service died in may have put one more below the disk."""
    try:
        return replace(record, plan=splitting.settled(record.plan))
    except (RuntimedError, OSError) as failure:
        _log.warning("the disk of machine %s is not what it should be: %s", record.plan.machine_id, failure)
        return record


async def _give_disks_back(parts: NodeParts) -> None:
    """A wake or a restart that the service died in: its machine is nobody's yet, and has somebody's only disk."""
    shelf = parts.room.sandboxes
    for owner, machine_id in taken_disks(parts.machines.parent).items():
        machine, kept = journal.read(parts.machines / machine_id), shelf.find(owner)
        if machine is None or machine.sandbox is not None or kept is None or parts.memory is None:
            continue
        shelf.write(shelf.folder(owner), replace(kept, mode="disk"))  # the memory must not meet a disk that has gone on
        try:
            await parts.memory.release(machine.plan, shelf.folder(owner) / DISK)
            _log.info("took the disk of sandbox %s back, which was being started", owner)
        except (RuntimedError, OSError, ValueError) as failure:
            _log.warning("the disk of sandbox %s could not be taken back: %s", owner, failure)


async def _take_over(
    parts: NodeParts, starter: Starter, record: journal.MachineRecord, template: Template, spec: MachineSpec
) -> Ready | None:
    if record.vmm is None or not same(record.vmm) or parts.memory is None:
        return None
    journal.write(replace(record, owner=mark(os.getpid())))
    try:
        await parts.memory.thaw(record.plan)  # it may have been frozen for a pause
        channel = await Channel.open(record.plan.socket, within_s=ANSWER_S)
        ready = Ready(plan=record.plan, template=template, channel=channel)
        await starter.identify(ready, spec, new=False)
        return ready
    except (RuntimedError, OSError, TimeoutError) as failure:
        _log.warning("the machine of sandbox %s does not answer any more: %s", spec.sandbox_id, failure)
        return None


async def _keep_disk(parts: NodeParts, record: journal.MachineRecord, template: Template, spec: MachineSpec) -> None:
    """A machine that died while no service watched: its disk, with the memory of a pause if that was complete."""
    shelf = parts.room.sandboxes
    if parts.memory is None:
        await _end(parts, record.plan.directory)
        return
    if has_unfinished_disk(shelf, spec.sandbox_id):  # `_finish_pauses` puts it in place
        await _end(parts, record.plan.directory)
        return
    written = shelf.unfinished_record(spec.sandbox_id)
    folder = shelf.unfinished_folder(spec.sandbox_id) if written else shelf.begin(spec.sandbox_id)
    kept = written or KeptRecord(mode="disk", generation=0, plan=record.plan, template=template, spec=spec)
    shelf.write(folder, kept)
    for _ in range(KEEP_TRIES):
        try:
            await parts.memory.release(record.plan, folder / DISK)
            shelf.finish(spec.sandbox_id)
            _log.info("kept the disk of sandbox %s, whose machine is gone", spec.sandbox_id)
            return
        except (RuntimedError, OSError, ValueError) as failure:
            _log.warning("the disk of sandbox %s could not be kept: %s", spec.sandbox_id, failure)
        if has_unfinished_disk(shelf, spec.sandbox_id):  # it has moved: as above
            break
    else:
        shelf.give_up(spec.sandbox_id)
    await _end(parts, record.plan.directory)


def _finish_pauses(parts: NodeParts) -> None:
    """A pause that died after the disk had moved is whole; one before it has gone on, or was kept above.

    A snapshot that was not finished was promised to nobody.
    """
    shelf = parts.room.sandboxes
    for owner in shelf.unfinished():
        if has_unfinished_disk(shelf, owner):
            shelf.finish(owner)
        else:
            shelf.give_up(owner)
    for snapshot_id in parts.room.snapshots.unfinished():
        parts.room.snapshots.give_up(snapshot_id)


async def _end(parts: NodeParts, directory: Path) -> None:
    await parts.driver.kill(directory.name)
