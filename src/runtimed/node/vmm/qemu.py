"""Does what `argv` and `launch` say: starts, restores, keeps and ends QEMU microVMs. Knows nothing of sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from runtimed.core.errors import HostUnavailable
from runtimed.node.vmm import argv, difference, journal
from runtimed.node.vmm.argv import DEVICE_STATE, DISK, IGNORE_SHARED, MEMORY, Emulator, Start, qemu_argv
from runtimed.node.vmm.base import Kept, MachinePlan, Template
from runtimed.node.vmm.blank import EMPTY, Blanks, make_overlay
from runtimed.node.vmm.chains import active_node
from runtimed.node.vmm.launch import START_S, JailPolicy, Launched, Order, last_words, launch, places
from runtimed.node.vmm.processes import ProcessMark, end, mark, same
from runtimed.node.vmm.qmp import monitor
from runtimed.node.vmm.space import check_room

SAVE_S = 120.0
KILL_S = 10.0
"""After SIGKILL a process leaves as soon as the kernel has freed its memory."""
PAGES, TABLE = "pages", "pages.json"

Prepare = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """One start: what it starts from, what is made first, what is loaded after."""

    start: Start
    template: Template | None
    prepare: Prepare
    kept: Kept | None = None


class QemuDriver:
    """A `MemoryDriver` on QEMU's microvm machine. One per service; it owns the machines' folders below `root`."""

    def __init__(self, root: Path, emulator: Emulator, policy: JailPolicy) -> None:
        self._root = root
        self._emulator = emulator
        self._policy = policy
        self._children: dict[str, Launched] = {}
        self._owner = mark(os.getpid())
        self.blanks = Blanks(policy.qemu)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def boot(self, plan: MachinePlan) -> None:
        """Start cold from the image. Idempotent; see `VmmDriver.boot`."""

        async def prepare() -> None:
            (plan.own / MEMORY).touch()
            os.truncate(plan.own / MEMORY, plan.shape.memory_mib << 20)
            await make_overlay(self._policy.qemu, plan.own / DISK, plan.shape)

        await self._begin(plan, _Beginning(start=Start.NEW, template=None, prepare=prepare))

    async def restore(self, plan: MachinePlan, template: Template) -> None:
        """Start a clone. Idempotent; see `VmmDriver.restore`."""
        prepare = self._disk_of(plan, template, None)
        await self._begin(plan, _Beginning(start=Start.CLONE, template=template, prepare=prepare))

    async def wake(self, plan: MachinePlan, template: Template, kept: Kept) -> None:
        """Start from what was kept. Idempotent; see `MemoryDriver.wake`."""
        prepare = self._disk_of(plan, template, kept.disk)
        beginning = _Beginning(start=Start.WOKEN, template=template, prepare=prepare, kept=kept)
        try:
            await self._begin(plan, beginning)
        except BaseException:
            self._give_back(plan, kept.disk)
            await self.kill(plan.machine_id)
            raise

    async def boot_disk(self, plan: MachinePlan, template: Template, disk: Path | None) -> None:
        """Boot cold from a disk. Idempotent; see `MemoryDriver.boot_disk`."""
        prepare = self._disk_of(plan, template, disk)
        try:
            await self._begin(plan, _Beginning(start=Start.FROM_DISK, template=template, prepare=prepare))
        except BaseException:
            self._give_back(plan, disk)
            await self.kill(plan.machine_id)
            raise

    async def save(self, plan: MachinePlan, into: Path) -> None:
        """Keep memory, device state and disk in `into`; the machine is gone afterwards. See `VmmDriver.save`."""
        inside = places(self._policy, plan, None, None)
        async with asyncio.timeout(SAVE_S), monitor(plan.own) as qmp:
            await qmp.execute("stop")
            await qmp.execute("migrate-set-capabilities", IGNORE_SHARED)
            await qmp.execute("migrate", {"uri": f"file:{inside.machine}/{DEVICE_STATE}"})
            while (status := await _status(qmp.execute, "query-migrate")) != "completed":
                if status in ("failed", "cancelled"):
                    raise HostUnavailable(f"QEMU could not save the machine's state: {status}")
                await asyncio.sleep(0.005)
            await qmp.execute("quit")
        await self.wait_exit(plan.machine_id)
        into.mkdir(parents=True, exist_ok=True)
        for name in (MEMORY, DEVICE_STATE, DISK):
            take(plan.own / name, into / name)
        await make_overlay(self._policy.qemu, into / EMPTY, plan.shape)
        await self.kill(plan.machine_id)

    async def freeze(self, plan: MachinePlan) -> None:
        """Stop the vCPUs. Idempotent; see `MemoryDriver.freeze`."""
        async with monitor(plan.own) as qmp:
            await qmp.execute("stop")

    async def thaw(self, plan: MachinePlan) -> None:
        """Let the vCPUs go on. Idempotent."""
        async with monitor(plan.own) as qmp:
            await qmp.execute("cont")

    async def keep(self, plan: MachinePlan, template: Template, into: Path) -> int:
        """Write what a frozen clone owns. See `MemoryDriver.keep`."""
        pid = self._vmm(plan.machine_id).pid
        memory = difference.spans(pid, (template.directory / MEMORY).stat().st_ino)
        runs = await asyncio.to_thread(difference.owned, pid, memory)
        check_room(self._root, sum(run.length for run in runs))
        into.mkdir(parents=True, exist_ok=True)
        inside = places(self._policy, plan, template, None)
        async with asyncio.timeout(SAVE_S), monitor(plan.own) as qmp:
            await qmp.execute("xen-save-devices-state", {"filename": f"{inside.machine}/{DEVICE_STATE}"})
        take(plan.own / DEVICE_STATE, into / DEVICE_STATE)
        difference.write_table(into / TABLE, runs)
        return await asyncio.to_thread(difference.copy_to_file, pid, memory, runs, into / PAGES)

    async def split_disk(self, plan: MachinePlan, layer: Path) -> None:
        """Freeze the disk as a layer. See `MemoryDriver.split_disk`."""
        inside = places(self._policy, plan, None, None)
        async with monitor(plan.own) as qmp:
            node, old = active_node(await qmp.execute("query-block")), _own_disk(plan)
            number = int(node.removeprefix("disk")) + 1
            fresh = f"disk{number}.qcow2"
            await qmp.execute(
                "blockdev-snapshot-sync",
                {
                    "node-name": node,
                    "snapshot-node-name": f"disk{number}",
                    "snapshot-file": f"{inside.machine}/{fresh}",
                    "format": "qcow2",
                },
            )
        take(old, layer)

    async def release(self, plan: MachinePlan, disk: Path) -> None:
        """End the machine and keep its disk. See `MemoryDriver.release`."""
        await self._end(plan.machine_id)
        take(_own_disk(plan), disk, mode=0o600)
        await self.kill(plan.machine_id)

    async def kill(self, machine_id: str) -> None:
        """End the process, then remove the folder. Idempotent."""
        await self._end(machine_id)
        await asyncio.to_thread(shutil.rmtree, self._root / machine_id, ignore_errors=True)

    async def _end(self, machine_id: str) -> None:
        """End the process and leave the folder as it is. Idempotent."""
        child = self._children.get(machine_id)
        if child is not None:
            marks = [child.vmm, child.jail]
        else:
            marks = await asyncio.to_thread(journal.processes, self._root / machine_id)
        for seen in marks:
            end(seen)
        if child is not None:
            await child.process.wait()
            self._children.pop(machine_id, None)
        async with asyncio.timeout(KILL_S):
            await _gone(marks, every_s=0.01)

    async def list(self) -> frozenset[str]:
        """Ids whose process is alive, from the records on disk and /proc."""
        alive = set()
        for directory in journal.machines(self._root):
            record = journal.read(directory)
            if record is not None and any(m is not None and same(m) for m in (record.vmm, record.jail)):
                alive.add(directory.name)
        return frozenset(alive)

    async def wait_exit(self, machine_id: str) -> str:
        """Return when the process has ended, with a sentence that says how."""
        child = self._children.get(machine_id)
        record = journal.read(self._root / machine_id)
        if child is None:
            if record is not None and record.vmm is not None:
                await _gone([record.vmm], every_s=0.25)
            return "the machine's process is gone"
        code = await child.process.wait()
        if code == 0:
            return "the guest powered off, restarted or its kernel panicked"
        return f"QEMU ended with status {code}{last_words(record.plan) if record else ''}"

    async def console(self, machine_id: str) -> bytes:
        """The newest 64 KiB that the guest wrote to its console."""
        async with monitor(self._root / machine_id / "own", within_s=START_S) as qmp:
            asked = {"device": "console", "size": argv.CONSOLE_RING_BYTES, "format": "utf8"}
            return str(await qmp.execute("ringbuf-read", asked)).encode(errors="replace")

    def vmm_pid(self, machine_id: str) -> int | None:
        """Host pid of QEMU itself, for accounting."""
        record = journal.read(self._root / machine_id)
        return record.vmm.pid if record and record.vmm and same(record.vmm) else None

    async def _begin(self, plan: MachinePlan, beginning: _Beginning) -> None:
        if plan.machine_id in await self.list():
            return
        check_room(self._root, 0)
        template, kept = beginning.template, beginning.kept
        try:
            plan.own.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._record(plan, template, None)
            await beginning.prepare()
            state = kept.directory / DEVICE_STATE if kept else None
            inside = places(self._policy, plan, template, state)
            command = qemu_argv(self._emulator, plan.shape, inside, beginning.start)
            order = Order(plan=plan, template=template, state=state, accel=self._emulator.accel, command=command)
            launched = await launch(self._policy, order)
            self._children[plan.machine_id] = launched
            self._record(plan, template, launched)
            if beginning.start in (Start.CLONE, Start.WOKEN):
                await _load(plan, inside.state, lambda: _put_back(launched.vmm.pid, template, kept))
        except BaseException as failure:
            await self._end(plan.machine_id)
            if kept is None and beginning.start is not Start.FROM_DISK:  # those have a disk to give back first
                await self.kill(plan.machine_id)
            if isinstance(failure, OSError):
                raise HostUnavailable(f"the machine could not be started: {failure.strerror}") from failure
            raise

    def _disk_of(self, plan: MachinePlan, template: Template, disk: Path | None) -> Prepare:
        async def prepare() -> None:
            if disk is not None:
                os.rename(disk, plan.own / DISK)
            elif (template.directory / EMPTY).exists():
                await asyncio.to_thread(shutil.copyfile, template.directory / EMPTY, plan.own / DISK)
            else:
                raise HostUnavailable(f"the template {template.key} is not there any more", hint="Create it again.")

        return prepare

    def _give_back(self, plan: MachinePlan, disk: Path | None) -> None:
        """After a start that failed: the disk goes back where it was kept."""
        if disk is not None and not disk.exists() and (plan.own / DISK).exists():
            take(plan.own / DISK, disk, mode=0o600)

    def _record(self, plan: MachinePlan, template: Template | None, launched: Launched | None) -> None:
        jail, vmm = (launched.jail, launched.vmm) if launched else (None, None)
        journal.write(journal.MachineRecord(plan=plan, template=template, owner=self._owner, jail=jail, vmm=vmm))

    def _vmm(self, machine_id: str) -> ProcessMark:
        record = journal.read(self._root / machine_id)
        if record is None or record.vmm is None or not same(record.vmm):
            raise HostUnavailable("the machine's process is gone")
        return record.vmm


def take(source: Path, target: Path, *, mode: int = 0o444) -> None:
    """Move a file out of a machine's own folder: it is the service's then, and (by default) never written again.

    Raises:
        HostUnavailable: it is no plain file of its own. A machine's process that was taken over could put a link there.
    """
    os.rename(source, target)
    found = os.lstat(target)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.unlink(target)
        raise HostUnavailable(f"the machine's {source.name} is not the file that it should be")
    os.chown(target, os.getuid(), os.getgid(), follow_symlinks=False)
    os.chmod(target, mode)


def _put_back(pid: int, template: Template | None, kept: Kept | None) -> None:
    if template is None or kept is None:
        return
    memory = difference.spans(pid, (template.directory / MEMORY).stat().st_ino)
    difference.copy_from_file(pid, memory, difference.read_table(kept.directory / TABLE), kept.directory / PAGES)


def _own_disk(plan: MachinePlan) -> Path:
    """The file that the machine writes to. Earlier ones have become layers elsewhere, so there is one."""
    (own,) = plan.own.glob("disk*.qcow2")
    return own


async def _gone(marks: list[ProcessMark], *, every_s: float) -> None:
    """Wait until processes that may not be our children have left."""
    while any(same(seen) for seen in marks):  # noqa: ASYNC110 - there is no event for somebody else's child
        await asyncio.sleep(every_s)


async def _load(plan: MachinePlan, state: str, put_back: Callable[[], None]) -> None:
    """Load pages and device state, and let the guest run on. QEMU has mapped its memory once its monitor answers."""
    try:
        async with monitor(plan.own, within_s=START_S) as qmp:
            await asyncio.to_thread(put_back)
            await qmp.execute("migrate-set-capabilities", IGNORE_SHARED)
            await qmp.execute("migrate-incoming", {"uri": f"file:{state}"})
            while await _status(qmp.execute, "query-status") == "inmigrate":  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.001)
            await qmp.execute("cont")  # the state says stopped, because it was saved so
    except (OSError, EOFError, LookupError, TimeoutError) as failure:
        raise HostUnavailable(f"QEMU did not load the machine's state{last_words(plan)}") from failure


async def _status(execute: Callable[..., Awaitable[object]], command: str) -> str:
    answer = await execute(command)
    return str(answer.get("status")) if isinstance(answer, dict) else ""
