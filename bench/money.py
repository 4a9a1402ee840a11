"""What money adds: to a create, and to the host for every hundred machines that run."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, of
from runtimed.api.auditing import Auditor
from runtimed.billing.pricebook import default_book
from runtimed.control.charging import Charging, ChargingParts
from runtimed.core.audit import AuditEvent
from runtimed.core.clock import SystemClock
from runtimed.core.ids import AccountId, KeyId, SandboxId, new_id
from runtimed.core.lifecycle import State
from runtimed.core.money import Micros, Spending
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Shape
from runtimed.meter.counting import SampleCount
from runtimed.node.metering import HostMeter
from runtimed.store.accounts import Accounts
from runtimed.store.audit import AuditStore, RequestCounts
from runtimed.store.books import Books
from runtimed.store.database import Database, open_database, sqlite_url

MACHINES = 100
TICKS_A_MINUTE = 6
LEASE_S = 1800


@dataclass(frozen=True, kw_only=True)
class Money:
    """A till over a database of its own, with a meter that reads these processes."""

    database: Database
    meter: HostMeter
    charging: Charging
    auditor: Auditor
    account: AccountId
    key: KeyId


def measure(runs: int) -> list[Figure]:
    return asyncio.run(_measure(runs))


async def _measure(runs: int) -> list[Figure]:
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(MACHINES)]
    try:
        with tempfile.TemporaryDirectory(prefix="runtime-bench-") as folder:
            pids: dict[SandboxId, int] = {}
            money = await _open(Path(folder), pids)
            try:
                return [await _creates(money, runs), await _minutes(money, pids, [s.pid for s in sleepers])]
            finally:
                await money.auditor.close()
                await money.database.close()
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


async def _open(folder: Path, pids: dict[SandboxId, int]) -> Money:
    database, clock = await open_database(sqlite_url(folder / "runtime.db")), SystemClock()
    accounts = Accounts(database, clock)
    account = await accounts.first_account()
    key, _ = await accounts.create_key(account, name="bench", kind="full")
    books, meter = Books(database), HostMeter(folder / "usage", clock, pids.get)
    async with books.open(account) as opened:
        await opened.set_day_limit(key.id, Micros(10**12))  # so that the limit is looked at, too
    parts = ChargingParts(books=books, meter=meter, counter=SampleCount(), prices=default_book(), clock=clock)
    auditor = Auditor(AuditStore(database), RequestCounts(database), clock)
    return Money(
        database=database, meter=meter, charging=Charging(parts), auditor=auditor, account=account, key=KeyId(key.id)
    )


async def _creates(money: Money, runs: int) -> Figure:
    samples = []
    for _ in range(runs):
        record = _record(money)
        began = time.perf_counter()
        await money.charging.open(record, Spending())
        await money.auditor.add(_event(money, record))
        samples.append((time.perf_counter() - began) * 1000)
        await money.charging.settle(record.id)
    return of("create_money_ms", samples, aim="< 10", note="checks, hold and audit line of a create")


async def _minutes(money: Money, pids: dict[SandboxId, int], running: list[int]) -> Figure:
    """The work of one minute, done at once: what it costs a processor does not depend on when it is done."""
    for pid in running:
        record = _record(money)
        pids[record.id] = pid
        await money.charging.open(record, Spending())
        money.charging.began(record.id)
    shares = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(TICKS_A_MINUTE):
            await money.meter.tick()
        await money.charging.collect()
        shares.append((time.process_time() - began) / 60 * 100)
    return of("meter_100_core_pct", shares, aim="< 2", note="of one core, for 100 machines sampled every 10 s")


def _record(money: Money) -> SandboxRecord:
    now_s = SystemClock().now_s()
    return SandboxRecord(
        id=SandboxId(new_id()),
        account_id=money.account,
        key_id=money.key,
        name=None,
        labels={},
        env_names=(),
        image="default",
        shape=Shape(vcpu=2, memory_mib=4096, disk_mib=4096),
        lease_s=LEASE_S,
        on_lease_end="stop",
        auto_wake=True,
        user="sandbox",
        retention_days=30,
        state=State.STARTING,
        created_at_s=now_s,
        updated_at_s=now_s,
        last_active_at_s=now_s,
        ends_at_s=now_s + LEASE_S,
    )


def _event(money: Money, record: SandboxRecord) -> AuditEvent:
    return AuditEvent(
        at_ms=int(record.created_at_s * 1000),
        account_id=money.account,
        action="sandbox.create",
        target=record.id,
        actor=f"key:{money.key}",
        details={"image": record.image, "vcpu": record.shape.vcpu, "memoryMiB": record.shape.memory_mib},
    )
