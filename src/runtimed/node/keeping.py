"""Keeps machines beyond their process: pause and wake, fork, snapshots.

    running --freeze--> frozen --keep, release--> kept on the shelf --wake--> running
                          '----thaw (the write was called off or failed)---> running

Memory and disk on a shelf are of one moment. Once a machine runs from them the memory is removed, so that it can never
meet a disk that has gone on without it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from runtimed.core.errors import HostUnavailable, MachineGone, NotFound, RuntimedError, StartFailed, Unavailable
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Started, Stored
from runtimed.core.tasks import spawn
from runtimed.node.channel import Channel
from runtimed.node.coldboot import BootWay, boot_watched
from runtimed.node.guest import GuestClient
from runtimed.node.kept import ABOVE, DISK, KeptRecord, Shelf
from runtimed.node.parts import Held, NodeParts, Ready, Steps
from runtimed.node.starting import ANSWER_S, How, Starter, started
from runtimed.node.vmm import journal, splitting
from runtimed.node.vmm.base import Kept, MachinePlan, MemoryDriver, Template
from runtimed.node.vmm.blank import EMPTY
from runtimed.node.vmm.chains import LAYERS_MAX, flatten
from runtimed.node.vmm.merging import merged_base
from runtimed.node.vmm.space import check_room_for_memory

_log = logging.getLogger(__name__)

CAPTURED = ("state", "pages", "pages.json")
"""What a capture of memory is: device state, the pages of its own, and where they belong."""
COPIES_AT_ONCE = 4
"""Copies of a fork that start at the same time; more only wait for each other's processor."""
SHARED_FROM = 3
"""From so many copies on they share one file of the captured memory; for fewer its making costs more than it saves."""

GO_ON_TRIES, GO_ON_EVERY_S = 3, 0.5
"""For a machine that stands still for a capture; one that does not go on then is lost, and its disk is kept."""

_NOT_UP = (OSError, LookupError, EOFError, TimeoutError, HostUnavailable)
"""What a driver raises when a machine did not come up."""


DISK_PATIENCE = 2.0
"""A disk that somebody has filled may be looked over for longer than an image's."""


class _RanAndLost(Exception):
    """A machine ran from what was kept, and was then lost."""


class Keeper:
    """Moves machines between running and kept. The node holds each machine's lock meanwhile."""

    def __init__(self, parts: NodeParts, starter: Starter, lost: Callable[[Held, str], Awaitable[None]]) -> None:
        self._parts = parts
        self._starter = starter
        self._lost = lost
        """Told of a machine that did not go on: it is as one that died."""
        self._room = parts.room

    @property
    def driver(self) -> MemoryDriver:
        if self._parts.memory is None:
            raise Unavailable("this host's machines cannot be paused, forked or kept")
        return self._parts.memory

    async def hold(self, held: Held) -> None:
        """Nothing of a user runs from here on until the machine, or a copy of it, has its identity and the time."""
        try:
            await held.guest.hold()
        except (RuntimedError, OSError) as failure:
            _log.warning("sandbox %s is captured without being held: %s", held.spec.sandbox_id, failure)

    async def check_space(self, held: Held) -> None:
        """Before anything stands still. Raises NoCapacity where the host's disk has no room for the memory."""
        pid = self.driver.vmm_pid(held.plan.machine_id)
        if pid is not None:
            await asyncio.to_thread(check_room_for_memory, self._parts.machines, pid, held.template)

    async def freeze(self, held: Held) -> None:
        """Stop the vCPUs and end what reads along; the readers have their cursors. If this raises, it goes on."""
        try:
            await self.driver.freeze(held.plan)
        except BaseException:
            await asyncio.shield(self._go_on(held))
            raise
        held.frozen = True
        await held.channel.close("the sandbox was paused", for_a_pause=True)

    async def write(self, held: Held) -> Stored:
        """Put a frozen machine on the shelf; its process and folder are gone then.

        Raises:
            NoCapacity, HostUnavailable, OSError: before `held.releasing` the machine is as it was.
        """
        held.plan = splitting.settled(held.plan)
        owner, shelf = held.spec.sandbox_id, self._room.sandboxes
        folder = shelf.begin(owner)
        try:
            await self.driver.keep(held.plan, held.template, folder)
            shelf.write(folder, self._record(held, "memory"))
        except BaseException:
            shelf.give_up(owner)
            raise
        held.releasing = True
        await self.driver.release(held.plan, folder / DISK)
        return await self._shelve(shelf, owner, held.template)

    async def thaw(self, held: Held) -> Started:
        """Let a frozen machine go on, with the clock of now."""
        steps = Steps()
        await self.driver.thaw(held.plan)
        steps.done("restored")
        channel = await Channel.open(held.plan.socket, within_s=ANSWER_S)
        ready = Ready(plan=held.plan, template=held.template, channel=channel)
        identified = await self._starter.identify(ready, held.spec, new=False)
        steps.done("ready")
        held.channel, held.guest = channel, GuestClient(channel)
        held.frozen = held.releasing = False
        held.writing = None
        return started("thaw", held.plan.image, steps, identified)

    async def wake(self, spec: MachineSpec, *, from_disk: bool) -> tuple[Ready, Started, int]:
        """Run what is on the shelf; answers also its generation. If this raises, it is still there.

        Raises:
            NotFound: there is nothing. StartFailed: it did not come up; the hint says whether its disk may.
        """
        shelf = self._room.sandboxes
        record = shelf.find(spec.sandbox_id)
        if record is None:
            raise NotFound(f"nothing was kept of sandbox {spec.sandbox_id}")
        how: How = "cold" if from_disk or record.mode == "disk" else "wake"
        kept = shelf.kept(spec.sandbox_id)
        if kept.disk is None:
            raise StartFailed("the disk of what was kept is missing")
        try:
            ready, begun = await self._bring_up(spec, record, kept, how, new=how == "cold")
        except StartFailed as failure:
            failure.hint = "Its disk is there: restart boots it from that."
            raise
        except _RanAndLost as lost:
            raise StartFailed(f"it ran and did not answer: {lost}", hint="Restart boots it from its disk.") from lost
        return ready, begun, record.generation

    def woken(self, sandbox_id: SandboxId) -> None:
        """Its machine is its own by that one's record: what is still on the shelf is worth nothing any more."""
        try:
            _remove_later(self._room.sandboxes.put_aside(sandbox_id))
        except OSError as failure:
            _log.warning("what sandbox %s woke from stays for now: %s", sandbox_id, failure)
        self._room.sweep()

    async def unwake(self, ready: Ready, sandbox_id: SandboxId) -> None:
        """End one that woke and cannot be held; its disk goes back to the shelf, without the memory."""
        shelf = self._room.sandboxes
        record = shelf.find(sandbox_id)
        assert record is not None
        await ready.channel.close()
        folder = shelf.folder(sandbox_id)
        await self._undo(ready.plan, record, Kept(directory=folder, disk=folder / DISK))

    async def copy(self, spec: MachineSpec) -> tuple[Ready, Started]:
        """A new machine that begins as a snapshot; one of a disk alone may have another size, its disk a larger one."""
        assert spec.snapshot_id is not None
        record = self._room.snapshots.find(spec.snapshot_id)
        if record is None:
            raise NotFound(f"there is no snapshot {spec.snapshot_id}")
        kept = Kept(directory=self._room.snapshots.folder(spec.snapshot_id))
        how: How = "snapshot" if record.mode == "memory" else "cold"
        resized = record.mode == "disk" and spec.shape != record.plan.shape
        if resized:
            self._room.begin()
        try:
            if resized:
                base = await self.driver.blanks.make(self._room.new_base(), spec.shape, record.template)
                record = replace(record, template=base, plan=replace(record.plan, shape=spec.shape))
            return await self._bring_up_copy(spec, record, kept, how)
        except _RanAndLost as lost:
            raise StartFailed(f"the copy did not answer: {lost}") from lost
        finally:
            if resized:
                self._room.settle()

    async def fork(
        self, held: Held, children: Sequence[MachineSpec], keep_as: str | None
    ) -> tuple[list[tuple[Ready, Started]], Stored | None]:
        """Copies of a running machine: all of them, or an error and none. The source goes on either way.

        What they begin as is also kept as the snapshot `keep_as`.
        """
        folder = self._room.scratch()
        try:
            record = await self._capture(held, folder, "memory")
            if keep_as is not None:
                self._keep_too(folder, keep_as, record)
            begun = record
            if len(children) >= SHARED_FROM:
                base = await asyncio.to_thread(merged_base, self._room.new_base(), record.template, folder)
                begun = replace(record, template=base)
            made = await self._copies(children, begun, Kept(directory=folder))
            return made, await self._kept_too(made, keep_as, record.template)
        except BaseException:
            if keep_as is not None:
                self._room.snapshots.give_up(keep_as)
            raise
        finally:
            _remove_later(folder)
            self._room.settle()

    def _keep_too(self, captured: Path, snapshot_id: str, record: KeptRecord) -> None:
        """The same files under another name: a snapshot costs a fork nothing but its names."""
        shelf = self._room.snapshots
        folder = shelf.begin(snapshot_id)
        for name in CAPTURED:
            (folder / name).hardlink_to(captured / name)
        shelf.write(folder, record)

    async def _kept_too(
        self, made: Sequence[tuple[Ready, Started]], snapshot_id: str | None, template: Template
    ) -> Stored | None:
        if snapshot_id is None:
            return None
        try:
            return await self._shelve(self._room.snapshots, snapshot_id, template)
        except BaseException:
            for ready, _ in made:
                await asyncio.shield(self._starter.drop(ready))
            raise

    async def snapshot(self, held: Held, snapshot_id: str, mode: Literal["memory", "disk"]) -> Stored:
        """Keep a running machine as it is now; it goes on."""
        if mode == "disk":
            await held.guest.flush()
        shelf = self._room.snapshots
        folder = shelf.begin(snapshot_id)
        try:
            record = await self._capture(held, folder, mode)
            shelf.write(folder, record)
            return await self._shelve(shelf, snapshot_id, record.template)
        except BaseException:
            shelf.give_up(snapshot_id)
            raise
        finally:
            self._room.settle()

    async def snapshot_kept(self, sandbox_id: str, snapshot_id: str, mode: Literal["memory", "disk"]) -> Stored:
        """The same of a paused sandbox: its disk becomes a layer under both, its memory is shared."""
        source, record = self._room.sandboxes.folder(sandbox_id), self._room.sandboxes.find(sandbox_id)
        if record is None:
            raise NotFound(f"nothing was kept of sandbox {sandbox_id}")
        if mode == "memory" and record.mode == "disk":
            raise Unavailable("only the disk of this sandbox was kept: ask for a snapshot of mode disk")
        shelf = self._room.snapshots
        folder = shelf.begin(snapshot_id)
        try:
            layer = self._room.new_layer()
            above = source / f"{ABOVE}{layer.name}"
            await asyncio.to_thread(shutil.copyfile, record.template.directory / EMPTY, above)
            plan = replace(record.plan, layers=(*record.plan.layers, layer))
            layer.hardlink_to(source / DISK)  # from here to the rename nothing is awaited, and a kill loses nothing
            self._room.sandboxes.write(source, replace(record, plan=plan))
            above.rename(source / DISK)
            layer.chmod(0o444)
            if mode == "memory":
                for name in CAPTURED:
                    (folder / name).hardlink_to(source / name)
            shelf.write(folder, replace(record, plan=plan, mode=mode))
            return await self._shelve(shelf, snapshot_id, record.template)
        except BaseException:
            shelf.give_up(snapshot_id)
            raise
        finally:
            self._room.settle()

    async def _capture(self, held: Held, folder: Path, mode: Literal["memory", "disk"]) -> KeptRecord:
        """Stop the source, freeze its disk as a layer, write what it owns of memory, let it go on."""
        held.plan = splitting.settled(held.plan)  # an earlier one may have been cut short
        await self._shorten(held)
        layer = self._room.new_layer()
        try:
            if mode == "memory":
                await self.hold(held)
            await self.driver.freeze(held.plan)
            if mode == "memory":
                await self.driver.keep(held.plan, held.template, folder)
            splitting.begin(held.plan, layer)
            await self.driver.split_disk(held.plan, layer)
            held.plan = splitting.settled(held.plan)
        finally:
            await asyncio.shield(self._go_on(held))
        return self._record(held, mode)

    async def _go_on(self, held: Held) -> None:
        """After a capture, well or not: its vCPUs run, and with the clock of now also what was held of a user.

        Raises MachineGone where they do not; it is then as one that died.
        """
        try:
            await self._thawed(held)
        except _NOT_UP as failure:
            await self._lost(held, f"it did not go on after a capture: {failure}")
            raise MachineGone(f"sandbox {held.spec.sandbox_id} did not go on: {failure}") from failure
        finally:
            held.plan = splitting.settled(held.plan)  # it may have been cut short
        try:
            ready = Ready(plan=held.plan, template=held.template, channel=held.channel)
            await self._starter.identify(ready, held.spec, new=False)
        except (RuntimedError, OSError, TimeoutError) as failure:
            _log.warning("the clock of sandbox %s was not set after a capture: %s", held.spec.sandbox_id, failure)

    async def _thawed(self, held: Held) -> None:
        for left in range(GO_ON_TRIES - 1, -1, -1):
            try:
                await self.driver.thaw(held.plan)
                return
            except _NOT_UP as failure:
                if not left or self.driver.vmm_pid(held.plan.machine_id) is None:
                    raise
                _log.warning("sandbox %s is told to go on once more: %s", held.spec.sandbox_id, failure)
            await asyncio.sleep(GO_ON_EVERY_S)

    async def _shorten(self, held: Held) -> None:
        """A machine that was often copied starts no slower for it: its layers become its own disk again."""
        if len(held.plan.layers) < LAYERS_MAX:
            return
        try:
            await flatten(held.plan)
        except (RuntimedError, OSError, TimeoutError) as failure:
            _log.warning("the disks below sandbox %s are as many as before: %s", held.spec.sandbox_id, failure)
            return
        self._below(held, ())

    def _below(self, held: Held, layers: tuple[Path, ...]) -> None:
        """Note what lies below its disk from now on."""
        held.plan = replace(held.plan, layers=layers)
        record = journal.read(held.plan.directory)
        if record is not None:
            journal.write(replace(record, plan=held.plan))

    async def _copies(
        self, children: Sequence[MachineSpec], record: KeptRecord, kept: Kept
    ) -> list[tuple[Ready, Started]]:
        gate, made = asyncio.Semaphore(COPIES_AT_ONCE), {}

        async def one(number: int, spec: MachineSpec) -> None:
            async with gate:
                made[number] = await self._bring_up_copy(spec, record, kept, "fork")

        try:
            async with asyncio.TaskGroup() as group:
                for number, spec in enumerate(children):
                    group.create_task(one(number, spec))
        except BaseException as failed:
            for ready, _ in made.values():
                await asyncio.shield(self._starter.drop(ready))
            if isinstance(failed, BaseExceptionGroup):
                raise StartFailed(f"a copy did not start: {failed.exceptions[0]}") from failed
            raise
        return [made[number] for number in sorted(made)]

    async def _bring_up_copy(
        self, spec: MachineSpec, record: KeptRecord, kept: Kept, how: How
    ) -> tuple[Ready, Started]:
        """One that ran and did not answer is begun a second time, as a clone of a template is. Raises like `_bring_up`.

        Nothing of it was anybody's yet; a machine that wakes has a disk, which may have gone on, and has no second try.
        """
        try:
            return await self._bring_up(spec, record, kept, how, new=True)
        except _RanAndLost as lost:
            if how == "cold":  # its boot was watched, and tried again
                raise
            _log.warning("a copy for sandbox %s did not answer: %s", spec.sandbox_id, lost)
        return await self._bring_up(spec, record, kept, how, new=True)

    async def _bring_up(
        self, spec: MachineSpec, record: KeptRecord, kept: Kept, how: How, *, new: bool
    ) -> tuple[Ready, Started]:
        """A machine from what was kept. If this raises it is ended, and a disk that it took is back.

        Raises:
            StartFailed: it never ran. _RanAndLost: it did.
        """
        steps = Steps()
        plan = replace(self._starter.plan(record.plan.image, record.plan.shape), layers=record.plan.layers)
        if kept.disk is not None:
            self._room.sandboxes.take(spec.sandbox_id, plan.machine_id)
        written_ns = kept.disk.stat().st_mtime_ns if kept.disk else None
        try:
            channel = await self._begin(spec, plan, record, kept, cold=how == "cold")
        except BaseException:
            if kept.disk and kept.disk.exists() and kept.disk.stat().st_mtime_ns != written_ns:
                self._room.sandboxes.write(kept.directory, replace(record, mode="disk"))  # it ran: the memory is old
            raise
        try:
            channel = channel or await Channel.open(plan.socket, within_s=ANSWER_S)
            steps.done("booted" if how == "cold" else "restored")
            ready = Ready(plan=plan, template=record.template, channel=channel)
            self._parts.templates.hold(record.template, plan.directory)
            identify = self._starter.identify_cold if how == "cold" else self._starter.identify
            identified = await identify(ready, spec, new=new)
            steps.done("ready")
        except BaseException as failure:
            await asyncio.shield(self._undo(plan, record, kept))
            if isinstance(failure, RuntimedError | OSError | TimeoutError):
                raise _RanAndLost(str(failure)) from failure
            raise
        return ready, started(how, plan.image, steps, identified)

    async def _begin(
        self, spec: MachineSpec, plan: MachinePlan, record: KeptRecord, kept: Kept, *, cold: bool
    ) -> Channel | None:
        """The machine's process; the channel too where it was awaited. Raises like `_bring_up`."""
        if cold:
            self._starter.doing[spec.sandbox_id] = "booting its disk: about 20 s without KVM"
            return await self._boot(plan, record, kept)
        try:
            await self.driver.wake(plan, record.template, kept)
        except _NOT_UP as failure:
            raise StartFailed(f"what was kept did not come up: {failure}") from failure
        return None

    async def _boot(self, plan: MachinePlan, record: KeptRecord, kept: Kept) -> Channel:
        """Its disk, booted cold; where a boot hangs, the same disk is booted again. Raises like `_bring_up`."""
        try:
            return await boot_watched(
                self.driver,
                plan,
                way=BootWay(
                    begin=lambda: self.driver.boot_disk(plan, record.template, kept.disk),
                    undo=lambda: asyncio.shield(self._undo(plan, record, kept)),
                ),
                patience=DISK_PATIENCE,
            )
        except StartFailed as hung:
            raise _RanAndLost(hung.message) from hung
        except _NOT_UP as failure:
            raise StartFailed(f"what was kept did not come up: {failure}") from failure

    async def _undo(self, plan: MachinePlan, record: KeptRecord, kept: Kept) -> None:
        """End one that ran. Its disk may have gone on: the memory must never meet that again."""
        if kept.disk is None or kept.disk.exists():
            await self.driver.kill(plan.machine_id)
            return
        try:
            self._room.sandboxes.write(kept.directory, replace(record, mode="disk"))
            await self.driver.release(plan, kept.disk)
        except BaseException:  # it stays with its disk until somebody wants that
            journal.end_processes(plan.directory)
            raise

    async def _shelve(self, shelf: Shelf, owner: str, template: Template) -> Stored:
        stored = await asyncio.to_thread(shelf.finish, owner)
        self._parts.templates.hold(template, shelf.folder(owner))
        return stored

    def _record(self, held: Held, mode: Literal["memory", "disk"]) -> KeptRecord:
        return KeptRecord(
            mode=mode,
            generation=held.generation + 1,
            plan=held.plan,
            template=held.template,
            spec=replace(held.spec, env={}),
        )


def _remove_later(folder: Path | None) -> None:
    """A hundred MiB are not gone at once, and nobody waits for it. What a crash leaves is removed at the next start."""
    if folder is not None:
        spawn(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True), name=f"remove {folder.name}")


def sandbox_of(spec: MachineSpec) -> dict[str, object]:
    """What a machine's record says of its sandbox. Values of its environment are not written to disk."""
    return asdict(replace(spec, env={}))
