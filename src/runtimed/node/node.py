"""The machines of this host: starts each from a spare, a template or cold, gives it its identity, notices its end.

One object owns every machine. A machine is in `_held` from before its process exists until everything of it on the
host is gone, so that a start that fails or is cancelled at any point leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runtimed.core.boot import ImageFiles
from runtimed.core.clock import Clock
from runtimed.core.errors import GuestUnresponsive, HostUnavailable, MachineGone, NoCapacity, RuntimedError, StartFailed
from runtimed.core.ids import SandboxId
from runtimed.core.ports import Guest, MachineEnded
from runtimed.core.specs import Capacity, MachineSpec, Shape, Started
from runtimed.core.tasks import spawn
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient, Identified, Identity
from runtimed.node.spares import Ready, Spares, SpareSupply
from runtimed.node.templates import Templates
from runtimed.node.vmm.base import MachinePlan, Template, VmmDriver
from runtimed.wire.streams import Stream

_log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""A clone answers within 0.2 s on an idle host; on a host with 20 starts at once within a few seconds."""
TEMPLATE_TRIES = 2
"""Clones of one template that may fail to answer before the template is rebuilt."""
RECONNECT_S = 10.0
ENTROPY_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class NodeLimits:
    """What this host gives to machines. The operator's numbers."""

    machines_max: int = 200
    vcpu_overcommit: float = 16.0
    """vCPUs promised for each processor: agents wait most of their time."""
    memory_overcommit: float = 6.0
    """MiB promised for each MiB there is: a sandbox of 4 GiB that waits owns some 40 MiB."""
    memory_keep_free_mib: int = 1024
    """No start while the host has less than this available, whatever was promised."""
    spares: int = 2


class ImageSource(Protocol):
    """Where images come from."""

    async def files(self, name: str) -> ImageFiles:
        """An image's files, by name or id. Raises ImageNotFound."""


class WayOut(Protocol):
    """Takes what machines open towards the world: the gateway."""

    ca_pem: str

    def opened(self, sandbox_id: SandboxId, stream: Stream) -> None: ...


@dataclass(frozen=True, kw_only=True)
class NodeParts:
    """What a node is made of."""

    driver: VmmDriver
    machines: Path
    """The folder with one folder for each machine."""
    templates: Templates
    images: ImageSource
    clock: Clock
    limits: NodeLimits
    default_image: str
    default_shape: Shape
    rehearse: Callable[[Channel], Awaitable[None]]
    """What a spare does before it waits."""
    way_out: WayOut | None = None
    """Where connections of the machines go; without one they are refused."""


@dataclass(kw_only=True)
class _Held:
    plan: MachinePlan
    channel: Channel
    guest: GuestClient
    spec: MachineSpec
    watch: asyncio.Task[None] | None = None
    stopping: bool = False


@dataclass(kw_only=True)
class _Steps:
    """Milliseconds since a start was asked, by step."""

    began_s: float = field(default_factory=time.monotonic)
    ms: dict[str, float] = field(default_factory=dict)

    def done(self, name: str) -> None:
        self.ms[name] = round((time.monotonic() - self.began_s) * 1000, 3)


class LocalNode:
    """`core.ports.Node` on this host."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._held: dict[SandboxId, _Held] = {}
        self._starting: dict[SandboxId, Shape] = {}
        self._told: MachineEnded | None = None
        self._default_image: ImageFiles | None = None
        self._spares = Spares(
            parts.limits.spares, SpareSupply(make=self._make_spare, drop=self._drop_ready, idle=self._is_idle)
        )

    async def prepare(self) -> None:
        """Make what the default create needs: the image's template, then spares in the background."""
        self._default_image = await self._parts.images.files(self._parts.default_image)
        await self._parts.templates.ensure(self._default_image, self._parts.default_shape)
        self._spares.start()

    async def close(self) -> None:
        """End every machine and spare. Idempotent."""
        await self._spares.stop()
        for sandbox_id in list(self._held):
            await self.stop(sandbox_id)

    def on_ended(self, told: MachineEnded) -> None:
        """Who is told about machines that ended by themselves."""
        self._told = told

    def running(self) -> frozenset[SandboxId]:
        """Sandboxes that have a machine."""
        return frozenset(self._held)

    def guest(self, sandbox_id: SandboxId) -> Guest:
        """Raises MachineGone when the sandbox has no machine here."""
        held = self._held.get(sandbox_id)
        if held is None or held.stopping:
            raise MachineGone(f"sandbox {sandbox_id} has no machine on this host")
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
        )

    async def start(self, spec: MachineSpec) -> Started:
        """Start and identify a machine. If this raises or is cancelled, the host looks as it did before.

        Raises:
            NoCapacity, HostUnavailable, ImageNotFound, StartFailed.
        """
        if spec.sandbox_id in self._held or spec.sandbox_id in self._starting:
            raise StartFailed(f"sandbox {spec.sandbox_id} has a machine already")
        self._check_memory()
        self._starting[spec.sandbox_id] = spec.shape
        try:
            return await self._start(spec)
        finally:
            del self._starting[spec.sandbox_id]

    async def stop(self, sandbox_id: SandboxId) -> None:
        """End the machine and everything of it on the host. Idempotent."""
        held = self._held.get(sandbox_id)
        if held is None:
            return
        held.stopping = True
        await self._end(held)
        if self._held.get(sandbox_id) is held:
            del self._held[sandbox_id]

    async def _start(self, spec: MachineSpec) -> Started:
        steps = _Steps()
        image = await self._parts.images.files(spec.image)
        steps.done("image")
        template = await self._parts.templates.ensure(image, spec.shape)
        steps.done("scheduled")
        for how in ("spare", "template", "template"):
            ready = self._spares.take(template.key) if how == "spare" else await self._restored(image, spec, template)
            if ready is None:
                continue
            steps.done("restored")
            try:
                self._lead_out(ready.channel, spec.sandbox_id)
                identified = await _identify(ready, spec, self._parts)
            except (RuntimedError, OSError, TimeoutError) as failure:
                _log.warning("a machine from a %s did not take its identity: %s", how, failure)
                await self._drop_ready(ready)
                continue
            except BaseException:
                await asyncio.shield(self._drop_ready(ready))
                raise
            steps.done("ready")
            self._hold(ready, spec)
            return Started(
                how="spare" if how == "spare" else "template",
                image_id=image.image_id,
                steps_ms=steps.ms,
                clock_skew_ms=identified.clock_skew_ms,
                entropy_reseeded=identified.entropy_reseeded,
            )
        raise StartFailed("no machine answered after its start", hint="`runtime doctor` says what this host can do.")

    def _lead_out(self, channel: Channel, sandbox_id: SandboxId) -> None:
        """From here on what the machine opens is judged by its own policy."""
        if (way_out := self._parts.way_out) is not None:
            channel.serve = lambda stream: way_out.opened(sandbox_id, stream)

    def _hold(self, ready: Ready, spec: MachineSpec) -> None:
        held = _Held(plan=ready.plan, channel=ready.channel, guest=GuestClient(ready.channel), spec=spec)
        self._held[spec.sandbox_id] = held
        held.watch = spawn(self._watch(spec.sandbox_id, held), name=f"watch {spec.sandbox_id}")

    async def _restored(self, image: ImageFiles, spec: MachineSpec, template: Template) -> Ready:
        """A clone that answers; a template whose clones do not is rebuilt."""
        for attempt in range(TEMPLATE_TRIES + 1):
            if attempt == TEMPLATE_TRIES:
                _log.warning("template %s does not answer: rebuilding it", template.key)
                self._parts.templates.discard(template)
                template = await self._parts.templates.ensure(image, spec.shape)
            try:
                return await self._clone(image, spec.shape, template)
            except (HostUnavailable, GuestUnresponsive, TimeoutError, OSError) as failure:
                reason = failure
                _log.warning("a clone of template %s did not answer: %s", template.key, failure)
        raise StartFailed("no machine answered after its start") from reason

    async def _clone(self, image: ImageFiles, shape: Shape, template: Template) -> Ready:
        machine_id = str(uuid.uuid4())
        directory = self._parts.machines / machine_id
        plan = MachinePlan(machine_id=machine_id, directory=directory, image=image, shape=shape)
        try:
            await self._parts.driver.restore(plan, template)
            channel = await Channel.open(plan.socket, within_s=ANSWER_S)
        except BaseException:
            await asyncio.shield(self._parts.driver.kill(machine_id))
            raise
        return Ready(plan=plan, template_key=template.key, channel=channel)

    async def _make_spare(self) -> Ready:
        if self._default_image is None:
            raise HostUnavailable("the default image is not there yet")
        template = await self._parts.templates.ensure(self._default_image, self._parts.default_shape)
        ready = await self._clone(self._default_image, self._parts.default_shape, template)
        try:
            await self._parts.rehearse(ready.channel)
        except BaseException:
            await asyncio.shield(self._drop_ready(ready))
            raise
        return ready

    async def _drop_ready(self, ready: Ready) -> None:
        await ready.channel.close()
        await self._parts.driver.kill(ready.plan.machine_id)

    async def _end(self, held: _Held) -> None:
        await held.channel.close()
        await self._parts.driver.kill(held.plan.machine_id)
        if held.watch is not None and held.watch is not asyncio.current_task():
            held.watch.cancel()

    async def _watch(self, sandbox_id: SandboxId, held: _Held) -> None:
        """Notice the machine's end, and open the channel again when only that was lost."""
        exited = spawn(self._parts.driver.wait_exit(held.plan.machine_id), name=f"exit {sandbox_id}")
        try:
            why = None
            while why is None:
                closed = asyncio.shield(held.channel.closed)
                await asyncio.wait([exited, closed], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
                why = exited.result() if exited.done() else await self._reopen(held)
            if held.stopping:
                return
            held.stopping = True
            _log.warning("the machine of sandbox %s ended: %s", sandbox_id, why)
            await self._end(held)
            self._held.pop(sandbox_id, None)
            if self._told is not None:
                await self._told(sandbox_id, why)
        finally:
            exited.cancel()

    async def _reopen(self, held: _Held) -> str | None:
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
        self._lead_out(held.channel, held.spec.sandbox_id)
        return None

    def _is_idle(self) -> bool:
        return not self._starting and _memory_mib("MemAvailable") > 2 * self._parts.limits.memory_keep_free_mib

    def _check_memory(self) -> None:
        free, keep = _memory_mib("MemAvailable"), self._parts.limits.memory_keep_free_mib
        if free < keep:
            raise NoCapacity(
                f"the host has {free} MiB of memory available and keeps {keep} MiB",
                hint="Stop a sandbox, or ask again in a moment.",
                retry_after_ms=2000,
            )


async def _identify(ready: Ready, spec: MachineSpec, parts: NodeParts) -> Identified:
    """Clock, entropy and names, before anything of a user runs."""
    identity = Identity(
        hostname=spec.hostname,
        machine_id=uuid.uuid4().hex,
        entropy=os.urandom(ENTROPY_BYTES),
        env=dict(spec.env),
        user=spec.user,
        ca_pem=parts.way_out.ca_pem if parts.way_out else None,
    )
    async with asyncio.timeout(ANSWER_S):
        return await GuestClient(ready.channel).identify(identity, parts.clock)


def _memory_mib(field_name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) // 1024
    raise LookupError(field_name)
