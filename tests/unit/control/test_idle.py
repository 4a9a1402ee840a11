"""What keeps a sandbox awake, and that nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runtimed.control.idle import CPU_SHARE
from runtimed.core.commands import Command
from runtimed.core.ids import ProcessId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import SandboxRecord
from runtimed.sim.guest import Scripted

from .conftest import Rig

TICK_S = 5.0


async def let_pass(rig: Rig, seconds: float, *, each: Callable[[], None] = lambda: None) -> None:
    """Time in which the reconciler looks as often as it does."""
    for _ in range(int(seconds / TICK_S)):
        await rig.clock.advance(TICK_S)
        each()
        await rig.idle.reconcile()
        await asyncio.sleep(0)


async def state_of(rig: Rig, record: SandboxRecord) -> State:
    return (await rig.sandboxes.get(rig.caller, record.id)).state


async def test_a_sandbox_that_nobody_uses_is_paused_and_not_before(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=300)
    await let_pass(rig, 295)
    before = await state_of(rig, record)

    await let_pass(rig, 10)

    assert before is State.RUNNING
    assert (await rig.until(record, State.PAUSED)).stop_reason is StopReason.IDLE


async def test_one_that_is_never_to_be_paused_is_not(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=0, lease_s=86_400)

    await let_pass(rig, 3600)

    assert await state_of(rig, record) is State.RUNNING


async def test_st_07_reading_its_state_keeps_nothing_awake(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=60)
    for _ in range(13):
        await let_pass(rig, 5)
        await rig.sandboxes.get(rig.caller, record.id)

    await rig.until(record, State.PAUSED)


@pytest.mark.parametrize("use", ["request", "cpu", "traffic"])
async def test_use_keeps_it_awake_and_its_end_counts_from_then(rig: Rig, use: str) -> None:
    record = await rig.create(idle_pause_s=60)

    def used() -> None:
        if use == "request":
            rig.load.calls_now[record.id] = 1
        elif use == "cpu":
            rig.load.cpu_used_s[record.id] = rig.load.cpu_used_s.get(record.id, 0) + 2 * CPU_SHARE * TICK_S
        else:
            rig.load.bytes_moved[record.id] = rig.load.bytes_moved.get(record.id, 0) + 1

    await let_pass(rig, 600, each=used)
    busy = await state_of(rig, record)
    rig.load.calls_now.clear()
    await let_pass(rig, 50)
    soon = await state_of(rig, record)
    await let_pass(rig, 20)

    assert (busy, soon) == (State.RUNNING, State.RUNNING)
    await rig.until(record, State.PAUSED)


async def test_cpu_below_a_fortieth_of_a_vcpu_is_no_use(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=60)

    def ticking() -> None:
        rig.load.cpu_used_s[record.id] = rig.load.cpu_used_s.get(record.id, 0) + 0.9 * CPU_SHARE * TICK_S

    await let_pass(rig, 70, each=ticking)

    await rig.until(record, State.PAUSED)


async def test_an_open_connection_without_bytes_is_no_use(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=60)
    rig.load.bytes_moved[record.id] = 1000

    await let_pass(rig, 70)

    await rig.until(record, State.PAUSED)


async def test_a_running_command_keeps_it_awake_and_its_end_counts_from_then(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.node.script = lambda _: Scripted(gate=gate)
    record = await rig.create(idle_pause_s=60)
    guest = (await rig.sandboxes.inside(rig.caller, record.id)).guest
    await guest.processes.spawn(ProcessId("p"), Command(argv=("sleep",), timeout_ms=86_400_000))

    await let_pass(rig, 600)
    busy = await state_of(rig, record)
    gate.set()
    await let_pass(rig, 100)

    assert busy is State.RUNNING
    await rig.until(record, State.PAUSED)


async def test_a_request_that_comes_in_the_last_moment_is_not_interrupted(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=60)
    await let_pass(rig, 55)
    await rig.clock.advance(10)
    await rig.idle.reconcile()
    rig.load.calls_now[record.id] = 1

    for _ in range(20):
        await asyncio.sleep(0)

    assert await state_of(rig, record) is State.RUNNING


async def test_looking_twice_pauses_once(rig: Rig) -> None:
    record = await rig.create(idle_pause_s=60)
    await let_pass(rig, 60)
    await rig.idle.reconcile()
    await rig.idle.reconcile()

    await rig.until(record, State.PAUSED)
    assert rig.node.faults.reached.count("pause") == 1
