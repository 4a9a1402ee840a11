"""What the owner of sandboxes asks of the till: the seam behind which money is, and a till that takes none."""

from __future__ import annotations

from typing import Protocol

from runtimed.core.ids import SandboxId
from runtimed.core.money import Micros, Spending
from runtimed.core.sandbox import SandboxRecord


class Till(Protocol):
    """Implemented by control.charging; its docstrings say what each raises."""

    async def open(self, record: SandboxRecord, spending: Spending) -> None: ...

    def began(self, sandbox_id: SandboxId) -> None: ...

    async def lease_changed(self, record: SandboxRecord, left_s: float) -> None: ...

    async def lifetime_cap(self, record: SandboxRecord, cap: Micros | None, *, field: str) -> None: ...

    def pausing(self, sandbox_id: SandboxId) -> None: ...

    async def paused(self, record: SandboxRecord, owned_bytes: int) -> None: ...

    async def woken(self, record: SandboxRecord, left_s: float) -> None: ...

    def stopping(self, sandbox_id: SandboxId) -> None: ...

    async def settle(self, sandbox_id: SandboxId) -> None: ...


class FreeTill:
    """Takes nothing and counts nothing: for a service whose operator charges nobody, and for tests of other things."""

    async def open(self, record: SandboxRecord, spending: Spending) -> None:
        return

    def began(self, sandbox_id: SandboxId) -> None:
        return

    async def lease_changed(self, record: SandboxRecord, left_s: float) -> None:
        return

    async def lifetime_cap(self, record: SandboxRecord, cap: Micros | None, *, field: str) -> None:
        return

    def pausing(self, sandbox_id: SandboxId) -> None:
        return

    async def paused(self, record: SandboxRecord, owned_bytes: int) -> None:
        return

    async def woken(self, record: SandboxRecord, left_s: float) -> None:
        return

    def stopping(self, sandbox_id: SandboxId) -> None:
        return

    async def settle(self, sandbox_id: SandboxId) -> None:
        return
