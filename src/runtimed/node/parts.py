"""What a node is made of and what it holds: values and seams, no decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runtimed.core.boot import ImageFiles
from runtimed.core.clock import Clock
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Shape, SpareOrder
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient
from runtimed.node.kept import KeptRoom
from runtimed.node.templates import Templates
from runtimed.node.vmm.base import MachinePlan, MemoryDriver, Template, VmmDriver
from runtimed.wire.streams import Stream


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
    """Of the default image and shape."""
    more_spares: tuple[SpareOrder, ...] = ()


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
    memory: MemoryDriver | None
    """The same driver where it can keep memory; None answers pause, fork and snapshot with Unavailable."""
    machines: Path
    """The folder with one folder for each machine."""
    room: KeptRoom
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
    guard: asyncio.Task[None] | None = None
    """What starts another lease guard when it has died; ended with the node."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A running machine with its channel open, before it has an identity."""

    plan: MachinePlan
    template: Template
    """What its memory lies above."""
    channel: Channel


@dataclass(kw_only=True)
class Held:
    """One sandbox's machine."""

    plan: MachinePlan
    template: Template
    channel: Channel
    guest: GuestClient
    spec: MachineSpec
    generation: int = 0
    """Counts the pauses; memory and disk that are kept carry it both."""
    watch: asyncio.Task[None] | None = None
    stopping: bool = False
    frozen: bool = False
    writing: asyncio.Task[None] | None = None
    """The pause that is being written."""
    releasing: bool = False
    """Its memory is written and its process ends: too late to call the pause off."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One pause, wake, fork, snapshot or stop at a time."""


@dataclass(kw_only=True)
class Steps:
    """Milliseconds since a start was asked, by step."""

    began_s: float = field(default_factory=time.monotonic)
    ms: dict[str, float] = field(default_factory=dict)

    def done(self, name: str) -> None:
        self.ms[name] = round((time.monotonic() - self.began_s) * 1000, 3)
