"""A node whose machines are values in memory: starts can be held up or made to fail, machines can be made to die."""

from __future__ import annotations

import asyncio

from runtimed.core.errors import MachineGone, RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.ports import Guest, MachineEnded
from runtimed.core.specs import Capacity, MachineSpec, Started
from runtimed.sim.guest import Script, SimGuest, echo_script


class SimNode:
    """Implements core.ports.Node."""

    def __init__(self, *, memory_mib: int = 1 << 20, vcpu: int = 1024, script: Script = echo_script) -> None:
        self.memory_mib, self.vcpu = memory_mib, vcpu
        self.script = script
        self.guests: dict[SandboxId, SimGuest] = {}
        self.specs: dict[SandboxId, MachineSpec] = {}
        self.stops: list[SandboxId] = []
        self.start_gate: asyncio.Event | None = None
        """Where set, no start gets past it."""
        self.start_error: RuntimedError | None = None
        self.stop_error: RuntimedError | None = None
        self._told: MachineEnded | None = None

    async def start(self, spec: MachineSpec) -> Started:
        if self.start_gate is not None:
            await self.start_gate.wait()
        if self.start_error is not None:
            raise self.start_error
        self.guests[spec.sandbox_id] = SimGuest(self.script)
        self.specs[spec.sandbox_id] = spec
        return Started(
            how="spare", image_id=f"sim-{spec.image}", steps_ms={"start": 0.0}, clock_skew_ms=0.0, entropy_reseeded=True
        )

    async def stop(self, sandbox_id: SandboxId) -> None:
        self.stops.append(sandbox_id)
        if self.stop_error is not None:
            raise self.stop_error
        if guest := self.guests.pop(sandbox_id, None):
            guest.sim_processes.die()

    def guest(self, sandbox_id: SandboxId) -> Guest:
        if sandbox_id not in self.guests:
            raise MachineGone(f"sandbox {sandbox_id} has no machine")
        return self.guests[sandbox_id]

    def running(self) -> frozenset[SandboxId]:
        return frozenset(self.guests)

    def capacity(self) -> Capacity:
        shapes = [self.specs[sandbox_id].shape for sandbox_id in self.guests]
        return Capacity(
            vcpu_total=self.vcpu,
            vcpu_used=sum(s.vcpu for s in shapes),
            memory_total_mib=self.memory_mib,
            memory_used_mib=sum(s.memory_mib for s in shapes),
            machines=len(shapes),
            machines_max=256,
        )

    def vmm_pid(self, sandbox_id: SandboxId) -> int | None:
        return None

    def on_ended(self, told: MachineEnded) -> None:
        self._told = told

    async def kill(self, sandbox_id: SandboxId) -> None:
        """The machine ends by itself."""
        self.guests.pop(sandbox_id).sim_processes.die()
        if self._told is not None:
            await self._told(sandbox_id, "its process was killed")

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def close(self) -> None:
        """Nothing is held."""
