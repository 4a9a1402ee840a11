"""Leases: what ends, when, and whatever the sandbox is doing."""

from __future__ import annotations

import asyncio

import pytest

from runtimed.core.errors import NotFound
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import SandboxChange

from .conftest import Rig


async def test_a_sandbox_ends_with_its_lease_and_not_before(rig: Rig) -> None:
    record = await rig.create(lease_s=600)
    await rig.clock.advance(599)
    await rig.leases.reconcile()
    before = await rig.sandboxes.get(rig.caller, record.id)

    await rig.clock.advance(1)
    await rig.leases.reconcile()
    after = await rig.until(record, State.STOPPED)

    assert before.state is State.RUNNING
    assert after.stop_reason is StopReason.LEASE_EXPIRED
    assert rig.node.running() == frozenset()


async def test_a_sandbox_that_still_starts_ends_with_its_lease_too(rig: Rig) -> None:
    rig.node.start_gate = asyncio.Event()
    record = await rig.create(lease_s=60)

    await rig.clock.advance(60)
    await rig.leases.reconcile()

    assert (await rig.until(record, State.STOPPED)).stop_reason is StopReason.LEASE_EXPIRED


async def test_extending_moves_the_end(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    extended = await rig.sandboxes.extend(rig.caller, record.id, 100)

    await rig.clock.advance(100)
    await rig.leases.reconcile()
    before = await rig.sandboxes.get(rig.caller, record.id)
    await rig.clock.advance(60)
    await rig.leases.reconcile()

    assert extended.ends_at_s == record.ends_at_s + 100
    assert before.state is State.RUNNING
    await rig.until(record, State.STOPPED)


async def test_no_extension_goes_further_than_a_day_ahead(rig: Rig) -> None:
    record = await rig.create(lease_s=86_400)

    extended = await rig.sandboxes.extend(rig.caller, record.id, 3600)

    assert extended.ends_at_s == rig.clock.now_s() + 86_400


async def test_a_new_lease_counts_from_now(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    await rig.clock.advance(30)

    updated = await rig.sandboxes.update(rig.caller, record.id, SandboxChange(lease_s=600))

    assert (updated.lease_s, updated.ends_at_s) == (600, rig.clock.now_s() + 600)


async def test_a_lease_may_end_in_deletion(rig: Rig) -> None:
    record = await rig.create(lease_s=60, on_lease_end="delete")

    await rig.clock.advance(60)
    await rig.leases.reconcile()

    async def gone() -> bool:
        try:
            await rig.sandboxes.get(rig.caller, record.id)
        except NotFound:
            return True
        return False

    await rig.until_true("deletion", gone)
    await rig.until_true("the machine's end", lambda: _none_runs(rig))


async def _none_runs(rig: Rig) -> bool:
    return not rig.node.running()


async def test_a_wall_clock_that_jumps_ends_no_lease(rig: Rig) -> None:
    record = await rig.create(lease_s=600)

    rig.clock._now_s += 10_000
    await rig.leases.reconcile()

    assert (await rig.sandboxes.get(rig.caller, record.id)).state is State.RUNNING


async def test_reconciling_twice_ends_a_sandbox_once(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    await rig.clock.advance(60)

    await rig.leases.reconcile()
    await rig.leases.reconcile()
    await rig.until(record, State.STOPPED)

    assert rig.node.stops == [record.id]


async def test_the_reconciler_runs_by_itself(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    running = asyncio.get_running_loop().create_task(rig.leases.run())
    try:

        async def turned_until_stopped() -> bool:
            # The reconciler also writes to the database, which no clock waits for.
            await rig.clock.advance(1)
            return (await rig.sandboxes.get(rig.caller, record.id)).state is State.STOPPED

        await rig.until_true("the end of the lease", turned_until_stopped)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_use_is_written_down_now_and_then(rig: Rig) -> None:
    record = await rig.create()
    await rig.clock.advance(10)
    await rig.sandboxes.inside(rig.caller, record.id)

    await rig.leases.tidy()

    written = await rig.store.get(record.id)
    assert written is not None and written.last_active_at_s == rig.clock.now_s()


async def test_a_lease_may_end_in_a_pause(rig: Rig) -> None:
    record = await rig.create(lease_s=60, on_lease_end="pause")

    await rig.clock.advance(60)
    await rig.leases.reconcile()
    await rig.leases.reconcile()

    assert (await rig.until(record, State.PAUSED)).stop_reason is StopReason.LEASE_EXPIRED
    assert rig.node.faults.reached.count("pause") == 1


async def test_nothing_outlives_its_lease_and_files_are_kept_where_memory_cannot_be(rig: Rig) -> None:
    rig.node.write_error = "the disk is full"
    record = await rig.create(lease_s=60, on_lease_end="pause")
    await rig.clock.advance(60)

    async def ended() -> bool:
        await rig.leases.reconcile()
        return (await rig.sandboxes.get(rig.caller, record.id)).state is State.STOPPED

    await rig.until_true("its end", ended)
    after = await rig.sandboxes.get(rig.caller, record.id)
    assert (after.stop_reason, after.disk_kept) == (StopReason.PAUSE_FAILED, True)


async def test_a_persistent_sandbox_has_a_new_lease_whenever_one_ends(rig: Rig) -> None:
    record = await rig.create(lease_s=60, persistent=True)

    for _ in range(3):
        await rig.clock.advance(60)
        await rig.leases.reconcile()

        async def renewed() -> bool:
            return (await rig.sandboxes.get(rig.caller, record.id)).ends_at_s == rig.clock.now_s() + 60

        await rig.until_true("the new lease", renewed)

    assert (await rig.sandboxes.get(rig.caller, record.id)).state is State.RUNNING
    assert rig.node.host.leases[record.id] == 60


async def test_the_guard_is_told_of_every_lease(rig: Rig) -> None:
    record = await rig.create(lease_s=600)
    first = rig.node.host.leases[record.id]
    await rig.sandboxes.extend(rig.caller, record.id, 300)
    extended = rig.node.host.leases[record.id]
    await rig.sandboxes.update(rig.caller, record.id, SandboxChange(lease_s=60))

    assert (first, extended, rig.node.host.leases[record.id]) == (600, 900, 60)


async def test_a_paused_sandbox_is_removed_when_its_days_are_over(rig: Rig) -> None:
    record = await rig.create(lease_s=60)
    await rig.sandboxes.retain(rig.caller, record.id, 2)
    await rig.moves.pause(rig.caller, record.id, wait_s=5)
    await rig.clock.advance(2 * 86_400 - 1)
    await rig.leases.reconcile()
    before = await rig.sandboxes.get(rig.caller, record.id)

    await rig.clock.advance(1)
    await rig.leases.reconcile()

    assert before.state is State.PAUSED
    after = await rig.until(record, State.STOPPED)
    assert (after.stop_reason, after.disk_kept, rig.node.host.kept) == (StopReason.PAUSED_EXPIRED, False, {})


async def test_the_disk_of_a_stopped_one_goes_when_its_days_are_over(rig: Rig) -> None:
    record = await rig.create(persistent=True)
    await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)
    await rig.clock.advance(30 * 86_400)

    await rig.leases.reconcile()

    async def gone() -> bool:
        return not rig.node.host.kept

    await rig.until_true("the disk's end", gone)
    after = await rig.sandboxes.get(rig.caller, record.id)
    assert (after.state, after.stop_reason, after.disk_kept) == (State.STOPPED, StopReason.REQUESTED, False)
