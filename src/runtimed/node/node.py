"""The machines of this host: which sandbox has which, one move of each at a time, and its end when it ends by itself.

One object owns every machine. A machine is in `_held` from the moment it has a sandbox's identity until everything of
it on the host is gone or on the shelf, so that a move that fails or is cancelled at any point leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from runtimed.core.errors import MachineGone, NoCapacity, RuntimedError, StartFailed
from runtimed.core.ids import SandboxId
from runtimed.core.ports import Guest, MachineEnded, PauseSettled
from runtimed.core.specs import Capacity, CopiesStarted, MachineSpec, Shape, Started, Stored
from runtimed.core.tasks import spawn
from runtimed.node.adopting import adopt
from runtimed.node.channel import Channel
from runtimed.node.cpu_shares import guarantee
from runtimed.node.guest import GuestClient
from runtimed.node.keeping import Keeper, sandbox_of
from runtimed.node.lease_files import LeaseFiles
from runtimed.node.parts import Held, ImageSource, NodeLimits, NodeParts, Ready, WayOut
from runtimed.node.remains import Remains, refusal
from runtimed.node.starting import Starter
from runtimed.node.vmm import journal

__all__ = ["ImageSource", "LocalNode", "NodeLimits", "NodeParts", "WayOut"]

_log = logging.getLogger(__name__)

RECONNECT_S = 10.0
REFILL_ABOVE, PRESSED_BELOW = 2.0, 1.5
"""Times the memory that is kept free: spares are made above the first, and ended below the second."""
FLUSH_S = 10.0
"""A guest that does not write its pages in time is ended without: its disk is as after a power cut."""


class LocalNode:
    """`core.ports.Node` on this host."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._held: dict[SandboxId, Held] = {}
        self._starting: dict[SandboxId, Shape] = {}
        self._ended: MachineEnded | None = None
        self._paused: PauseSettled | None = None
        self._starter = Starter(parts, is_idle=self._is_idle, is_pressed=self._is_pressed)
        self._keeper = Keeper(parts, self._starter, self._died)
        self._remains = Remains(parts)
        self._leases = LeaseFiles(parts.machines.parent / "leases")

    async def prepare(self) -> None:
        """Make what the default create needs: the image's template, then spares in the background."""
        await self._starter.prepare()

    async def close(self, *, end_machines: bool = True) -> None:
        """End every spare, and every machine unless another service is to adopt them. Idempotent."""
        if self._parts.guard is not None:
            self._parts.guard.cancel()
        await self._starter.close()
        for sandbox_id, held in list(self._held.items()):
            if held.writing is not None:
                await asyncio.wait([held.writing])
            elif end_machines:
                await self.stop(sandbox_id)
            else:
                await self._let_go(held)

    def on_ended(self, told: MachineEnded) -> None:
        """Who is told about machines that ended by themselves."""
        self._ended = told

    def on_paused(self, told: PauseSettled) -> None:
        """Who is told how the writing of a pause came out."""
        self._paused = told

    def running(self) -> frozenset[SandboxId]:
        """Sandboxes that have a machine."""
        return frozenset(self._held)

    def guest(self, sandbox_id: SandboxId) -> Guest:
        """Raises MachineGone when the sandbox has no machine here that runs."""
        held = self._held.get(sandbox_id)
        if held is None or held.stopping or held.frozen:
            raise MachineGone(f"sandbox {sandbox_id} has no running machine on this host")
        return held.guest

    def vmm_pid(self, sandbox_id: SandboxId) -> int | None:
        """Host pid of the sandbox's machine, for accounting."""
        held = self._held.get(sandbox_id)
        return self._parts.driver.vmm_pid(held.plan.machine_id) if held else None

    def capacity(self) -> Capacity:
        """What is promised and what may be."""
        limits = self._parts.limits
        shapes = [h.spec.shape for h in self._held.values()] + list(self._starting.values())
        return Capacity(
            vcpu_total=int((os.cpu_count() or 1) * limits.vcpu_overcommit),
            vcpu_used=sum(s.vcpu for s in shapes),
            memory_total_mib=int(_memory_mib("MemTotal") * limits.memory_overcommit),
            memory_used_mib=sum(s.memory_mib for s in shapes),
            machines=len(shapes),
            machines_max=limits.machines_max,
            cores=os.cpu_count() or 1,
        )

    async def start(self, spec: MachineSpec) -> Started:
        """Start and identify a machine. See `core.ports.Node.start`."""
        if spec.sandbox_id in self._held or spec.sandbox_id in self._starting:
            raise StartFailed(f"sandbox {spec.sandbox_id} has a machine already")
        await self._check_memory()
        self._starting[spec.sandbox_id] = spec.shape
        try:
            begin = self._starter.start if spec.snapshot_id is None else self._keeper.copy
            ready, started = await begin(spec)
            await self._claim([(ready, spec)])
            self._hold(ready, spec)
            return started
        finally:
            del self._starting[spec.sandbox_id]
            self._starter.doing.pop(spec.sandbox_id, None)

    async def stop(self, sandbox_id: SandboxId, *, keep_disk: bool = False) -> None:
        """End the machine. See `core.ports.Node.stop`."""
        held = self._held.get(sandbox_id)
        if held is not None:
            async with held.lock:
                if self._held.get(sandbox_id) is held:  # it may have died meanwhile
                    await self._stop(held, keep_disk=keep_disk)
        if not keep_disk:
            await self._remains.forget(sandbox_id)
            self._parts.room.sweep()
        elif held is None and sandbox_id not in self._starting:
            await self._remains.keep(sandbox_id)

    async def pause(self, sandbox_id: SandboxId) -> None:
        """Stop the vCPUs, then write in the background. See `core.ports.Node.pause`."""
        held = self._here(sandbox_id)
        async with held.lock:
            if held.writing is not None:
                return
            await self._keeper.check_space(held)
            await self._keeper.hold(held)
            await self._keeper.freeze(held)
            if held.watch is not None:
                held.watch.cancel()
            held.writing = spawn(self._write(held), name=f"pause {sandbox_id}")

    async def wake(self, spec: MachineSpec, *, from_disk: bool = False) -> Started:
        """Run again what was kept. See `core.ports.Node.wake`."""
        held = self._held.get(spec.sandbox_id)
        if held is not None and (started := await self._call_off(held)):
            return started
        await self._check_memory()
        if spec.sandbox_id in self._starting:
            raise StartFailed(f"sandbox {spec.sandbox_id} is being started already")
        self._starting[spec.sandbox_id] = spec.shape
        try:
            await self._remains.shelve(spec.sandbox_id)
            ready, started, generation = await self._keeper.wake(spec, from_disk=from_disk)
            try:
                _write_down(ready, spec, generation)
            except OSError:
                await asyncio.shield(self._keeper.unwake(ready, spec.sandbox_id))
                raise
            self._hold(ready, spec, generation)
            self._keeper.woken(spec.sandbox_id)  # only now: a service that died before would have nothing to go by
            return started
        except OSError as failure:
            raise refusal(failure) from failure
        finally:
            self._starting.pop(spec.sandbox_id, None)
            self._starter.doing.pop(spec.sandbox_id, None)

    async def fork(
        self, sandbox_id: SandboxId, children: Sequence[MachineSpec], *, keep_as: str | None = None
    ) -> CopiesStarted:
        """Start copies. See `core.ports.Node.fork`."""
        held = self._here(sandbox_id)
        await self._check_memory()
        self._starting.update({child.sandbox_id: child.shape for child in children})
        try:
            async with held.lock:
                made, kept = await self._keeper.fork(held, children, keep_as)
            await self._claim([(ready, spec) for spec, (ready, _) in zip(children, made, strict=True)])
            for spec, (ready, _) in zip(children, made, strict=True):
                self._hold(ready, spec)
            return CopiesStarted(started=tuple(started for _, started in made), kept=kept)
        finally:
            for child in children:
                self._starting.pop(child.sandbox_id, None)

    async def snapshot(self, sandbox_id: SandboxId, snapshot_id: str, mode: Literal["memory", "disk"]) -> Stored:
        """Keep it as it is now. See `core.ports.Node.snapshot`."""
        held = self._held.get(sandbox_id)
        if held is not None and held.writing is not None:
            await asyncio.wait([held.writing])
            held = self._held.get(sandbox_id)
        if held is None:
            if sandbox_id not in self._starting:
                await self._remains.shelve(sandbox_id)
            return await self._keeper.snapshot_kept(sandbox_id, snapshot_id, mode)
        async with held.lock:
            return await self._keeper.snapshot(held, snapshot_id, mode)

    async def forget_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Idempotent."""
        self._parts.room.snapshots.remove(snapshot_id)
        self._parts.room.sweep()

    def stored(self, sandbox_id: SandboxId) -> Stored | None:
        """What is kept of a sandbox that does not run."""
        if sandbox_id in self._held:
            return self._parts.room.sandboxes.stored(sandbox_id)
        return self._remains.stored(sandbox_id)

    async def adopt(self) -> frozenset[SandboxId]:
        """Take over what an earlier service left. See `core.ports.Node.adopt`."""
        for spec, ready, generation in await adopt(self._parts, self._starter, self._remains):
            self._hold(ready, spec, generation)
        self._leases.clear_all_but(held.plan.machine_id for held in self._held.values())
        return frozenset(self._held)

    def lease(self, sandbox_id: SandboxId, ends_in_s: float) -> None:
        """Tell the guard. Idempotent."""
        if (held := self._held.get(sandbox_id)) is not None:
            try:
                self._leases.write(held.plan.machine_id, held.plan.directory, ends_in_s)
            except OSError as failure:  # the service ends it by itself: the guard is for when that is dead
                _log.warning("the guard is not told the lease of sandbox %s: %s", sandbox_id, failure)

    def _here(self, sandbox_id: SandboxId) -> Held:
        held = self._held.get(sandbox_id)
        if held is None or held.stopping:
            raise MachineGone(f"sandbox {sandbox_id} has no running machine on this host")
        return held

    async def _claim(self, made: Sequence[tuple[Ready, MachineSpec]]) -> None:
        """Write down whose new machines are. Raises NoCapacity, HostUnavailable: they are ended."""
        try:
            for ready, spec in made:
                _write_down(ready, spec, 0)
        except OSError as failure:
            for ready, _ in made:
                await asyncio.shield(self._starter.drop(ready))
            raise refusal(failure) from failure

    def _hold(self, ready: Ready, spec: MachineSpec, generation: int = 0) -> None:
        held = Held(
            plan=ready.plan,
            template=ready.template,
            channel=ready.channel,
            guest=GuestClient(ready.channel),
            spec=spec,
            generation=generation,
        )
        self._held[spec.sandbox_id] = held
        if spec.cpu_floor_millis and (pid := self._parts.driver.vmm_pid(ready.plan.machine_id)) is not None:
            guarantee(pid, spec.cpu_floor_millis)
        held.watch = spawn(self._watch(held), name=f"watch {spec.sandbox_id}")

    async def _stop(self, held: Held, *, keep_disk: bool) -> None:
        """With the machine's lock held."""
        held.stopping = True
        if held.writing is not None:
            if not (keep_disk or held.releasing):
                held.writing.cancel()
            await asyncio.wait([held.writing])
            if self._held.get(held.spec.sandbox_id) is not held:
                return  # on the shelf, or dead; else it has gone on
        if keep_disk:
            await self._end_with_disk(held)
            return
        await self._let_go(held)
        await self._parts.driver.kill(held.plan.machine_id)
        await self._drop(held)  # only now: who asks again finds it until everything of it is gone

    async def _end_with_disk(self, held: Held) -> None:
        """Raises Unavailable where no disk can be kept."""
        _ = self._keeper.driver
        try:
            if not held.frozen:
                async with asyncio.timeout(FLUSH_S):
                    await held.guest.flush()
                await self._keeper.freeze(held)
        except (RuntimedError, OSError, TimeoutError) as failure:
            _log.warning("sandbox %s is ended as by a power cut: %s", held.spec.sandbox_id, failure)
        await self._lay_down(held)
        await self._drop(held)

    async def _lay_down(self, held: Held) -> None:
        """End a machine; its disk is on the shelf then, or where it is while the shelf cannot take it."""
        if self._parts.memory is not None and not await self._remains.keep(held.spec.sandbox_id):
            journal.end_processes(held.plan.directory)
            return
        await self._parts.driver.kill(held.plan.machine_id)

    async def _drop(self, held: Held) -> None:
        """Forget a machine that is ending."""
        await self._let_go(held)
        self._leases.remove(held.plan.machine_id)
        if self._held.get(held.spec.sandbox_id) is held:
            del self._held[held.spec.sandbox_id]

    async def _let_go(self, held: Held) -> None:
        if held.watch is not None and held.watch is not asyncio.current_task():
            held.watch.cancel()
        await held.channel.close()

    async def _write(self, held: Held) -> None:
        """The second half of a pause; a failure lets the machine go on, or at least keeps its disk."""
        sandbox_id = held.spec.sandbox_id
        try:
            stored: Stored | None = await self._keeper.write(held)
            why = ""
        except (RuntimedError, OSError, EOFError, LookupError, TimeoutError) as failure:
            stored, why = None, str(failure)
            _log.warning("the pause of sandbox %s could not be written: %s", sandbox_id, failure)
        if stored is not None:
            await self._drop(held)
        elif not await self._went_on(held):
            return
        if self._paused is not None:
            await self._paused(sandbox_id, stored, why)

    async def _went_on(self, held: Held) -> bool:
        try:
            await self._keeper.thaw(held)
        except (RuntimedError, OSError, TimeoutError) as failure:
            await self._died(held, f"it did not go on after a pause that failed: {failure}")
            return False
        held.watch = spawn(self._watch(held), name=f"watch {held.spec.sandbox_id}")
        return True

    async def _call_off(self, held: Held) -> Started | None:
        """Let a machine go on whose pause is still being written; None when it is on the shelf by now."""
        async with held.lock:
            if held.writing is None:
                raise StartFailed(f"sandbox {held.spec.sandbox_id} has a machine already")
            if not held.releasing:
                held.writing.cancel()
            await asyncio.wait([held.writing])
            if self._held.get(held.spec.sandbox_id) is not held:
                return None
            if not held.frozen:  # the write had failed, and it went on by itself
                raise StartFailed(f"sandbox {held.spec.sandbox_id} has a machine already")
            try:
                started = await self._keeper.thaw(held)
            except (RuntimedError, OSError, TimeoutError) as failure:
                await self._died(held, f"it did not go on: {failure}")
                raise StartFailed("the machine did not go on", hint="Restart boots it from its disk.") from failure
            held.watch = spawn(self._watch(held), name=f"watch {held.spec.sandbox_id}")
            return started

    async def _watch(self, held: Held) -> None:
        """Notice the machine's end, and open the channel again when only that was lost."""
        exited = spawn(self._parts.driver.wait_exit(held.plan.machine_id), name=f"exit {held.spec.sandbox_id}")
        try:
            why = None
            while why is None:
                closed = asyncio.shield(held.channel.closed)
                await asyncio.wait([exited, closed], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
                if not exited.done():
                    # The channel of a machine that ends is lost a moment before its process is.
                    reopening = spawn(self._reopen(held), name=f"reopen {held.spec.sandbox_id}")
                    await asyncio.wait([exited, reopening], return_when=asyncio.FIRST_COMPLETED)
                    if not exited.done():
                        why = reopening.result()
                        continue
                    reopening.cancel()
                why = exited.result()
            async with held.lock:
                await self._died(held, why)
        finally:
            exited.cancel()

    async def _died(self, held: Held, why: str) -> None:
        """A machine ended by itself: its disk is kept, and whoever answers for it is told. Not one that is stopped."""
        if held.stopping:
            return
        sandbox_id, held.stopping = held.spec.sandbox_id, True
        _log.warning("the machine of sandbox %s ended: %s", sandbox_id, why)
        try:
            await self._lay_down(held)
        except OSError as failure:
            _log.warning("the machine of sandbox %s cannot be ended: %s", sandbox_id, failure)
        finally:
            await self._drop(held)
        if self._ended is not None:
            await self._ended(sandbox_id, why)

    async def _reopen(self, held: Held) -> str | None:
        """A new channel to the same machine; the reason when that cannot or must not be."""
        if held.stopping:
            return "it is being stopped"
        closing = held.channel.closed.result()
        if closing.hostile:
            return closing.reason
        try:
            held.channel = await Channel.open(held.plan.socket, within_s=RECONNECT_S)
        except (RuntimedError, OSError, TimeoutError) as failure:
            return f"the guest's agent does not answer any more: {failure}"
        held.guest = GuestClient(held.channel)
        self._starter.lead_out(held.channel, held.spec.sandbox_id)
        return None

    def doing(self, sandbox_id: SandboxId) -> str | None:
        """What a start that takes long does now. See `core.ports.Node.doing`."""
        return self._starter.doing.get(sandbox_id)

    def _is_idle(self) -> bool:
        return (
            not self._starting and _memory_mib("MemAvailable") > REFILL_ABOVE * self._parts.limits.memory_keep_free_mib
        )

    def _is_pressed(self) -> bool:
        return _memory_mib("MemAvailable") < PRESSED_BELOW * self._parts.limits.memory_keep_free_mib

    async def _check_memory(self) -> None:
        """A start may go on; spares give their memory up for it. Raises NoCapacity where that is not enough."""
        keep = self._parts.limits.memory_keep_free_mib
        while (free := _memory_mib("MemAvailable")) < keep and await self._starter.spares.give_back():
            _log.info("a spare was ended for a start: %d MiB are available, %d are kept", free, keep)
        if free < keep:
            raise NoCapacity(
                f"the host has {free} MiB of memory available and keeps {keep} MiB",
                hint="Stop a sandbox, or ask again in a moment.",
                retry_after_ms=2000,
            )


def _write_down(ready: Ready, spec: MachineSpec, generation: int) -> None:
    """Whose machine it is: from here on the next service takes it for that sandbox's. Raises OSError."""
    if (record := journal.read(ready.plan.directory)) is not None:
        journal.write(replace(record, sandbox=sandbox_of(spec) | {"generation": generation}))


def _memory_mib(field_name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) // 1024
    raise LookupError(field_name)
