"""Pause, wake and restart: what was written is there afterwards, whoever asks twice, and whatever fails."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from runtimed.core.commands import Command
from runtimed.core.errors import (
    Interrupted,
    MachineGone,
    NoCapacity,
    NotPaused,
    NotStopped,
    SandboxPaused,
    SandboxStopped,
    StartFailed,
)
from runtimed.core.ids import ProcessId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import SandboxChange, SandboxRecord
from runtimed.sim.guest import Scripted

from .conftest import SMALL, Rig

SERVER = Command(argv=("server",), timeout_ms=60_000)


def put(rig: Rig, record: SandboxRecord, path: str, data: bytes) -> None:
    rig.node.guests[record.id].sim_files._put(path, data, None)


def found(rig: Rig, record: SandboxRecord, path: str) -> bytes | None:
    return rig.node.guests[record.id].sim_files.content.get(path)


async def paused(rig: Rig, record: SandboxRecord) -> SandboxRecord:
    """Paused, with its memory written."""
    await rig.moves.pause(rig.caller, record.id, wait_s=5)

    async def written() -> bool:
        now = await rig.sandboxes.get(rig.caller, record.id)
        return now.stored_bytes > 0

    await rig.until_true("the memory being written", written)
    return await rig.sandboxes.get(rig.caller, record.id)


async def test_sn_01_ten_pauses_lose_no_file(rig: Rig) -> None:
    record = await rig.create()
    for number in range(10):
        put(rig, record, f"/workspace/{number}", b"%d" % number)
        await paused(rig, record)
        await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)

        assert [found(rig, record, f"/workspace/{n}") for n in range(number + 1)] == [
            b"%d" % n for n in range(number + 1)
        ]


async def test_a_pause_is_answered_before_its_memory_is_written(rig: Rig) -> None:
    rig.node.write_s = 60
    record = await rig.create()

    answered = await rig.moves.pause(rig.caller, record.id, wait_s=5)

    assert (answered.state, answered.stored_bytes) == (State.PAUSED, 0)
    assert rig.node.stored(record.id) is None
    assert (answered.stop_reason, answered.paused_at_s) == (StopReason.REQUESTED, rig.clock.now_s())


async def test_a_wake_calls_off_a_write_that_is_under_way(rig: Rig) -> None:
    rig.node.write_s = 60
    record = await rig.create()
    await rig.moves.pause(rig.caller, record.id, wait_s=5)

    woken = await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)
    await rig.clock.advance(120)

    assert (woken.state, woken.started and woken.started.how) == (State.RUNNING, "thaw")
    assert (await rig.sandboxes.get(rig.caller, record.id)).state is State.RUNNING


async def test_a_pause_that_cannot_be_written_lets_the_sandbox_go_on_and_says_why(rig: Rig) -> None:
    rig.node.write_s, rig.node.write_error = 10, "the disk is full"
    record = await rig.create()
    put(rig, record, "/workspace/f", b"kept")
    await rig.moves.pause(rig.caller, record.id, wait_s=5)

    await rig.clock.advance(10)

    after = await rig.until(record, State.RUNNING)
    assert (after.note, after.stop_reason, after.paused_at_s) == ("the disk is full", None, None)
    assert found(rig, record, "/workspace/f") == b"kept"
    await rig.sandboxes.inside(rig.caller, record.id)


async def test_a_pause_without_room_on_the_disk_is_refused_and_changes_nothing(rig: Rig) -> None:
    record = await rig.create()
    rig.node.faults.errors["pause"] = NoCapacity("no room on the disk")

    with pytest.raises(NoCapacity):
        await rig.moves.pause(rig.caller, record.id, wait_s=5)

    after = await rig.sandboxes.get(rig.caller, record.id)
    assert (after.state, after.note) == (State.RUNNING, "no room on the disk")


async def test_sn_03_pausing_and_waking_twice_at_once_is_once(rig: Rig) -> None:
    record = await rig.create()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(rig.moves.pause(rig.caller, record.id, wait_s=5))
    async with asyncio.TaskGroup() as group:
        woken = [group.create_task(rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)) for _ in range(3)]

    assert [task.result().state for task in woken] == [State.RUNNING] * 3
    assert rig.node.faults.reached.count("pause") == 1
    assert rig.node.faults.reached.count("wake") == 1


async def test_a_wake_right_behind_a_pause_waits_for_it(rig: Rig) -> None:
    record = await rig.create()
    rig.node.faults.gates["pause"] = gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.moves.pause(rig.caller, record.id, wait_s=5))
        await rig.until(record, State.PAUSING)
        waking = group.create_task(rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5))
        gate.set()

    assert waking.result().state is State.RUNNING


async def test_a_sandbox_that_is_awake_says_so(rig: Rig) -> None:
    record = await rig.create()

    with pytest.raises(NotPaused):
        await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)


async def test_reaching_into_a_paused_sandbox_wakes_it(rig: Rig) -> None:
    record = await rig.create(lease_s=600)
    await paused(rig, record)
    await rig.clock.advance(7200)

    inside = await rig.sandboxes.inside(rig.caller, record.id)

    assert inside.record.state is State.RUNNING
    assert inside.record.ends_at_s == rig.clock.now_s() + 600
    assert rig.node.host.leases[record.id] == 600


async def test_one_that_does_not_wake_by_itself_is_refused_until_it_is_woken(rig: Rig) -> None:
    record = await rig.create(auto_wake=False)
    await paused(rig, record)

    with pytest.raises(SandboxPaused):
        await rig.sandboxes.inside(rig.caller, record.id)

    await rig.moves.wake(rig.caller, record.id, lease_s=90, wait_s=5)
    assert (await rig.sandboxes.inside(rig.caller, record.id)).lease_left_s == 90


async def test_sn_19_processes_go_on_and_their_readers_are_interrupted_with_a_cursor(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.node.script = lambda _: Scripted(output=[("stdout", b"up")], gate=gate)
    record = await rig.create()
    processes = (await rig.sandboxes.inside(rig.caller, record.id)).guest.processes
    await processes.spawn(ProcessId("p"), SERVER)
    waiting = asyncio.get_running_loop().create_task(processes.capture(ProcessId("c"), SERVER, keep_bytes=10))
    with pytest.raises(Interrupted) as told:
        async with processes.follow(ProcessId("p"), cursor=0) as events:
            async for _ in events:
                await rig.moves.pause(rig.caller, record.id, wait_s=5)
    with pytest.raises(Interrupted) as cut:
        await waiting

    again = (await rig.sandboxes.inside(rig.caller, record.id)).guest.processes

    assert told.value.details["cursor"] == 2
    assert cut.value.details == {"processId": "c", "cursor": 0}
    assert (await again.process(ProcessId("p"))).state == "running"
    resumed = asyncio.get_running_loop().create_task(again.capture(ProcessId("c"), SERVER, keep_bytes=10))
    gate.set()
    assert (await resumed).stdout == b"up"


async def test_a_paused_sandbox_takes_no_room_and_its_wake_asks_for_it(rig: Rig) -> None:
    rig.node.memory_mib = SMALL.memory_mib
    first = await rig.create()
    await paused(rig, first)
    second = await rig.create()

    with pytest.raises(NoCapacity):
        await rig.moves.wake(rig.caller, first.id, lease_s=None, wait_s=5)
    with pytest.raises(NoCapacity):
        await rig.sandboxes.inside(rig.caller, first.id)

    await rig.sandboxes.delete(rig.caller, second.id)
    assert (await rig.moves.wake(rig.caller, first.id, lease_s=None, wait_s=5)).state is State.RUNNING


async def test_a_wake_that_fails_leaves_it_paused_and_a_restart_boots_its_disk(rig: Rig) -> None:
    record = await rig.create()
    put(rig, record, "/workspace/f", b"kept")
    await paused(rig, record)
    rig.node.faults.errors["wake"] = StartFailed("its memory cannot be used")
    with pytest.raises(StartFailed):
        await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)
    after = await rig.sandboxes.get(rig.caller, record.id)
    del rig.node.faults.errors["wake"]

    restarted = await rig.moves.restart(rig.caller, record.id, wait_s=5)

    assert (after.state, after.stop_reason) == (State.PAUSED, StopReason.REQUESTED)
    assert (restarted.state, restarted.started and restarted.started.how) == (State.RUNNING, "cold")
    assert found(rig, record, "/workspace/f") == b"kept"


@pytest.mark.parametrize("way", ["stop", "delete"])
async def test_sn_05_an_end_during_a_pause_ends_it(rig: Rig, way: str) -> None:
    record = await rig.create()
    rig.node.faults.gates["pause"] = asyncio.Event()
    pausing = asyncio.get_running_loop().create_task(rig.moves.pause(rig.caller, record.id, wait_s=5))
    await rig.until(record, State.PAUSING)

    ended = await (
        rig.sandboxes.stop(rig.caller, record.id, wait_s=5)
        if way == "stop"
        else rig.sandboxes.delete(rig.caller, record.id)
    )

    assert ended.state is State.STOPPED
    with pytest.raises(SandboxStopped):
        await pausing
    assert (rig.node.host.machines, rig.node.host.kept) == ({}, {})


async def test_deleting_a_paused_sandbox_removes_what_was_kept(rig: Rig) -> None:
    record = await rig.create()
    await paused(rig, record)

    await rig.sandboxes.delete(rig.caller, record.id)

    assert (rig.node.host.kept, rig.lives.all()) == ({}, [])


async def test_a_stop_of_a_persistent_sandbox_keeps_its_disk_and_its_name(rig: Rig) -> None:
    record = await rig.create(name="one", persistent=True)
    put(rig, record, "/workspace/f", b"kept")
    stopped = await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)

    with pytest.raises(SandboxStopped):
        await rig.sandboxes.inside(rig.caller, record.id)
    again = await rig.create(name="one", get_or_create=True)

    assert (stopped.state, stopped.disk_kept) == (State.STOPPED, True)
    assert (again.id, again.state, again.disk_kept) == (record.id, State.RUNNING, False)
    assert found(rig, record, "/workspace/f") == b"kept"


async def test_a_stop_of_another_one_keeps_nothing(rig: Rig) -> None:
    record = await rig.create()
    stopped = await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)

    with pytest.raises(SandboxStopped):
        await rig.moves.restart(rig.caller, record.id, wait_s=5)

    assert not stopped.disk_kept
    assert rig.node.host.kept == {}


async def test_deleting_a_stopped_one_removes_its_disk(rig: Rig) -> None:
    record = await rig.create(persistent=True)
    await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)

    await rig.sandboxes.delete(rig.caller, record.id)

    assert (rig.node.host.kept, rig.lives.all()) == ({}, [])


async def test_a_machine_that_dies_keeps_its_disk_for_a_restart(rig: Rig) -> None:
    record = await rig.create()
    put(rig, record, "/workspace/f", b"kept")
    await rig.node.kill(record.id)
    lost = await rig.sandboxes.get(rig.caller, record.id)

    restarted = await rig.moves.restart(rig.caller, record.id, wait_s=5)

    assert (lost.state, lost.stop_reason, lost.disk_kept) == (State.STOPPED, StopReason.HOST_LOST, True)
    assert (restarted.state, restarted.stop_reason, restarted.ended_at_s) == (State.RUNNING, None, None)
    assert found(rig, record, "/workspace/f") == b"kept"


async def test_sn_27_memory_that_does_not_belong_to_the_disk_is_not_used(rig: Rig) -> None:
    rig.node.write_s = 60
    record = await rig.create()
    put(rig, record, "/workspace/f", b"new")
    await rig.moves.pause(rig.caller, record.id, wait_s=5)

    await rig.node.kill(record.id)

    lost = await rig.sandboxes.get(rig.caller, record.id)
    assert (lost.state, lost.stop_reason, lost.disk_kept) == (State.STOPPED, StopReason.HOST_LOST, True)
    restarted = await rig.moves.restart(rig.caller, record.id, wait_s=5)
    assert restarted.started and restarted.started.how == "cold"
    assert found(rig, record, "/workspace/f") == b"new"


async def test_one_that_runs_cannot_be_restarted(rig: Rig) -> None:
    record = await rig.create()

    with pytest.raises(NotStopped):
        await rig.moves.restart(rig.caller, record.id, wait_s=5)


async def test_what_is_changed_while_it_sleeps_counts_when_it_wakes(rig: Rig) -> None:
    record = await rig.create(env={"A": "1", "B": "2"})
    await paused(rig, record)
    await rig.sandboxes.update(rig.caller, record.id, SandboxChange(env={"A": None, "C": "3"}, lease_s=1200))

    woken = await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)

    assert rig.node.guests[record.id].env == {"B": "2", "C": "3"}
    assert woken.ends_at_s == rig.clock.now_s() + 1200


async def test_each_start_leaves_a_receipt(rig: Rig) -> None:
    record = await rig.create()
    await rig.clock.advance(2)
    await rig.sandboxes.inside(rig.caller, record.id)
    await paused(rig, record)
    await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)

    receipts = await rig.moves.starts(rig.caller, record.id)

    assert [(r.number, r.cause, r.started.how) for r in receipts] == [(1, "create", "spare"), (2, "wake", "wake")]
    assert [r.policy_version for r in receipts] == [1, 1]
    await rig.sandboxes.inside(rig.caller, record.id)
    await rig.clock.advance(1)
    assert (await rig.moves.starts(rig.caller, record.id))[1].first_command_ms == 0


async def test_sn_03_racing_pauses_get_one_answer_whatever_wakes_it_in_the_next_moment(rig: Rig) -> None:
    record = await rig.create()
    rig.node.faults.gates["pause"] = gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    asking = [loop.create_task(rig.moves.pause(rig.caller, record.id, wait_s=5)) for _ in range(3)]
    await rig.until(record, State.PAUSING)
    waking = loop.create_task(rig.sandboxes.inside(rig.caller, record.id))

    gate.set()
    answers = [await one for one in asking]
    await waking

    assert {(a.state, a.stop_reason) for a in answers} == {(State.PAUSED, StopReason.REQUESTED)}
    assert (await rig.sandboxes.get(rig.caller, record.id)).state is State.RUNNING


async def test_a_pause_that_is_asked_while_the_last_one_is_being_undone_pauses_again(rig: Rig) -> None:
    record = await rig.create()
    await paused(rig, record)
    rig.node.faults.gates["wake"] = gate = asyncio.Event()
    waking = asyncio.get_running_loop().create_task(rig.sandboxes.inside(rig.caller, record.id))
    await rig.until(record, State.RESUMING)
    asking = asyncio.get_running_loop().create_task(rig.moves.pause(rig.caller, record.id, wait_s=5))

    gate.set()

    assert (await asking).state is State.PAUSED
    with contextlib.suppress(MachineGone):
        await waking
