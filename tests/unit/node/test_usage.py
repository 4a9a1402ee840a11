"""Samples say what the host's kernel says of a process, are on disk before they count, and survive a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtimed.core.clock import ManualClock
from runtimed.core.ids import SandboxId
from runtimed.core.usage import MB, Used
from runtimed.node.sample_log import SampleLog
from runtimed.node.usage import UsageSampler, cpu_us, incarnation

SBX = SandboxId("sbx")
PID = 4711

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
BURN_AND_WAIT = f"""
import os, sys
if (child := os.fork()) == 0:
    exec({BURN!r})
    os._exit(0)
os.waitpid(child, 0)
if os.fork() == 0:
    exec({BURN!r})
    print("burnt", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


class Cpu:
    """A process whose CPU time a test sets by hand."""

    def __init__(self) -> None:
        self.us: int | None = 2_000_000

    def __call__(self, pid: int) -> int | None:
        assert pid == PID
        return self.us


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


@pytest.fixture
def sampler(tmp_path: Path, clock: ManualClock, cpu: Cpu) -> UsageSampler:
    return UsageSampler(tmp_path, clock, read_cpu_us=cpu)


async def test_a_machine_counts_from_ready_to_its_stop(sampler: UsageSampler, clock: ManualClock, cpu: Cpu) -> None:
    ready = sampler.begin(SBX, "one", PID)
    await clock.advance(10)
    cpu.us = 2_500_000
    (tick,) = sampler.tick()
    await clock.advance(5)
    end = sampler.end(SBX)
    await clock.advance(5)

    assert end is not None
    assert [s.counters for s in (ready, tick, end)] == [
        Used(),  # boot and restore are free
        Used(cpu_us=500_000, running_ms=10_000),
        Used(cpu_us=500_000, running_ms=15_000),
    ]
    assert [s.seq for s in (ready, tick, end)] == [1, 2, 3]
    assert sampler.tick() == []
    assert sampler.end(SBX) is None


async def test_what_was_written_can_be_collected_until_it_was(sampler: UsageSampler, clock: ManualClock) -> None:
    ready = sampler.begin(SBX, "one", PID)
    await clock.advance(10)
    (tick,) = sampler.tick()
    sampler.write()
    sampler.log.close_segment()
    (path,) = sampler.log.closed()

    assert sampler.log.read(path).samples == (ready, tick)
    assert all(sample.intact for sample in (ready, tick))

    sampler.log.collected(path)
    sampler.log.collected(path)
    assert sampler.log.closed() == []


async def test_a_restarted_service_goes_on_counting_where_it_was(
    tmp_path: Path, sampler: UsageSampler, clock: ManualClock, cpu: Cpu
) -> None:
    sampler.begin(SBX, "one", PID)
    sampler.write()
    await clock.advance(10)
    again = UsageSampler(tmp_path, clock, read_cpu_us=cpu)
    await clock.advance(10)
    cpu.us = 3_000_000
    found = again.begin(SBX, "one", PID)

    assert (found.kind, found.seq) == ("found", 2)
    assert found.counters == Used(cpu_us=1_000_000, running_ms=20_000)
    assert again.begin(SBX, "one", PID).kind == "tick"  # found once
    assert len(again.log.closed()) == 1  # what the first one wrote waits to be collected


async def test_a_machine_that_was_not_found_again_counts_no_more(
    tmp_path: Path, sampler: UsageSampler, clock: ManualClock, cpu: Cpu
) -> None:
    sampler.begin(SBX, "one", PID)
    await clock.advance(10)
    sampler.tick()
    sampler.write()
    again = UsageSampler(tmp_path, clock, read_cpu_us=cpu)
    await clock.advance(1000)
    cpu.us = 900_000_000  # another process has its pid by now
    (tick,) = again.tick()

    assert tick.counters == Used(running_ms=10_000)


async def test_another_machine_of_the_same_sandbox_starts_at_zero_with_the_next_number(
    sampler: UsageSampler, clock: ManualClock, cpu: Cpu
) -> None:
    sampler.begin(SBX, "one", PID)
    await clock.advance(10)
    sampler.end(SBX, "paused")
    cpu.us = 100
    woken = sampler.begin(SBX, "two", PID)

    assert (woken.seq, woken.counters, woken.incarnation) == (3, Used(), "two")


async def test_a_paused_sandbox_counts_only_what_it_stores(sampler: UsageSampler, clock: ManualClock) -> None:
    sampler.begin(SBX, "one", PID)
    sampler.end(SBX, "paused")
    sampler.begin_paused(SBX, 47_999_999)
    await clock.advance(10)
    (tick,) = sampler.tick()

    assert tick.counters == Used(paused_mb_ms=47 * 10_000)


async def test_what_was_stored_while_no_service_lived_is_found_by_the_next_one(
    tmp_path: Path, sampler: UsageSampler, clock: ManualClock, cpu: Cpu
) -> None:
    sampler.begin_paused(SBX, 40 * MB)
    await clock.advance(10)
    sampler.tick()
    sampler.write()
    await clock.advance(1000)
    again = UsageSampler(tmp_path, clock, read_cpu_us=cpu)
    again.write()
    await clock.advance(10)
    (tick,) = again.tick()
    again.log.close_segment()
    found = [s for path in again.log.closed() for s in again.log.read(path).samples if s.kind == "found"]

    assert [s.counters.paused_mb_ms for s in found] == [40 * 1_010_000]
    assert tick.counters.paused_mb_ms == 40 * 1_020_000


async def test_storage_goes_on_from_nothing_after_the_host_was_started_again(
    tmp_path: Path, sampler: UsageSampler, clock: ManualClock, cpu: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    await clock.advance(5000)
    sampler.begin_paused(SBX, 40 * MB)
    await clock.advance(10)
    sampler.tick()
    sampler.write()
    monkeypatch.setattr("runtimed.node.usage.boot_id", lambda: "another start")
    clock._mono_s = 30.0
    again = UsageSampler(tmp_path, clock, read_cpu_us=cpu)
    await clock.advance(10)
    (tick,) = again.tick()

    assert tick.counters == Used(paused_mb_ms=40 * 10_000)


async def test_a_wall_clock_that_jumps_changes_no_counter(sampler: UsageSampler, clock: ManualClock) -> None:
    sampler.begin(SBX, "one", PID)
    await clock.advance(10)
    clock._now_s -= 3600
    (tick,) = sampler.tick()

    assert tick.counters.running_ms == 10_000


async def test_a_process_that_is_gone_used_what_was_read_last(
    sampler: UsageSampler, clock: ManualClock, cpu: Cpu
) -> None:
    sampler.begin(SBX, "one", PID)
    cpu.us = 2_700_000
    await clock.advance(10)
    sampler.tick()
    cpu.us = None
    await clock.advance(1)
    end = sampler.end(SBX)

    assert end is not None
    assert end.counters == Used(cpu_us=700_000, running_ms=10_000)


async def test_a_full_disk_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, sampler: UsageSampler, clock: ManualClock
) -> None:
    ready = sampler.begin(SBX, "one", PID)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _refuse)
        with pytest.raises(OSError, match="No space"):
            sampler.write()
    await clock.advance(10)
    (tick,) = sampler.tick()
    sampler.write()
    sampler.log.close_segment()

    found = [sample for path in sampler.log.closed() for sample in sampler.log.read(path).samples]
    assert set(found) == {ready, tick}


async def test_what_went_out_is_counted_from_ready_on_and_goes_on_after_a_restart(
    tmp_path: Path, clock: ManualClock, cpu: Cpu
) -> None:
    carried = 1000
    sampler = UsageSampler(tmp_path, clock, read_cpu_us=cpu, outbound_bytes=lambda sandbox_id: carried)
    sampler.begin(SBX, "one", PID)
    carried = 1500
    (tick,) = sampler.tick()
    sampler.write()
    carried = 0  # another service's gateway begins anew
    again = UsageSampler(tmp_path, clock, read_cpu_us=cpu, outbound_bytes=lambda sandbox_id: carried)
    found = again.begin(SBX, "one", PID)
    carried = 200
    (more,) = again.tick()

    assert [s.counters.outbound_bytes for s in (tick, found, more)] == [500, 500, 700]


def test_a_simulated_machine_counts_time_alone(sampler: UsageSampler, clock: ManualClock) -> None:
    sampler.begin(SBX, "one", None)
    clock._mono_s += 10

    assert sampler.tick()[0].counters == Used(running_ms=10_000)


def _refuse(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_torn_or_changed_line_is_known(tmp_path: Path, sampler: UsageSampler) -> None:
    sampler.begin(SBX, "one", PID)
    sampler.tick()
    sampler.write()
    sampler.log.close_segment()
    (path,) = sampler.log.closed()
    first, second = path.read_bytes().splitlines()
    changed = json.loads(second) | {"at_ms": 1}
    path.write_bytes(first + b"\n" + json.dumps(changed).encode() + b"\n" + first[:40])

    segment = SampleLog(tmp_path).read(path)
    assert [s.seq for s in segment.samples] == [1]
    assert segment.damaged == 2


def test_cpu_of_a_jail_is_that_of_what_runs_inside_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BURN_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        used = cpu_us(process.pid)
        name = incarnation(process.pid)

        assert used is not None
        assert 550_000 <= used <= 1_500_000  # two children of 0.3 s, and three starts of an interpreter
        assert name is not None
        assert name != incarnation(os.getpid())
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert cpu_us(process.pid) is None
    assert incarnation(process.pid) is None
