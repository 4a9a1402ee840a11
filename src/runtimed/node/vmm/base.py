"""The promise every machine driver keeps; the contract suite in tests/contract holds them all to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtimed.core.boot import ImageFiles
from runtimed.core.specs import Shape

AGENT_SOCKET = "agent.sock"
"""Name of the channel's Unix socket in the machine's own folder; the driver listens, the node connects."""
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class MachinePlan:
    """One machine to be. Everything of it on the host is in `directory`, so that ending it is removing that."""

    machine_id: str
    directory: Path
    image: ImageFiles
    shape: Shape
    layers: tuple[Path, ...] = ()
    """Frozen disks above the template's, oldest first: what a fork or a snapshot had written when it was taken."""

    @property
    def own(self) -> Path:
        """The only folder that the machine's process may write. What is in it may be anything if that is hostile:
        nothing there is believed, and no name there is followed."""
        return self.directory / OWN

    @property
    def socket(self) -> Path:
        """Where the agent's channel is."""
        return self.own / AGENT_SOCKET


@dataclass(frozen=True, kw_only=True)
class Template:
    """A machine saved right after its agent answered. Its files never change; clones share them copy-on-write."""

    key: str
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a stopped machine owned beyond its template: device state, its own pages of memory, its own disk."""

    directory: Path
    disk: Path | None = None
    """The machine's own disk, moved into the machine that is started; None begins an empty one over the layers."""


class VmmDriver(Protocol):
    async def boot(self, plan: MachinePlan) -> None:
        """Boot cold and return once the machine's process exists; the agent answers later.

        Booting an id that is already running is a no-op. If this raises or is cancelled, the host looks as before.

        Raises:
            HostUnavailable: the host refused; the message says why and what to do.
        """

    async def restore(self, plan: MachinePlan, template: Template) -> None:
        """Start a clone of the template and return once its vCPUs run. The same promises as `boot`."""

    async def save(self, plan: MachinePlan, into: Path) -> None:
        """Stop a running machine and keep its memory, device state and disk in the folder `into`; it is gone then."""

    async def kill(self, machine_id: str) -> None:
        """End the process and remove the machine's directory. Idempotent."""

    async def list(self) -> frozenset[str]:
        """Ids whose process is alive, read from the host and never from memory."""

    async def wait_exit(self, machine_id: str) -> str:
        """Return once the machine's process has ended, with a sentence that says how."""

    async def console(self, machine_id: str) -> bytes:
        """The newest that the guest wrote to its console; empty where there is none."""

    def vmm_pid(self, machine_id: str) -> int | None:
        """Host pid of the machine's own process, for accounting; None when it is not running."""


class BlankMaker(Protocol):
    async def make(self, into: Path, shape: Shape, under: Template | None) -> Template:
        """Make the folder `into` a base for `boot_disk`: no memory, and the disk of `under`, else that of the image.

        What boots above it is kept, woken and copied like a clone: all memory that it has touched is its own.

        Raises:
            HostUnavailable, OSError: nothing of `into` may be used.
        """


class MemoryDriver(VmmDriver, Protocol):
    """A driver that can also keep a running machine's memory: for pause, wake, fork and snapshot."""

    @property
    def blanks(self) -> BlankMaker:
        """Makes bases for machines that are no clones."""

    async def freeze(self, plan: MachinePlan) -> None:
        """Stop the vCPUs; what was written to the disk is in its file. Idempotent."""

    async def thaw(self, plan: MachinePlan) -> None:
        """Let a frozen machine go on. Idempotent."""

    async def keep(self, plan: MachinePlan, template: Template, into: Path) -> int:
        """Write what a frozen clone of `template` owns into the folder `into`; it stays frozen. Answers the bytes.

        Raises:
            HostUnavailable, NoCapacity: the machine is as it was; what was written of `into` is of no use.
        """

    async def split_disk(self, plan: MachinePlan, layer: Path) -> None:
        """Turn a frozen machine's disk into the read-only file `layer`; it writes to a new disk above that then."""

    async def release(self, plan: MachinePlan, disk: Path) -> None:
        """End a frozen machine and move its own disk to the file `disk`; nothing else of it is left."""

    async def wake(self, plan: MachinePlan, template: Template, kept: Kept) -> None:
        """Start from what was kept of a clone of `template`. If this raises, `kept` is as it was.

        Raises:
            HostUnavailable: the host refused, or QEMU did not take the state.
        """

    async def boot_disk(self, plan: MachinePlan, template: Template, disk: Path | None) -> None:
        """Boot cold from the disk of a clone of `template` (moved into the machine), its layers, or the template's."""
