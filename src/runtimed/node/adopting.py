"""Finds, at the start of the service, what an earlier one left: takes over live machines, keeps the disks of dead ones.

Whatever the earlier service was doing when it died is brought to an end that loses nothing: a machine that it had
frozen for a pause goes on, a pause that had got as far as the disk is completed, spares and half-made ones are ended.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from runtimed.core.errors import RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec
from runtimed.node.channel import Channel
from runtimed.node.kept import finish_layers, has_unfinished_disk, spec_from, taken_disks
from runtimed.node.parts import NodeParts, Ready
from runtimed.node.remains import Remains
from runtimed.node.starting import ANSWER_S, Starter
from runtimed.node.vmm import journal, splitting
from runtimed.node.vmm.base import Template
from runtimed.node.vmm.processes import mark, same

_log = logging.getLogger(__name__)

Adopted = tuple[MachineSpec, Ready, int]
"""A machine, whose it is, and the generation of its memory and disk."""


async def adopt(parts: NodeParts, starter: Starter, remains: Remains) -> list[Adopted]:
    """Machines that live and answer. All else is on the shelf, waits for room there, or is gone when this returns."""
    taken: list[Adopted] = []
    finish_layers(parts.machines.parent)
    for owner, machine_id in taken_disks(parts.machines.parent).items():
        machine = journal.read(parts.machines / machine_id)
        if machine is not None and machine.sandbox is None:  # else it had woken, and is adopted below
            await remains.keep(SandboxId(owner))
    with_a_disk = set(taken_disks(parts.machines.parent).values())  # those that could not be given back
    for directory in journal.machines(parts.machines):
        record = journal.read(directory)
        if record is None or record.sandbox is None or record.template is None:
            if directory.name in with_a_disk:
                journal.end_processes(directory)
            else:
                await parts.driver.kill(directory.name)
            continue
        spec, generation = spec_from(record.sandbox), int(record.sandbox.get("generation", 0))
        template, record = record.template, _with_its_layers(record)
        ready = await _take_over(parts, starter, record, template, spec)
        if ready is not None:
            taken.append((spec, ready, generation))
            parts.room.sandboxes.remove(spec.sandbox_id)  # what it woke from
            _log.info("adopted the machine of sandbox %s", spec.sandbox_id)
        elif await remains.keep(spec.sandbox_id):
            await parts.driver.kill(directory.name)
        else:
            journal.end_processes(directory)
    _finish_pauses(parts)
    _hold_templates(parts)
    parts.room.sweep()
    return taken


def _with_its_layers(record: journal.MachineRecord) -> journal.MachineRecord:
    """A fork or a snapshot that the service died in may have put one more below the disk."""
    try:
        return replace(record, plan=splitting.settled(record.plan))
    except (RuntimedError, OSError) as failure:
        _log.warning("the disk of machine %s is not what it should be: %s", record.plan.machine_id, failure)
        return record


async def _take_over(
    parts: NodeParts, starter: Starter, record: journal.MachineRecord, template: Template, spec: MachineSpec
) -> Ready | None:
    if record.vmm is None or not same(record.vmm) or parts.memory is None:
        return None
    shelf = parts.room.sandboxes
    if not has_unfinished_disk(shelf, spec.sandbox_id):
        shelf.give_up(spec.sandbox_id)  # of a pause: from here on it runs, and that memory must not meet its disk
    try:
        journal.write(replace(record, owner=mark(os.getpid())))
    except OSError as failure:  # a full disk ends no machine
        _log.warning("it is not written down who has the machine of sandbox %s: %s", spec.sandbox_id, failure)
    try:
        await parts.memory.thaw(record.plan)  # it may have been frozen for a pause
        channel = await Channel.open(record.plan.socket, within_s=ANSWER_S)
        ready = Ready(plan=record.plan, template=template, channel=channel)
        await starter.identify(ready, spec, new=False)
        return ready
    except (RuntimedError, OSError, TimeoutError) as failure:
        _log.warning("the machine of sandbox %s does not answer any more: %s", spec.sandbox_id, failure)
        return None


def _finish_pauses(parts: NodeParts) -> None:
    """A pause that died after the disk had moved is whole; one before it has gone on, or was kept above.

    A snapshot that was not finished was promised to nobody.
    """
    shelf = parts.room.sandboxes
    for owner in shelf.unfinished():
        if not has_unfinished_disk(shelf, owner):
            shelf.give_up(owner)
            continue
        try:
            shelf.finish(owner)
        except OSError as failure:  # it is put in place when somebody wants it
            _log.warning("what was kept of sandbox %s is not in place yet: %s", owner, failure)
    for snapshot_id in parts.room.snapshots.unfinished():
        parts.room.snapshots.give_up(snapshot_id)


def _hold_templates(parts: NodeParts) -> None:
    """A crash may have come between a shelf and the word that it needs its template."""
    for shelf in (parts.room.sandboxes, parts.room.snapshots):
        for owner, kept in shelf.all():
            try:
                parts.templates.hold(kept.template, shelf.folder(owner))
            except OSError as failure:
                _log.warning("nothing holds the template below %s: %s", owner, failure)
