"""Brings machines up: from a spare, a template or a cold boot, each answering and with its own identity.

The first machine of a shape boots for its user; the template that later ones are cloned from is made after it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable
from typing import Literal

from runtimed.core.boot import ImageFiles
from runtimed.core.errors import GuestUnresponsive, HostUnavailable, RuntimedError, StartFailed
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Shape, Started
from runtimed.node.channel import Channel
from runtimed.node.coldboot import BootWay, boot_watched
from runtimed.node.guest import GuestClient, Identified, Identity
from runtimed.node.parts import NodeParts, Ready, Steps
from runtimed.node.spares import Kind, Spares, SpareSupply
from runtimed.node.template_queue import TemplateQueue
from runtimed.node.vmm.base import MachinePlan, MemoryDriver, Template

_log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""A clone answers within 0.2 s on an idle host; on a host with 20 starts at once within a few seconds."""
BOOT_S = 120.0
TEMPLATE_TRIES = 2
"""Clones of one template that may fail to answer before the template is rebuilt."""
ENTROPY_BYTES = 64


class Starter:
    """Starts machines; whoever gets a `Ready` owns its machine from then on."""

    def __init__(self, parts: NodeParts, *, is_idle: Callable[[], bool], is_pressed: Callable[[], bool]) -> None:
        self._parts = parts
        supply = SpareSupply(
            make=self._make_spare, drop=self.drop, idle=is_idle, pressed=is_pressed, current=self._current_key
        )
        self.spares = Spares(_spares_wanted(parts), supply)
        self._making = asyncio.Lock()
        self.templates = TemplateQueue(self._make_template, idle=is_idle)
        self.doing: dict[SandboxId, str] = {}
        """What a start that takes long does now, for people."""

    async def prepare(self) -> None:
        """Make what the default create needs, then spares in the background."""
        image = await self._parts.images.files(self._parts.default_image)
        await self._parts.templates.ensure(image, self._parts.default_shape)
        self.spares.start()

    async def close(self) -> None:
        """End spares and templates that are being made. Idempotent."""
        await self.templates.stop()
        await self.spares.stop()

    async def start(self, spec: MachineSpec) -> tuple[Ready, Started]:
        """A new machine of an image, from a spare or by restore.

        Raises:
            NoCapacity, HostUnavailable, ImageNotFound, StartFailed: nothing is left of it.
        """
        steps = Steps()
        image = await self._parts.images.files(spec.image)
        steps.done("image")
        template = self._parts.templates.find(image, spec.shape)
        steps.done("scheduled")
        if template is None:
            if self._parts.memory is not None:
                return await self._booted(self._parts.memory, image, spec, steps)
            template = await self._parts.templates.ensure(image, spec.shape)
        for how in ("spare", "template", "template"):
            ready = self.spares.take(template.key) if how == "spare" else await self._restored(image, spec, template)
            if ready is None:
                continue
            steps.done("restored")
            try:
                identified = await self.identify(ready, spec, new=True)
            except (RuntimedError, OSError, TimeoutError) as failure:
                _log.warning("a machine from a %s did not take its identity: %s", how, failure)
                await self.drop(ready)
                continue
            except BaseException:
                await asyncio.shield(self.drop(ready))
                raise
            steps.done("ready")
            return ready, started("spare" if how == "spare" else "template", image, steps, identified)
        raise StartFailed("no machine answered after its start", hint="`runtime doctor` says what this host can do.")

    async def _booted(
        self, driver: MemoryDriver, image: ImageFiles, spec: MachineSpec, steps: Steps
    ) -> tuple[Ready, Started]:
        """The first machine of a shape. Below it is a base without memory: it is kept and copied like a clone."""
        shape = spec.shape
        self.doing[spec.sandbox_id] = (
            f"booting the first machine of {image.name} with {shape.vcpu} vCPU, {shape.memory_mib} MiB memory "
            f"and {shape.disk_mib} MiB disk: about 20 s without KVM; later ones start in a second"
        )
        room = self._parts.room
        room.begin()
        try:
            plan = self.plan(image, spec.shape)
            base = await driver.blanks.make(room.new_base(), spec.shape, None)
            channel = await boot_watched(driver, plan, way=BootWay(begin=lambda: driver.boot_disk(plan, base, None)))
            ready = Ready(plan=plan, template=base, channel=channel)
            steps.done("booted")
            try:
                identified = await self.identify_cold(ready, spec, new=True)
            except BaseException as failure:
                await asyncio.shield(self.drop(ready))
                if isinstance(failure, RuntimedError | OSError | TimeoutError):
                    raise StartFailed(f"the machine booted and did not take its identity: {failure}") from failure
                raise
            steps.done("ready")
        finally:
            room.settle()
        self.templates.want(image, spec.shape)
        return ready, started("cold", image, steps, identified)

    async def identify_cold(self, ready: Ready, spec: MachineSpec, *, new: bool) -> Identified:
        """The same for one that has just booted: its file system is first made as large as its disk."""
        await GuestClient(ready.channel).grow()
        return await self.identify(ready, spec, new=new)

    def plan(self, image: ImageFiles, shape: Shape) -> MachinePlan:
        machine_id = str(uuid.uuid4())
        return MachinePlan(machine_id=machine_id, directory=self._parts.machines / machine_id, image=image, shape=shape)

    async def identify(self, ready: Ready, spec: MachineSpec, *, new: bool) -> Identified:
        """Clock, entropy and names, before anything of a user runs; what it opens is judged by its own policy.

        With `new` False the machine goes on after a pause and keeps its environment unless the spec has one.
        """
        self.lead_out(ready.channel, spec.sandbox_id)
        async with asyncio.timeout(ANSWER_S):
            return await GuestClient(ready.channel).identify(self._identity(spec, new=new), self._parts.clock)

    def lead_out(self, channel: Channel, sandbox_id: SandboxId) -> None:
        """From here on what the machine opens is judged by this sandbox's policy."""
        if (way_out := self._parts.way_out) is not None:
            channel.serve = lambda stream: way_out.opened(sandbox_id, stream)

    async def drop(self, ready: Ready) -> None:
        """End a machine that nobody has."""
        await ready.channel.close()
        await self._parts.driver.kill(ready.plan.machine_id)

    def _identity(self, spec: MachineSpec, *, new: bool) -> Identity:
        return Identity(
            hostname=spec.hostname,
            machine_id=spec.sandbox_id.replace("-", ""),
            entropy=os.urandom(ENTROPY_BYTES),
            env=dict(spec.env) if spec.env or new else None,
            user=spec.user,
            ca_pem=self._parts.way_out.ca_pem if self._parts.way_out else None,
            copy=new,
        )

    async def _restored(self, image: ImageFiles, spec: MachineSpec, template: Template) -> Ready:
        """A clone that answers; a template whose clones do not is rebuilt."""
        reason: Exception | None = None
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
        plan = self.plan(image, shape)
        try:
            await self._parts.driver.restore(plan, template)
            self._parts.templates.hold(template, plan.directory)
            channel = await Channel.open(plan.socket, within_s=ANSWER_S)
        except BaseException:
            await asyncio.shield(self._parts.driver.kill(plan.machine_id))
            raise
        return Ready(plan=plan, template=template, channel=channel)

    async def _current_key(self, kind: Kind) -> str | None:
        try:
            return self._parts.templates.key(await self._parts.images.files(kind.image), kind.shape)
        except (RuntimedError, OSError):
            return None

    async def _make_template(self, image: ImageFiles, shape: Shape) -> Template:
        async with self._making:  # one at a time: each is a whole boot
            return await self._parts.templates.ensure(image, shape, background=True)

    async def _make_spare(self, kind: Kind) -> Ready:
        image = await self._parts.images.files(kind.image)
        ready = await self._clone(image, kind.shape, await self._make_template(image, kind.shape))
        try:
            await self._parts.rehearse(ready.channel)
        except BaseException:
            await asyncio.shield(self.drop(ready))
            raise
        return ready


def _spares_wanted(parts: NodeParts) -> dict[Kind, int]:
    wanted = {Kind(image=parts.default_image, shape=parts.default_shape): parts.limits.spares}
    for order in parts.limits.more_spares:
        kind = Kind(image=order.image or parts.default_image, shape=order.shape)
        wanted[kind] = wanted.get(kind, 0) + order.count
    return wanted


How = Literal["spare", "template", "cold", "wake", "thaw", "fork", "snapshot"]


def started(how: How, image: ImageFiles, steps: Steps, identified: Identified) -> Started:
    return Started(
        how=how,
        image_id=image.image_id,
        steps_ms=steps.ms,
        clock_skew_ms=identified.clock_skew_ms,
        entropy_reseeded=identified.entropy_reseeded,
    )
