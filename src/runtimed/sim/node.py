"""A node whose machines are values in memory: every move can be held up or made to fail, machines can be made to die.

The host outlives the node: a `SimNode` over the `SimHost` of another one is a service that was started again.

    start --> running --pause--> frozen --written--> kept (memory and disk, one generation)
                 ^                 |                   |
                 +------thaw-------+                   |     stop(keep_disk), a crash: kept (disk alone)
                 +---------------wake------------------+
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runtimed.core.clock import Clock
from runtimed.core.errors import MachineGone, NotFound, RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.ports import Guest, MachineEnded, PauseSettled
from runtimed.core.specs import Capacity, CopiesStarted, MachineSpec, Started, Stored
from runtimed.core.tasks import spawn
from runtimed.sim.faults import Faults
from runtimed.sim.guest import Script, SimGuest, echo_script

MEMORY_BYTES, DISK_BYTES = 40 << 20, 4 << 20
"""What every kept machine is said to own."""


@dataclass(kw_only=True)
class SimMachine:
    """A process of the host."""

    spec: MachineSpec
    guest: SimGuest
    generation: int
    frozen: bool = False


@dataclass(kw_only=True)
class SimKept:
    """Files of the host: a disk, and memory that belongs to it only where both have one number."""

    spec: MachineSpec
    guest: SimGuest
    disk_generation: int
    memory_generation: int | None

    @property
    def whole(self) -> bool:
        return self.memory_generation == self.disk_generation


@dataclass(kw_only=True)
class SimHost:
    """What is there whatever becomes of the service."""

    machines: dict[SandboxId, SimMachine] = field(default_factory=dict)
    kept: dict[SandboxId, SimKept] = field(default_factory=dict)
    snapshots: dict[str, SimKept] = field(default_factory=dict)
    leases: dict[SandboxId, float] = field(default_factory=dict)
    """Seconds that the lease guard was last told."""
    generations: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class SimNode:
    """Implements core.ports.Node."""

    def __init__(
        self,
        *,
        host: SimHost | None = None,
        clock: Clock | None = None,
        memory_mib: int = 1 << 20,
        vcpu: int = 1024,
        script: Script = echo_script,
    ) -> None:
        self.host = host or SimHost()
        self.faults = Faults()
        self.memory_mib, self.vcpu, self.cores = memory_mib, vcpu, vcpu
        self.script = script
        self.specs: dict[SandboxId, MachineSpec] = {}
        """What was asked last, of whatever was ever started."""
        self.stops: list[SandboxId] = []
        self.start_gate: asyncio.Event | None = None
        """Where set, no start gets past it."""
        self.start_error: RuntimedError | None = None
        self.stop_error: RuntimedError | None = None
        self.write_s = 0.0
        """How long the memory of a paused machine is being written, on `clock`."""
        self.write_error: str | None = None
        """Where set, no memory can be written: a paused machine goes on."""
        self._clock = clock
        self._writing: dict[SandboxId, asyncio.Task[None]] = {}
        self._told: MachineEnded | None = None
        self._told_paused: PauseSettled | None = None

    @property
    def guests(self) -> dict[SandboxId, SimGuest]:
        return {sandbox_id: machine.guest for sandbox_id, machine in self.host.machines.items()}

    async def start(self, spec: MachineSpec) -> Started:
        if self.start_gate is not None:
            await self.start_gate.wait()
        if self.start_error is not None:
            raise self.start_error
        await self.faults.reach("start")
        how: Literal["spare", "snapshot", "cold"] = "spare"
        guest = SimGuest(self.script)
        if spec.snapshot_id is not None:
            if (snapshot := self.host.snapshots.get(spec.snapshot_id)) is None:
                raise NotFound(f"there is no snapshot {spec.snapshot_id!r}")
            how = "snapshot" if snapshot.whole else "cold"
            guest = snapshot.guest.copy() if snapshot.whole else snapshot.guest.rebooted(self.script)
        return self._run(spec, guest, how)

    async def stop(self, sandbox_id: SandboxId, *, keep_disk: bool = False) -> None:
        self.stops.append(sandbox_id)
        if self.stop_error is not None:
            raise self.stop_error
        await self.faults.reach("stop")
        self._call_off(sandbox_id)
        self._die(sandbox_id)
        if keep_disk and (kept := self.host.kept.get(sandbox_id)) is not None:
            self.host.kept[sandbox_id] = replace(kept, memory_generation=None)
        elif not keep_disk:
            self.host.kept.pop(sandbox_id, None)
        self.host.leases.pop(sandbox_id, None)

    async def pause(self, sandbox_id: SandboxId) -> None:
        machine = self._machine(sandbox_id)
        await self.faults.reach("pause")
        machine = self._machine(sandbox_id)
        machine.frozen = True
        machine.guest.sim_processes.cut()
        self._writing[sandbox_id] = spawn(self._write(sandbox_id, machine), name=f"write {sandbox_id}")

    async def wake(self, spec: MachineSpec, *, from_disk: bool = False) -> Started:
        await self.faults.reach("wake")
        sandbox_id = spec.sandbox_id
        self._call_off(sandbox_id)
        machine = self.host.machines.get(sandbox_id)
        if machine is not None:
            machine.frozen = False
            machine.spec = self.specs[sandbox_id] = spec
            machine.guest.env, machine.guest.user = dict(spec.env), spec.user
            return _started(spec, "thaw")
        kept = self.host.kept.get(sandbox_id)
        if kept is None:
            raise NotFound(f"nothing is kept of sandbox {sandbox_id}")
        whole = kept.whole and not from_disk
        guest = kept.guest if whole else kept.guest.rebooted(self.script)
        del self.host.kept[sandbox_id]
        return self._run(spec, guest, "wake" if whole else "cold")

    async def fork(
        self, sandbox_id: SandboxId, children: Sequence[MachineSpec], *, keep_as: str | None = None
    ) -> CopiesStarted:
        self._machine(sandbox_id)
        await self.faults.reach("fork")
        source = self._machine(sandbox_id)
        captured = source.guest.copy()
        begun: list[SandboxId] = []
        try:
            started = []
            for spec in children:
                await self.faults.reach("fork child")
                started.append(self._run(spec, captured.copy(), "fork"))
                begun.append(spec.sandbox_id)
            return CopiesStarted(started=tuple(started), kept=await self._keep(source, captured, keep_as))
        except BaseException:
            for child in begun:
                self._die(child)
                self.host.kept.pop(child, None)
            raise

    async def _keep(self, source: SimMachine, captured: SimGuest, keep_as: str | None) -> Stored | None:
        if keep_as is None:
            return None
        await self.faults.reach("fork keep")
        number = next(self.host.generations)
        self.host.snapshots[keep_as] = kept = SimKept(
            spec=source.spec, guest=captured.copy(), disk_generation=number, memory_generation=number
        )
        return _stored(kept)

    async def snapshot(self, sandbox_id: SandboxId, snapshot_id: str, mode: Literal["memory", "disk"]) -> Stored:
        await self.faults.reach("snapshot")
        machine, kept = self.host.machines.get(sandbox_id), self.host.kept.get(sandbox_id)
        source = machine or kept
        if source is None:
            raise MachineGone(f"sandbox {sandbox_id} has no machine")
        if mode == "memory" and kept is not None and not kept.whole:
            raise MachineGone(f"sandbox {sandbox_id} has no memory")
        number = next(self.host.generations)
        self.host.snapshots[snapshot_id] = SimKept(
            spec=source.spec,
            guest=source.guest.copy() if mode == "memory" else source.guest.rebooted(self.script),
            disk_generation=number,
            memory_generation=number if mode == "memory" else None,
        )
        return _stored(self.host.snapshots[snapshot_id])

    async def forget_snapshot(self, snapshot_id: str) -> None:
        await self.faults.reach("forget snapshot")
        self.host.snapshots.pop(snapshot_id, None)

    def stored(self, sandbox_id: SandboxId) -> Stored | None:
        kept = self.host.kept.get(sandbox_id)
        return None if kept is None else _stored(kept)

    async def adopt(self) -> frozenset[SandboxId]:
        """A machine that was frozen while its memory was being written runs again: the write is lost."""
        for machine in self.host.machines.values():
            machine.frozen = False
        for sandbox_id, kept in self.host.kept.items():
            self.specs.setdefault(sandbox_id, kept.spec)
        self.specs |= {sandbox_id: machine.spec for sandbox_id, machine in self.host.machines.items()}
        return frozenset(self.host.machines)

    def lease(self, sandbox_id: SandboxId, ends_in_s: float) -> None:
        self.host.leases[sandbox_id] = ends_in_s

    def doing(self, sandbox_id: SandboxId) -> str | None:
        return "booting" if self.start_gate is not None and not self.start_gate.is_set() else None

    def guest(self, sandbox_id: SandboxId) -> Guest:
        return self._machine(sandbox_id).guest

    def running(self) -> frozenset[SandboxId]:
        return frozenset(self.host.machines)

    def capacity(self) -> Capacity:
        shapes = [machine.spec.shape for machine in self.host.machines.values()]
        return Capacity(
            vcpu_total=self.vcpu,
            vcpu_used=sum(s.vcpu for s in shapes),
            memory_total_mib=self.memory_mib,
            memory_used_mib=sum(s.memory_mib for s in shapes),
            machines=len(shapes),
            machines_max=256,
            cores=self.cores,
        )

    def vmm_pid(self, sandbox_id: SandboxId) -> int | None:
        return None

    def on_ended(self, told: MachineEnded) -> None:
        self._told = told

    def on_paused(self, told: PauseSettled) -> None:
        self._told_paused = told

    async def kill(self, sandbox_id: SandboxId) -> None:
        """The machine ends by itself. Its disk is as it was; memory that was not written is gone."""
        self._call_off(sandbox_id)
        self._die(sandbox_id)
        if self._told is not None:
            await self._told(sandbox_id, "its process was killed")

    def crash(self) -> None:
        """The service is gone, in the middle of whatever it did; the host is as it is."""
        for sandbox_id in list(self._writing):
            self._call_off(sandbox_id)
        for machine in self.host.machines.values():
            machine.guest.sim_processes.cut()
        self._told = self._told_paused = None

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def close(self, *, end_machines: bool = True) -> None:
        """Nothing is held."""

    def _machine(self, sandbox_id: SandboxId) -> SimMachine:
        machine = self.host.machines.get(sandbox_id)
        if machine is None or machine.frozen:
            raise MachineGone(f"sandbox {sandbox_id} has no machine")
        return machine

    def _run(
        self, spec: MachineSpec, guest: SimGuest, how: Literal["spare", "cold", "wake", "fork", "snapshot"]
    ) -> Started:
        assert spec.sandbox_id not in self.host.machines, "two machines for one sandbox"
        guest.env, guest.user = dict(spec.env), spec.user
        self.host.machines[spec.sandbox_id] = SimMachine(spec=spec, guest=guest, generation=next(self.host.generations))
        self.specs[spec.sandbox_id] = spec
        return _started(spec, how)

    def _die(self, sandbox_id: SandboxId) -> None:
        if (machine := self.host.machines.pop(sandbox_id, None)) is not None:
            machine.guest.sim_processes.die()
            # The disk is a file of the host: it is there until somebody removes it.
            self.host.kept[sandbox_id] = SimKept(
                spec=machine.spec,
                guest=machine.guest,
                disk_generation=machine.generation,
                memory_generation=None,
            )

    def _call_off(self, sandbox_id: SandboxId) -> None:
        if (writing := self._writing.pop(sandbox_id, None)) is not None:
            writing.cancel()

    async def _write(self, sandbox_id: SandboxId, machine: SimMachine) -> None:
        stored, why = None, ""
        try:
            await self.faults.reach("write")
            if self._clock is not None and self.write_s:
                await self._clock.sleep(self.write_s)
            if self.write_error is not None:
                raise OSError(self.write_error)
        except Exception as failure:  # noqa: BLE001 - whatever a test lets fail here is a full disk
            machine.frozen, why = False, str(failure)
        else:
            number = next(self.host.generations)
            self.host.kept[sandbox_id] = kept = SimKept(
                spec=machine.spec, guest=machine.guest, disk_generation=number, memory_generation=number
            )
            del self.host.machines[sandbox_id]
            stored = _stored(kept)
        self._writing.pop(sandbox_id, None)
        if self._told_paused is not None:
            await self._told_paused(sandbox_id, stored, why)


def _started(spec: MachineSpec, how: Literal["spare", "cold", "wake", "thaw", "fork", "snapshot"]) -> Started:
    return Started(
        how=how, image_id=f"sim-{spec.image}", steps_ms={"start": 0.0}, clock_skew_ms=0.0, entropy_reseeded=True
    )


def _stored(kept: SimKept) -> Stored:
    return Stored(
        mode="memory" if kept.whole else "disk",
        generation=kept.disk_generation,
        memory_bytes=MEMORY_BYTES if kept.whole else 0,
        disk_bytes=DISK_BYTES,
        shape=kept.spec.shape,
        image=kept.spec.image,
    )
