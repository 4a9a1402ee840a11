"""The promise every machine driver keeps; the contract suite in tests/contract holds them all to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtimed.core.boot import ImageFiles
from runtimed.core.specs import Shape

AGENT_SOCKET = "agent.sock"
"""Name of the channel's Unix socket in the machine's directory; the driver listens, the node connects."""


@dataclass(frozen=True, kw_only=True)
class MachinePlan:
    """One machine to be. Everything it owns on the host is in `directory`, so that ending it is removing that."""

    machine_id: str
    directory: Path
    image: ImageFiles
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Template:
    """A machine saved right after its agent answered. Its files never change; clones share them copy-on-write."""

    key: str
    directory: Path


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
