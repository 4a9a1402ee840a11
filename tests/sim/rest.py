"""What it means that a service has come to rest, and what must hold then, whatever happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from runtimed.core.lifecycle import State
from runtimed.core.snapshots import SnapshotFilter
from tests.unit.control.conftest import Rig

AT_REST = {State.RUNNING, State.PAUSED, State.STOPPED}
SETTLED_WITHIN_S = 20.0


async def come_to_rest(rig: Rig) -> None:
    """Let everything that was begun end, with the reconcilers looking as often as they do."""
    async with asyncio.timeout(SETTLED_WITHIN_S):
        while any(_moving(rig)):
            await rig.leases.reconcile()
            if rig.node._writing and rig.node.write_s:
                await rig.clock.advance(rig.node.write_s)
            await asyncio.sleep(0.001)
    await rig.snapshots.reconcile()


def _moving(rig: Rig) -> Iterable[bool]:
    yield bool(rig.node._writing)
    for life in rig.lives.all():
        tasks = (life.pausing, life.waking, life.ending)
        yield life.turn.locked() or life.lock.locked() or life.record.state not in AT_REST
        yield life.unsaved or life.record.deleted_at_s is not None
        yield life.record.state is State.PAUSED and not life.record.stored_bytes
        yield any(task is not None and not task.done() for task in tasks)


async def check_nothing_is_left_over(rig: Rig) -> None:
    """Memory, table and host say the same: one machine for each sandbox that runs, and nothing that nobody owns."""
    host = rig.node.host
    records = {life.record.id: life.record for life in rig.lives.all()}
    running = {key for key, record in records.items() if record.state is State.RUNNING}
    asleep = records.keys() - running
    assert set(host.machines) == running
    assert not any(machine.frozen for machine in host.machines.values())
    assert set(host.kept) == asleep
    written_down = {record.id: record for record in await rig.store.unfinished()}
    assert {key: record.state for key, record in written_down.items()} == {
        key: record.state for key, record in records.items()
    }
    snapshots = await rig.snapshots.page(rig.caller, SnapshotFilter(state="ready"), limit=100, cursor=None)
    assert set(host.snapshots) == {snapshot.id for snapshot in snapshots.records}
