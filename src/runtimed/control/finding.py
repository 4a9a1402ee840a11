"""Finds the sandbox that a caller means, and says what it may not see as what is not there."""

from __future__ import annotations

from runtimed.control.life import Life, Lives
from runtimed.core.errors import NotFound
from runtimed.core.ids import SandboxId, is_id
from runtimed.core.sandbox import Caller, SandboxRecord
from runtimed.store.sandboxes import SandboxStore


class Finder:
    """Sandboxes by id, as one caller may see them."""

    def __init__(self, lives: Lives, store: SandboxStore) -> None:
        self._lives, self._store = lives, store

    async def find(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """Deleted ones too. Raises NotFound."""
        if not is_id(sandbox_id):
            raise not_found(sandbox_id)
        life = self._lives.get(SandboxId(sandbox_id))
        record = life.record if life else await self._store.get(SandboxId(sandbox_id))
        if record is None or not may_see(caller, record):
            raise not_found(sandbox_id)
        return record

    async def get(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """One that was not deleted. Raises NotFound."""
        record = await self.find(caller, sandbox_id)
        if record.deleted_at_s is not None:
            raise not_found(sandbox_id)
        return record

    async def life(self, caller: Caller, sandbox_id: str) -> tuple[SandboxRecord, Life | None]:
        """One that was not deleted, with its life where it runs or may run again. Raises NotFound."""
        record = await self.get(caller, sandbox_id)
        return record, self._lives.get(record.id)


def may_see(caller: Caller, record: SandboxRecord) -> bool:
    own = caller.account_wide or record.key_id == caller.key_id
    return record.account_id == caller.account_id and own


def not_found(sandbox_id: str) -> NotFound:
    return NotFound(f"there is no sandbox {sandbox_id!r}", hint="runtime sandbox ls shows those that there are")
