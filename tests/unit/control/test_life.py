"""A sandbox's life: every way in which it starts and ends, and that nothing is left of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runtimed.core.errors import (
    HostUnavailable,
    ImageNotFound,
    InvalidRequest,
    NameTaken,
    NoCapacity,
    NotFound,
    NotPaused,
    SandboxStopped,
    StartFailed,
)
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import SandboxChange, SandboxSpec
from runtimed.core.specs import Shape

from .conftest import SMALL, Rig


async def test_a_created_sandbox_runs_and_says_how_it_came_up(rig: Rig) -> None:
    record = await rig.create(name="one", env={"A": "1"})

    assert (record.state, record.started and record.started.how) == (State.RUNNING, "spare")
    assert record.env_names == ("A",)
    assert rig.node.specs[record.id].env == {"A": "1"}
    assert await rig.store.get(record.id) == record


async def test_stopping_twice_stops_one_machine_once(rig: Rig) -> None:
    record = await rig.create()
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(rig.sandboxes.stop(rig.caller, record.id, wait_s=5))
    again = await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)

    assert (again.state, again.stop_reason) == (State.STOPPED, StopReason.REQUESTED)
    assert rig.node.stops == [record.id]


async def test_st_01_a_sandbox_that_never_starts_can_be_deleted(rig: Rig) -> None:
    rig.node.start_gate = asyncio.Event()
    record = await rig.create()

    deleted = await rig.sandboxes.delete(rig.caller, record.id)

    assert (record.state, deleted.state) == (State.STARTING, State.STOPPED)
    assert rig.lives.all() == []
    with pytest.raises(NotFound):
        await rig.sandboxes.get(rig.caller, record.id)


async def test_deleting_again_answers_the_same(rig: Rig) -> None:
    record = await rig.create()
    first = await rig.sandboxes.delete(rig.caller, record.id)

    assert await rig.sandboxes.delete(rig.caller, record.id) == first


async def test_lk_15_a_start_that_fails_leaves_a_stopped_record_and_no_machine(rig: Rig) -> None:
    rig.node.start_error = StartFailed("its agent never answered")

    with pytest.raises(StartFailed) as told:
        await rig.create()

    record = await rig.sandboxes.get(rig.caller, str(told.value.details["sandboxId"]))
    assert (record.state, record.stop_reason) == (State.STOPPED, StopReason.STARTUP_FAILED)
    assert record.ready_at_s is None
    assert rig.node.running() == frozenset()
    assert rig.lives.all() == []


@pytest.mark.parametrize("error", [NoCapacity("full"), ImageNotFound("no such image")])
async def test_a_start_that_was_never_tried_leaves_no_record(rig: Rig, error: NoCapacity | ImageNotFound) -> None:
    rig.node.start_error = error

    with pytest.raises(type(error)):
        await rig.create(name="one")

    rig.node.start_error = None
    assert (await rig.create(name="one")).state is State.RUNNING


async def test_an_unforeseen_failure_of_a_start_is_a_failed_start(rig: Rig) -> None:
    async def broken(*_: object) -> object:
        raise ZeroDivisionError

    rig.node.start = broken  # type: ignore[method-assign, assignment]

    with pytest.raises(StartFailed):
        await rig.create()
    assert rig.lives.all() == []


async def test_a_machine_that_dies_stops_its_sandbox_and_nothing_takes_its_place(rig: Rig) -> None:
    record = await rig.create()

    await rig.node.kill(record.id)

    after = await rig.sandboxes.get(rig.caller, record.id)
    assert (after.state, after.stop_reason) == (State.STOPPED, StopReason.HOST_LOST)
    assert rig.node.running() == frozenset()
    with pytest.raises(SandboxStopped):
        await rig.sandboxes.inside(rig.caller, record.id)


async def test_an_end_that_fails_is_tried_again_by_the_reconciler(rig: Rig) -> None:
    record = await rig.create()
    rig.node.stop_error = HostUnavailable("not permitted")
    stopping = await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)

    rig.node.stop_error = None
    await rig.leases.reconcile()

    assert stopping.state is State.STOPPING
    assert (await rig.until(record, State.STOPPED)).stop_reason is StopReason.REQUESTED


async def test_room_is_counted_from_the_moment_of_asking(rig: Rig) -> None:
    rig.node.memory_mib = 3 * SMALL.memory_mib
    rig.node.start_gate = asyncio.Event()
    for _ in range(3):
        await rig.create()

    with pytest.raises(NoCapacity) as told:
        await rig.create()

    assert told.value.retry_after_ms
    assert len(rig.lives.all()) == 3


async def test_room_is_free_again_after_a_stop(rig: Rig) -> None:
    rig.node.memory_mib = SMALL.memory_mib
    first = await rig.create()
    await rig.sandboxes.stop(rig.caller, first.id, wait_s=5)

    assert (await rig.create()).state is State.RUNNING


async def test_more_than_the_host_could_ever_give_names_the_field(rig: Rig) -> None:
    rig.node.memory_mib = 2048

    with pytest.raises(InvalidRequest, match="memoryMiB"):
        await rig.create(shape=Shape(vcpu=1, memory_mib=4096, disk_mib=4096))


async def test_get_or_create_answers_the_holder_of_the_name(rig: Rig) -> None:
    first = await rig.create(name="one")
    spec = SandboxSpec(image="default", shape=SMALL, lease_s=600, name="one", get_or_create=True)

    record, reused = await rig.sandboxes.create(rig.caller, spec, wait_s=5)

    assert (record.id, reused) == (first.id, True)


async def test_twenty_who_get_or_create_one_name_share_one_sandbox(rig: Rig) -> None:
    spec = SandboxSpec(image="default", shape=SMALL, lease_s=600, name="one", get_or_create=True)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(rig.sandboxes.create(rig.caller, spec, wait_s=5)) for _ in range(20)]

    assert len({task.result()[0].id for task in asked}) == 1
    assert [task.result()[1] for task in asked].count(False) == 1
    assert len(rig.node.running()) == 1


async def test_a_name_in_use_is_refused_with_its_holder(rig: Rig) -> None:
    first = await rig.create(name="one")

    with pytest.raises(NameTaken) as told:
        await rig.create(name="one")

    assert told.value.details == {"sandboxId": first.id, "state": "running"}
    assert len(rig.lives.all()) == 1


async def test_a_sandbox_that_ended_gives_its_name_to_the_next_one_and_keeps_its_disk(rig: Rig) -> None:
    lost, other = await rig.create(name="one"), await rig.create()
    await rig.node.kill(lost.id)
    await rig.until(lost, State.STOPPED)

    second = await rig.create(name="one")
    await rig.node.kill(second.id)
    await rig.until(second, State.STOPPED)
    await rig.sandboxes.update(rig.caller, other.id, SandboxChange(name="one"))

    before = await rig.sandboxes.get(rig.caller, lost.id)
    assert (before.name, before.disk_kept, before.stop_reason) == (None, True, StopReason.HOST_LOST)
    assert (await rig.moves.restart(rig.caller, lost.id, wait_s=5)).state is State.RUNNING
    holder = await rig.store.holder(rig.caller.account_id, "one")
    assert holder is not None and holder.id == other.id


async def test_a_persistent_sandbox_that_was_stopped_keeps_its_name(rig: Rig) -> None:
    kept = await rig.create(name="one", persistent=True)
    await rig.sandboxes.stop(rig.caller, kept.id, wait_s=5)

    with pytest.raises(NameTaken) as told:
        await rig.create(name="one")

    assert told.value.details == {"sandboxId": kept.id, "state": "stopped"}


async def test_get_or_create_restarts_the_one_that_ended_and_takes_no_other(rig: Rig) -> None:
    lost = await rig.create(name="one")
    await rig.node.kill(lost.id)
    await rig.until(lost, State.STOPPED)
    spec = SandboxSpec(image="default", shape=SMALL, lease_s=600, name="one", get_or_create=True)

    record, reused = await rig.sandboxes.create(rig.caller, spec, wait_s=5)

    assert (record.id, record.state, reused) == (lost.id, State.RUNNING, True)


async def test_a_command_for_a_sandbox_that_starts_waits_for_it(rig: Rig) -> None:
    rig.node.start_gate = asyncio.Event()
    record = await rig.create()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.sandboxes.inside(rig.caller, record.id))
        rig.node.start_gate.set()

    assert waiting.result().record.state is State.RUNNING


async def test_another_account_sees_nothing(rig: Rig) -> None:
    record = await rig.create()
    stranger = replace(rig.caller, account_id="other")

    for ask in (rig.sandboxes.get, rig.sandboxes.delete, rig.sandboxes.inside, rig.moves.starts):
        with pytest.raises(NotFound):
            await ask(stranger, record.id)  # type: ignore[operator]
    assert rig.node.running() == {record.id}


async def test_a_key_that_is_not_account_wide_reaches_only_its_own(rig: Rig) -> None:
    record = await rig.create()
    other = replace(rig.caller, key_id="other", account_wide=False)

    with pytest.raises(NotFound):
        await rig.sandboxes.get(other, record.id)


async def test_an_update_changes_what_is_named_and_nothing_else(rig: Rig) -> None:
    record = await rig.create(name="one", env={"A": "1", "B": "2"}, labels={"x": "y"})

    change = SandboxChange(env={"A": None, "C": "3"}, labels={"z": "w"}, user="root")
    after = await rig.sandboxes.update(rig.caller, record.id, change)

    assert (after.name, dict(after.labels), after.env_names) == ("one", {"z": "w"}, ("B", "C"))
    assert rig.node.guests[record.id].env == {"B": "2", "C": "3"}
    assert rig.node.guests[record.id].user == "root"
    assert await rig.store.get(record.id) == after


async def test_waking_one_that_is_awake_is_refused(rig: Rig) -> None:
    record = await rig.create()

    with pytest.raises(NotPaused):
        await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)


async def test_a_service_that_is_told_to_ends_its_sandboxes_with_it(rig: Rig) -> None:
    record = await rig.create()

    await rig.recovery.leave(end=True)

    after = await rig.sandboxes.get(rig.caller, record.id)
    assert (after.state, after.stop_reason) == (State.STOPPED, StopReason.HOST_STOPPED)
    assert rig.node.running() == frozenset()
