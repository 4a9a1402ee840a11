"""A service that was killed or stopped is followed by one that finds everything, and says what it found."""

from __future__ import annotations

import asyncio

from runtimed.core.lifecycle import State, StopReason

from .conftest import Rig
from .test_sleep import found, paused, put


async def test_lk_01_machines_that_run_go_on_with_their_lease_and_environment(rig: Rig) -> None:
    records = [await rig.create(env={"A": str(number)}, lease_s=600) for number in range(5)]
    put(rig, records[0], "/workspace/f", b"kept")
    await rig.clock.advance(100)

    after = await rig.restarted()

    for number, record in enumerate(records):
        inside = await after.sandboxes.inside(after.caller, record.id)
        assert (inside.record.state, inside.lease_left_s) == (State.RUNNING, 500)
        assert after.node.guests[record.id].env == {"A": str(number)}
        assert after.node.host.leases[record.id] == 500
    assert found(after, records[0], "/workspace/f") == b"kept"


async def test_a_paused_sandbox_is_woken_by_the_next_service(rig: Rig) -> None:
    record = await rig.create(env={"A": "1"})
    put(rig, record, "/workspace/f", b"kept")
    await paused(rig, record)

    after = await rig.restarted()
    before = await after.sandboxes.get(after.caller, record.id)
    inside = await after.sandboxes.inside(after.caller, record.id)

    assert (before.state, before.stop_reason) == (State.PAUSED, StopReason.REQUESTED)
    assert inside.record.started and inside.record.started.how == "wake"
    assert found(after, record, "/workspace/f") == b"kept"
    assert after.node.guests[record.id].env == {"A": "1"}
    assert [start.number for start in await after.moves.starts(after.caller, record.id)] == [1, 2]


async def test_a_write_that_the_kill_interrupted_leaves_the_sandbox_running(rig: Rig) -> None:
    rig.node.write_s = 60
    record = await rig.create()
    await rig.moves.pause(rig.caller, record.id, wait_s=5)

    after = await rig.restarted()

    assert (await after.sandboxes.get(after.caller, record.id)).state is State.RUNNING
    await after.sandboxes.inside(after.caller, record.id)


async def test_a_machine_that_died_meanwhile_is_lost_and_its_disk_is_kept(rig: Rig) -> None:
    record = await rig.create(name="one")
    put(rig, record, "/workspace/f", b"kept")
    rig.node._die(record.id)

    after = await rig.restarted()
    lost = await after.sandboxes.get(after.caller, record.id)
    await after.moves.restart(after.caller, record.id, wait_s=5)

    assert (lost.state, lost.stop_reason, lost.disk_kept) == (State.STOPPED, StopReason.HOST_LOST, True)
    assert found(after, record, "/workspace/f") == b"kept"


async def test_what_the_guard_ended_is_said_to_have_ended_with_its_lease(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    rig.node._die(record.id)
    await rig.clock.advance(120)

    after = await rig.restarted()

    lost = await after.sandboxes.get(after.caller, record.id)
    assert (lost.state, lost.stop_reason) == (State.STOPPED, StopReason.LEASE_EXPIRED)


async def test_a_sandbox_whose_machine_and_disk_are_gone_is_lost_and_its_name_is_free(rig: Rig) -> None:
    record = await rig.create(name="one")
    rig.node.host.machines.clear()

    after = await rig.restarted()

    lost = await after.sandboxes.get(after.caller, record.id)
    assert (lost.state, lost.stop_reason, lost.disk_kept) == (State.STOPPED, StopReason.HOST_LOST, False)
    assert (await after.create(name="one")).state is State.RUNNING


async def test_a_lease_that_ended_while_no_service_ran_is_acted_on_at_once(rig: Rig) -> None:
    record = await rig.create(lease_s=60, on_lease_end="pause")
    await rig.clock.advance(120)

    after = await rig.restarted()
    await after.leases.reconcile()

    assert (await after.until(record, State.PAUSED)).stop_reason is StopReason.LEASE_EXPIRED


async def test_a_create_that_nobody_was_answered_is_ended(rig: Rig) -> None:
    rig.node.start_gate = asyncio.Event()
    record = await rig.create()

    after = await rig.restarted()

    ended = await after.until(record, State.STOPPED)
    assert (ended.stop_reason, ended.disk_kept) == (StopReason.STARTUP_FAILED, False)


async def test_an_end_that_was_under_way_goes_on(rig: Rig) -> None:
    record = await rig.create()
    rig.node.faults.gates["stop"] = asyncio.Event()
    await rig.sandboxes.stop(rig.caller, record.id, wait_s=0)
    await rig.until(record, State.STOPPING)

    after = await rig.restarted()

    assert (await after.until(record, State.STOPPED)).stop_reason is StopReason.REQUESTED
    assert (after.node.host.machines, after.node.host.kept) == ({}, {})


async def test_a_machine_without_a_sandbox_is_ended(rig: Rig) -> None:
    record = await rig.create()
    await rig.store.drop(record.id)

    after = await rig.restarted()

    assert after.node.running() == frozenset()


async def test_a_stop_of_the_service_says_how_many_go_on(rig: Rig) -> None:
    for _ in range(2):
        await rig.create()
    await paused(rig, await rig.create())

    going_on = await rig.recovery.leave(end=False)

    assert going_on == 2
    assert len(rig.node.running()) == 2


async def test_recovering_twice_changes_nothing(rig: Rig) -> None:
    record = await rig.create()
    after = await rig.restarted()
    once = await after.sandboxes.get(after.caller, record.id)

    await after.recovery.recover()

    assert await after.sandboxes.get(after.caller, record.id) == once
