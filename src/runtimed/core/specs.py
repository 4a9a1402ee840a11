"""What is asked of a node: the frozen values that travel downwards from the API to the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runtimed.core.ids import SandboxId

UserName = Literal["sandbox", "root"]
"""`sandbox` is uid 1000 `runtime` inside; `root` is root inside, which is nobody outside."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a machine. Every distinct shape of an image may have a template of its own."""

    vcpu: int
    memory_mib: int
    disk_mib: int


@dataclass(frozen=True, kw_only=True)
class SpareOrder:
    """So many machines of an image and a shape that an operator wants ready. No image is the default one."""

    image: str = ""
    shape: Shape
    count: int


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """One machine to be started for one sandbox."""

    sandbox_id: SandboxId
    image: str
    """An image's name or id; the node resolves it."""
    shape: Shape
    hostname: str
    env: Mapping[str, str] = field(default_factory=dict)
    """Under every command, process and terminal of the sandbox."""
    user: UserName = "sandbox"
    snapshot_id: str | None = None
    """Begin as a copy of this snapshot; `image` is then the snapshot's own, and `shape` too where it has memory."""
    cpu_floor_millis: int = 0
    """Thousandths of a vCPU that it is to get also when the host is busy; 0 is an equal share."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """How a machine came up, for the receipt: each step in milliseconds since it was asked."""

    how: Literal["spare", "template", "cold", "wake", "thaw", "fork", "snapshot"]
    """`cold` boots a disk; `thaw` is a wake that came before the memory was written; `snapshot` has its memory."""
    image_id: str
    steps_ms: Mapping[str, float]
    clock_skew_ms: float
    """Guest clock minus host clock, read back after it was set."""
    entropy_reseeded: bool


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a node has left to give. Memory is reserved whole; vCPUs may be shared by a factor the operator sets."""

    vcpu_total: int
    vcpu_used: int
    memory_total_mib: int
    memory_used_mib: int
    machines: int
    machines_max: int
    cores: int = 0
    """What guaranteed CPU is taken from, which is never promised twice."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a paused sandbox or a snapshot alone owns on the host's disk."""

    mode: Literal["memory", "disk"]
    generation: int
    """Memory and disk carry the same number, or the memory is not used."""
    memory_bytes: int
    disk_bytes: int
    shape: Shape
    image: str


@dataclass(frozen=True, kw_only=True)
class CopiesStarted:
    """What a fork came to."""

    started: tuple[Started, ...]
    """Of each copy, in the order that they were asked for."""
    kept: Stored | None
    """The snapshot that was asked for: what the copies began as."""
