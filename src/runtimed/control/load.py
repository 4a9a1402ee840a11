"""Reads what sandboxes do from whoever knows: requests from the API, CPU from their host, bytes from the gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtimed.core.ids import SandboxId

US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class MeasuredLoad:
    """Implements core.ports.Load."""

    requests: Callable[[str], int]
    vmm_pid: Callable[[SandboxId], int | None]
    process_cpu_us: Callable[[int], int | None]
    traffic: Callable[[SandboxId], int]

    def calls(self, sandbox_id: SandboxId) -> int:
        return self.requests(sandbox_id)

    def cpu_s(self, sandbox_id: SandboxId) -> float | None:
        pid = self.vmm_pid(sandbox_id)
        used_us = None if pid is None else self.process_cpu_us(pid)
        return None if used_us is None else used_us / US

    def traffic_bytes(self, sandbox_id: SandboxId) -> int:
        return self.traffic(sandbox_id)
