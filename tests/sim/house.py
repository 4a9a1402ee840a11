"""A service with money and network policies over a simulated host, and the next one over what a crash left of both."""

from __future__ import annotations

import contextlib
import copy
import itertools
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from runtimed.billing.pricebook import default_book
from runtimed.control.charging import Charging, ChargingParts
from runtimed.control.metering import Metering
from runtimed.control.networks import Ways
from runtimed.core.clock import ManualClock
from runtimed.core.egress import EgressBinding, EgressDoor
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import Caller
from runtimed.meter.counting import SampleCount
from runtimed.sim.meter import SimMeter
from runtimed.sim.node import SimHost, SimMachine, SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.books import Books
from runtimed.store.database import Database, open_database, sqlite_url
from tests.unit.control.conftest import Rig

from .rest import check_nothing_is_left_over, come_to_rest


class Door:
    """As much of a gateway as the owner of sandboxes asks of it: which policies are bound."""

    def __init__(self) -> None:
        self.bound: dict[SandboxId, EgressBinding] = {}

    def bind(self, sandbox_id: SandboxId, binding: EgressBinding) -> None:
        self.bound[sandbox_id] = binding

    def unbind(self, sandbox_id: SandboxId) -> None:
        self.bound.pop(sandbox_id, None)

    def secrets_of(self, sandbox_id: SandboxId) -> tuple[()]:
        return ()


@dataclass(kw_only=True)
class House:
    """One service and everything around it."""

    folder: Path
    clock: ManualClock
    database: Database
    caller: Caller
    host: SimHost
    meter: SimMeter
    door: Door = field(init=False)
    rig: Rig = field(init=False)
    metering: Metering = field(init=False)

    @classmethod
    async def built(cls, folder: Path) -> House:
        clock = ManualClock()
        folder.mkdir(exist_ok=True)
        database = await open_database(sqlite_url(folder / "runtime.db"))
        accounts = Accounts(database, clock)
        _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
        caller = await accounts.recognise(text)
        assert caller is not None
        house = cls(folder=folder, clock=clock, database=database, caller=caller, host=SimHost(), meter=SimMeter(clock))
        house.serve()
        return house

    def serve(self) -> None:
        """A service, which knows nothing of what is there yet."""
        books = Books(self.database)
        parts = ChargingParts(
            books=books, meter=self.meter, counter=SampleCount(), prices=default_book(), clock=self.clock
        )
        charging, self.door = Charging(parts), Door()
        node = SimNode(host=self.host, clock=self.clock)
        ways = Ways(cast("EgressDoor", self.door))
        self.rig = Rig.over(node, self.clock, self.database, self.caller, till=charging, ways=ways)
        self.metering = Metering(
            lives=self.rig.lives, charging=charging, books=books, meter=self.meter, clock=self.clock
        )

    async def serve_again(self) -> None:
        """The service has ended, in the middle of whatever it did, and the next one finds what it left."""
        self.rig.node.crash()
        self.serve()
        await self.rig.recovery.recover()
        await self.rig.snapshots.recover()
        await self.metering.settle_ended()

    async def settle(self) -> None:
        """Everything that was begun ends, and the reconcilers look as often as they do."""
        await come_to_rest(self.rig)
        await self.metering.charge()
        await come_to_rest(self.rig)

    async def check(self) -> None:
        """Machines, files, rows, policies, holds and what is being counted: each has its sandbox, and says the same."""
        await check_nothing_is_left_over(self.rig)
        records = {life.record.id: life.record for life in self.rig.lives.all()}
        running = {key for key, record in records.items() if record.state is State.RUNNING}
        assert set(self.door.bound) == running, "policies"
        assert running <= set(self.host.leases) <= set(records), "what the guard knows"
        tabs = {tab.sandbox_id: tab for tab in await self.metering.books.open_tabs()}
        assert set(tabs) == set(records), "tabs"
        assert {key for key, tab in tabs.items() if tab.running} == running, "places that are taken"
        assert self.counted() == {key: key not in running for key in records}, "intervals: what is counted, and as what"
        assert await self.metering.books.problems() == []

    def counted(self) -> Mapping[SandboxId, bool]:
        """Every interval that is open, and whether it is one of storage."""
        return {key: counting.owned_mb is not None for key, counting in self.meter._counting.items()}

    async def close(self) -> None:
        await self.database.close()


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """What would be there if the service were killed at this moment: the database, and the host."""

    database: sqlite3.Connection
    content: str
    host: SimHost
    meter: SimMeter

    @classmethod
    def of(cls, house: House) -> Photograph:
        database = sqlite3.connect(":memory:")
        with contextlib.closing(sqlite3.connect(house.folder / "runtime.db")) as source:
            source.backup(database)
        content = "\n".join(database.iterdump()) + _shown(house.host)
        return cls(database=database, content=content, host=_copied(house.host), meter=copy.deepcopy(house.meter))

    async def become(self, house: House) -> None:
        """The next service, in the same house, over what is in the picture; which can be used again."""
        with contextlib.closing(sqlite3.connect(house.folder / "runtime.db")) as target:
            self.database.backup(target)
        house.host, house.meter = _copied(self.host), copy.deepcopy(self.meter)
        house.serve()
        await house.serve_again()


def _shown(host: SimHost) -> str:
    machines = [(key, one.generation, one.frozen, one.guest.sim_files.content) for key, one in host.machines.items()]
    kept = [(key, one.disk_generation, one.memory_generation) for key, one in (host.kept | host.snapshots).items()]
    return repr((machines, kept, host.leases))


def _copied(host: SimHost) -> SimHost:
    machines = {
        key: SimMachine(
            spec=machine.spec, guest=machine.guest.copy(), generation=machine.generation, frozen=machine.frozen
        )
        for key, machine in host.machines.items()
    }
    return SimHost(
        machines=machines,
        kept={key: replace(kept, guest=kept.guest.copy()) for key, kept in host.kept.items()},
        snapshots=dict(host.snapshots),
        leases=dict(host.leases),
        generations=itertools.count(next(host.generations) + 1000),
    )
