"""Keeps the disk of a machine that died: on the shelf, or where it is until the shelf can take it.

A disk waits in one of two places, and what is on the disk of the host says so, whichever service looks:

    machines/<machine>/   whose record names the sandbox, with its disk, and no service has the machine
    kept/<sandbox>/       whose mark names a machine that was to wake from it, and that has the disk still

Whoever wants the sandbox has its disk put on the shelf first; whoever gives it up has it removed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from dataclasses import replace

from runtimed.core.errors import HostUnavailable, NoCapacity, RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.specs import Stored
from runtimed.node.kept import DISK, KeptRecord, has_unfinished_disk, sizes, spec_from, taken_disks
from runtimed.node.parts import NodeParts
from runtimed.node.vmm import journal, splitting
from runtimed.node.vmm.base import MemoryDriver, Template

_log = logging.getLogger(__name__)

KEEP_TRIES = 2
"""At once, for the disk of a machine that died; it is tried again whenever somebody wants it."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Remains:
    """What dead machines of this host have left. One disk is moved at a time: others wait for that."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts, self._shelf = parts, parts.room.sandboxes
        self._turn = asyncio.Lock()

    def stored(self, sandbox_id: SandboxId) -> Stored | None:
        """What is kept of a sandbox that has no machine, wherever that is."""
        if self._shelf.kept(sandbox_id).disk is None:
            if has_unfinished_disk(self._shelf, sandbox_id):
                return self._shelf.stored(sandbox_id, unfinished=True)
            for record, template in self._waiting(sandbox_id):
                kept = _disk_alone(record, template)
                return sizes(kept, [*journal.disks(record.plan), *record.plan.layers])
        return self._shelf.stored(sandbox_id)

    def waits(self, sandbox_id: SandboxId) -> bool:
        """Whether its disk is in the folder of a machine that no service has."""
        return next(self._waiting(sandbox_id), None) is not None

    async def keep(self, sandbox_id: SandboxId) -> bool:
        """Put the disk on the shelf if that can be; False where it waits on. Idempotent."""
        for _ in range(KEEP_TRIES):
            try:
                await self.shelve(sandbox_id)
                return True
            except RuntimedError as failure:
                _log.warning("the disk of sandbox %s could not be kept: %s", sandbox_id, failure)
        return not self.waits(sandbox_id)

    async def shelve(self, sandbox_id: SandboxId) -> None:
        """Put a disk that waits on the shelf; there is nothing to do where none does. Idempotent.

        Raises:
            NoCapacity: the host's disk has no room for that. HostUnavailable: it refused. The disk waits on.
        """
        if (memory := self._parts.memory) is None or self._shelf.kept(sandbox_id).disk is not None:
            return  # what is on the shelf is the only one; every wake asks, and need not look through all machines
        async with self._turn:
            try:
                await self._give_back(memory, sandbox_id)
                await self._put_away(memory, sandbox_id)
            except (RuntimedError, OSError, ValueError) as failure:
                if is_full(failure) and not has_unfinished_disk(self._shelf, sandbox_id):
                    self._shelf.give_up(sandbox_id)  # the memory that it may hold takes room from the disk
                raise refusal(failure) from failure

    async def forget(self, sandbox_id: SandboxId) -> None:
        """Remove all that is kept of a sandbox, wherever that is. Idempotent."""
        async with self._turn:
            for record, _ in list(self._waiting(sandbox_id)):
                await self._parts.driver.kill(record.plan.machine_id)
            taken = taken_disks(self._parts.machines.parent).get(sandbox_id)
            self._shelf.remove(sandbox_id)
            self._shelf.give_up(sandbox_id)
            if taken is not None:
                await self._parts.driver.kill(taken)

    async def _give_back(self, memory: MemoryDriver, sandbox_id: SandboxId) -> None:
        """Of a wake or a restart that was cut short: its machine is nobody's, and has somebody's only disk."""
        machine_id = taken_disks(self._parts.machines.parent).get(sandbox_id)
        kept = self._shelf.find(sandbox_id)
        machine = journal.read(self._parts.machines / machine_id) if machine_id else None
        if kept is None or machine is None or machine.sandbox is not None:
            return
        folder = self._shelf.folder(sandbox_id)
        self._shelf.write(folder, replace(kept, mode="disk"))  # the memory must not meet a disk that has gone on
        await memory.release(machine.plan, folder / DISK)
        _log.info("took the disk of sandbox %s back, which was being started", sandbox_id)

    async def _put_away(self, memory: MemoryDriver, sandbox_id: SandboxId) -> None:
        """The disk, with the memory of a pause if that was written whole before the machine died."""
        shelf, found = self._shelf, next(self._waiting(sandbox_id), None)
        if has_unfinished_disk(shelf, sandbox_id):  # the only one there is: to begin anew would be to remove it
            record = shelf.unfinished_record(sandbox_id)
        elif found is None:
            return
        else:
            machine, template = found
            plan, record = splitting.settled(machine.plan), shelf.unfinished_record(sandbox_id)
            folder = shelf.unfinished_folder(sandbox_id) if record else shelf.begin(sandbox_id)
            record = replace(record or _disk_alone(machine, template), plan=plan)
            shelf.write(folder, record)
            await memory.release(plan, folder / DISK)
        assert record is not None
        await asyncio.to_thread(shelf.finish, sandbox_id)
        self._parts.templates.hold(record.template, shelf.folder(sandbox_id))
        _log.info("kept the disk of sandbox %s, whose machine is gone", sandbox_id)

    def _waiting(self, sandbox_id: SandboxId) -> Iterator[tuple[journal.MachineRecord, Template]]:
        for directory in journal.machines(self._parts.machines):
            record = journal.read(directory)
            if record is None or record.sandbox is None or record.template is None:
                continue
            if record.sandbox["sandbox_id"] == sandbox_id and journal.disks(record.plan):
                yield record, record.template


def is_full(failure: BaseException) -> bool:
    """Whether this says that the host's disk has no room."""
    return isinstance(failure, NoCapacity) or (isinstance(failure, OSError) and failure.errno in _NO_ROOM)


def refusal(failure: BaseException) -> RuntimedError:
    """What somebody is told who wants a disk that cannot be had now."""
    if isinstance(failure, RuntimedError):
        return failure
    if is_full(failure):
        return NoCapacity(
            "the host's disk has no room for this sandbox's files",
            hint="Nothing is lost: free disk space on the host, and ask again.",
            retry_after_ms=5000,
        )
    return HostUnavailable(f"the disk of the sandbox cannot be moved: {failure}", hint="It is not lost: ask again.")


def _disk_alone(record: journal.MachineRecord, template: Template) -> KeptRecord:
    assert record.sandbox is not None
    generation = int(record.sandbox.get("generation", 0)) + 1
    spec = spec_from(record.sandbox)
    return KeptRecord(mode="disk", generation=generation, plan=record.plan, template=template, spec=spec)
