"""Sandboxes over a simulated node, a clock that is turned by hand, and a database of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimed.control.forks import Forks
from runtimed.control.idle import Idle
from runtimed.control.leases import Leases
from runtimed.control.life import LifeParts, Lives
from runtimed.control.moves import Moves
from runtimed.control.networks import Ways
from runtimed.control.recovery import Recovery
from runtimed.control.sandboxes import Sandboxes
from runtimed.control.sleep import Sleep
from runtimed.control.snapshots import Snapshots
from runtimed.control.till import FreeTill, Till
from runtimed.core.clock import ManualClock
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import Caller, SandboxRecord, SandboxSpec
from runtimed.core.specs import Shape
from runtimed.core.wait import wait_for
from runtimed.sim.node import SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.answers import AnswerStore
from runtimed.store.database import Database, open_database, sqlite_url
from runtimed.store.sandboxes import SandboxStore
from runtimed.store.snapshots import SnapshotStore

SMALL = Shape(vcpu=1, memory_mib=1024, disk_mib=4096)


class PlainSeal:
    """Seals nothing, and gives back what it was given."""

    def seal(self, value: bytes, *, purpose: str) -> bytes:
        return purpose.encode() + b"|" + value

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        assert sealed.startswith(purpose.encode() + b"|")
        return sealed.split(b"|", 1)[1]


@dataclass(kw_only=True)
class SimLoad:
    """What tests say that sandboxes do."""

    calls_now: dict[str, int] = field(default_factory=dict)
    cpu_used_s: dict[str, float] = field(default_factory=dict)
    bytes_moved: dict[str, int] = field(default_factory=dict)

    def calls(self, sandbox_id: SandboxId) -> int:
        return self.calls_now.get(sandbox_id, 0)

    def cpu_s(self, sandbox_id: SandboxId) -> float | None:
        return self.cpu_used_s.get(sandbox_id, 0.0)

    def traffic_bytes(self, sandbox_id: SandboxId) -> int:
        return self.bytes_moved.get(sandbox_id, 0)


@dataclass(kw_only=True)
class Rig:
    """One service over a simulated host. `restarted` is the next service over the same host and database."""

    node: SimNode
    clock: ManualClock
    database: Database
    store: SandboxStore
    lives: Lives
    sleep: Sleep
    sandboxes: Sandboxes
    moves: Moves
    forks: Forks
    snapshots: Snapshots
    recovery: Recovery
    leases: Leases
    idle: Idle
    load: SimLoad
    caller: Caller

    @classmethod
    def over(
        cls,
        node: SimNode,
        clock: ManualClock,
        database: Database,
        caller: Caller,
        *,
        till: Till | None = None,
        ways: Ways | None = None,
    ) -> Rig:
        store = SandboxStore(database)
        parts = LifeParts(
            node=node, store=store, clock=clock, seal=PlainSeal(), till=till or FreeTill(), ways=ways or Ways()
        )
        lives = Lives(parts)
        sleep, load = Sleep(lives, parts), SimLoad()
        snapshots = Snapshots(lives=lives, parts=parts, store=SnapshotStore(database))
        answers = AnswerStore(database)
        return cls(
            node=node,
            clock=clock,
            database=database,
            store=store,
            lives=lives,
            sleep=sleep,
            sandboxes=Sandboxes(lives=lives, sleep=sleep, snapshots=snapshots, parts=parts),
            moves=Moves(lives=lives, sleep=sleep, store=store),
            forks=Forks(lives=lives, sleep=sleep, snapshots=snapshots, parts=parts),
            snapshots=snapshots,
            recovery=Recovery(lives, parts),
            leases=Leases(lives=lives, sleep=sleep, sandboxes=store, answers=answers, clock=clock, till=till),
            idle=Idle(lives=lives, sleep=sleep, node=node, load=load, clock=clock),
            load=load,
            caller=caller,
        )

    async def restarted(self) -> Rig:
        """The service is killed, and another one starts over what it left."""
        self.node.crash()
        node = SimNode(host=self.node.host, clock=self.clock, script=self.node.script)
        node.write_s = self.node.write_s
        rig = Rig.over(node, self.clock, self.database, self.caller)
        await rig.recovery.recover()
        await rig.snapshots.recover()
        return rig

    async def create(self, **fields: object) -> SandboxRecord:
        """Created and running, unless the node is held up."""
        held_up = self.node.start_gate is not None
        spec = SandboxSpec(**{"image": "default", "shape": SMALL, "lease_s": 600, "on_lease_end": "stop", **fields})  # type: ignore[arg-type]
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
    clock = ManualClock()
    node = SimNode(clock=clock)
    accounts = Accounts(database, clock)
    _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
    caller = await accounts.recognise(text)
    assert caller is not None
    rig = Rig.over(node, clock, database, caller)
    yield rig
    node.stop_error = None
    if node.start_gate is not None:
        node.start_gate.set()
    await rig.recovery.leave(end=True)
    await database.close()
