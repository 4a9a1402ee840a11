"""Sandboxes over a simulated node, a clock that is turned by hand, and a database of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.control.leases import Leases
from runtimed.control.life import Lives
from runtimed.control.sandboxes import Sandboxes
from runtimed.core.clock import ManualClock
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import Caller, SandboxRecord, SandboxSpec
from runtimed.core.specs import Shape
from runtimed.core.wait import wait_for
from runtimed.sim.node import SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.answers import AnswerStore
from runtimed.store.database import open_database, sqlite_url
from runtimed.store.sandboxes import SandboxStore

SMALL = Shape(vcpu=1, memory_mib=1024, disk_mib=4096)


@dataclass(kw_only=True)
class Rig:
    node: SimNode
    clock: ManualClock
    store: SandboxStore
    lives: Lives
    sandboxes: Sandboxes
    leases: Leases
    caller: Caller

    async def create(self, **fields: object) -> SandboxRecord:
        """Created and running, unless the node is held up."""
        held_up = self.node.start_gate is not None
        spec = SandboxSpec(**{"image": "default", "shape": SMALL, "lease_s": 600, **fields})  # type: ignore[arg-type]
        record, _ = await self.sandboxes.create(self.caller, spec, wait_s=0 if held_up else 5)
        return record

    async def until(self, record: SandboxRecord, state: State) -> SandboxRecord:
        async def reached() -> SandboxRecord | None:
            now = await self.sandboxes.get(self.caller, record.id)
            return now if now.state is state else None

        return await wait_for(f"{record.id} being {state}", reached, within_s=5, every_s=0.005)

    async def until_true(self, what: str, probe: Callable[[], Awaitable[object]]) -> None:
        async def found() -> object:
            return await probe() or None

        await wait_for(what, found, within_s=5, every_s=0.005)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    clock, node, store = ManualClock(), SimNode(), SandboxStore(database)
    accounts = Accounts(database, clock)
    _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
    caller = await accounts.recognise(text)
    assert caller is not None
    lives = Lives(node, store, clock)
    yield Rig(
        node=node,
        clock=clock,
        store=store,
        lives=lives,
        sandboxes=Sandboxes(lives=lives, store=store, node=node, clock=clock),
        leases=Leases(lives=lives, sandboxes=store, answers=AnswerStore(database), clock=clock),
        caller=caller,
    )
    node.stop_error = None
    if node.start_gate is not None:
        node.start_gate.set()
    await lives.shut_down()
    await database.close()
