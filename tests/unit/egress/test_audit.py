"""Verdicts as they are written down, whatever who is told of them does with them."""

from __future__ import annotations

import asyncio
import base64

import dns.message
import pytest

from runtimed.control.egress_log import EgressLog
from runtimed.core.clock import ManualClock
from runtimed.core.egress import Happened
from runtimed.core.ids import SandboxId
from runtimed.core.tasks import spawn
from runtimed.egress import audit
from runtimed.egress.audit import Audit
from runtimed.store.database import open_database, sqlite_url
from runtimed.store.egress_records import EgressRecordStore

from .conftest import SANDBOX, House

QUERY = base64.b64encode(dns.message.make_query("refused.test", "A").to_wire()).decode()
HAPPENED = Happened(what="dns", host="a.test", port=53, allowed=False, rule="not in allow")


async def test_a_database_that_takes_nothing_holds_up_no_verdict(house: House, tmp_path) -> None:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    log = EgressLog(EgressRecordStore(database), ManualClock())
    await log.follow(house.gateway)
    house.bind(allow=["allowed.test"])
    running = spawn(log.run(), name="log")
    async with database.writing():  # everybody else who writes waits until the end of this block
        for _ in range(15):
            answered = house.guest.open("egress.dns", {"query": QUERY}, last=True)
            assert isinstance(await asyncio.wait_for(answered.receive(), 10), dict)
        writing = spawn(log.flush(), name="flush")
        await asyncio.sleep(0)

        assert [it.host for it in house.told("dns")] == ["refused.test"] * 15
        assert len(await log.page(SANDBOX, after=0, limit=100)) == len(house.told())
        assert not writing.done()
    await asyncio.wait_for(writing, 10)
    running.cancel()
    await asyncio.wait({running})
    await log.close()

    assert len(await EgressRecordStore(database).page(SANDBOX, after=0, limit=100)) == len(house.told())
    await database.close()


def test_numbers_go_on_above_those_of_an_earlier_service() -> None:
    written = Audit(None, now_s=lambda: 0.0, failed=pytest.fail)
    written.go_on_after({SANDBOX: 41})

    assert [written.write(SANDBOX, HAPPENED).sequence for _ in range(2)] == [42, 43]
    assert written.write(SandboxId("new"), HAPPENED).sequence == 1


def test_the_numbers_of_a_sandbox_that_was_forgotten_and_comes_back_still_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "SANDBOXES_KEPT", 2)
    written = Audit(None, now_s=lambda: 0.0, failed=pytest.fail)
    for _ in range(5):
        last = written.write(SANDBOX, HAPPENED).sequence
    for name in ("b", "c"):
        written.write(SandboxId(name), HAPPENED)

    assert written.of(SANDBOX) == []
    assert written.write(SANDBOX, HAPPENED).sequence > last
