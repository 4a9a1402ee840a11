"""Makes the node that the settings ask for: QEMU and images first, then the machines' owner over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from runtimed.core.boot import ImageFiles
from runtimed.core.clock import Clock
from runtimed.core.errors import ImageNotFound
from runtimed.core.limits import DISK_DEFAULT_MIB, MEMORY_DEFAULT_MIB, VCPU_DEFAULT
from runtimed.core.ports import Node
from runtimed.core.specs import Shape
from runtimed.images import store
from runtimed.images.qemu import ensure_qemu
from runtimed.images.run import HostRunner
from runtimed.node.build import NodePlan, machines_dir, make_node
from runtimed.node.kept import KeptRoom
from runtimed.node.node import LocalNode, NodeLimits, NodeParts, WayOut
from runtimed.node.templates import TemplateMaker, Templates
from runtimed.node.vmm.fake import FakeDriver
from runtimed.node.warm import rehearse, warm
from runtimed.pruning import register
from runtimed.settings import Settings
from runtimed.spare_list import read_spares

DEFAULT_SHAPE = Shape(vcpu=VCPU_DEFAULT, memory_mib=MEMORY_DEFAULT_MIB, disk_mib=DISK_DEFAULT_MIB)

T = TypeVar("T")

Say = Callable[[str], None]
"""Told one line of progress at a time."""


class Host(Node, Protocol):
    """A node with a beginning and an end."""

    async def prepare(self) -> None:
        """Make what the first create needs. Raises HostUnavailable with the way out."""

    async def close(self, *, end_machines: bool = True) -> None:
        """End every spare, and every machine unless another service is to adopt them. Idempotent."""


async def make_host(settings: Settings, clock: Clock, say: Say, way_out: WayOut | None = None) -> Host:
    """A host that is ready for `prepare`.

    Raises:
        HostUnavailable: no QEMU, no jail, no disk space, or the image cannot be built; the message says which.
        CommandError: the cache folder cannot be written.
    """
    if settings.vmm == "fake":
        return fake_host(settings, clock, say)
    runner = HostRunner()
    register(settings)
    images = Images(store.ImageStore(settings.cache_dir, runner=runner), say)
    qemu = await in_thread(runner, lambda: ensure_qemu(settings.cache_dir, images.told, runner=runner))
    await in_thread(runner, images.images.remove_leftovers)
    await in_thread(runner, lambda: images.make(settings.image))
    plan = NodePlan(
        state_dir=settings.state_dir,
        cache_dir=settings.cache_dir,
        default_image=settings.image,
        default_shape=DEFAULT_SHAPE,
        accel=settings.accel,
        jailed=settings.jail,
        limits=_limits(settings),
        way_out=way_out,
    )
    return await make_node(plan, qemu=qemu, images=images, clock=clock, progress=say)


def fake_host(settings: Settings, clock: Clock, say: Say) -> Host:
    """Machines without a virtual machine: the agent as a process of this host, with no isolation to rely on."""
    say("machines are fake: there is no isolation between this host and what runs in them")
    machines = machines_dir(settings.state_dir)
    maker = TemplateMaker(make_driver=FakeDriver, warm=warm, host_key="fake")
    parts = NodeParts(
        driver=FakeDriver(machines),
        memory=None,
        machines=machines,
        room=KeptRoom(settings.state_dir, machines),
        templates=Templates(settings.state_dir / "fake-templates", maker, progress=say),
        images=_FakeImages(settings.image),
        clock=clock,
        limits=_limits(settings),
        default_image=settings.image,
        default_shape=DEFAULT_SHAPE,
        rehearse=rehearse,
    )
    return LocalNode(parts)


def _limits(settings: Settings) -> NodeLimits:
    return NodeLimits(
        machines_max=settings.max_sandboxes,
        vcpu_overcommit=settings.vcpu_overcommit,
        memory_overcommit=settings.memory_overcommit,
        memory_keep_free_mib=settings.memory_keep_free_mib,
        spares=settings.spares,
        more_spares=read_spares(settings.spare_shapes),
    )


@dataclass(frozen=True)
class _FakeImages:
    """The one image of a fake host, which boots nothing."""

    name: str

    async def files(self, name: str) -> ImageFiles:
        if name != self.name:
            raise ImageNotFound(f"there is no image {name!r}", hint="a fake host has one image")
        nothing = Path("/dev/null")
        return ImageFiles(
            image_id="fake",
            name=name,
            release="fake",
            rootfs=nothing,
            rootfs_bytes=0,
            kernel_id="fake",
            kernel=nothing,
            initrd=nothing,
            agent_id="fake",
            agent_disk=nothing,
        )


async def in_thread(runner: HostRunner, work: Callable[[], T]) -> T:
    """Run blocking work whose programs end when this is cancelled."""
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        runner.stop()
        raise


@dataclass
class Images:
    """The image store as a node wants it. A create never builds: only what `make` made can be started."""

    images: store.ImageStore
    say: Say
    _known: dict[str, ImageFiles] = field(default_factory=dict)

    def told(self, line: str, share: float | None = None) -> None:
        self.say(line if share is None else f"{line} ({share:.0%})")

    def make(self, name: str) -> ImageFiles:
        """Build what is missing of an image. Blocks."""
        self._known[name] = files = self.images.ensure(name, self.told)
        return files

    async def files(self, name: str) -> ImageFiles:
        """Raises ImageNotFound for one that is not built."""
        known = self._known.get(name)
        if known is not None and known.rootfs.exists():
            return known
        if await asyncio.to_thread(self.images.find, name) is None:
            raise ImageNotFound(f"there is no image {name!r}", hint="runtime image ls lists those that are built")
        return await asyncio.to_thread(self.make, name)
