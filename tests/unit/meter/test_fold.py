"""Samples are counted exactly once, whatever order they come in and however often, and no clock can change a figure."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimed.core.ids import SandboxId
from runtimed.core.usage import Sample, UsageRecord, Used
from runtimed.meter.fold import WAITING_MAX, Folded, close, fold

SBX = SandboxId("sbx")

steps = st.builds(Used, cpu_us=st.integers(0, 10**7), running_ms=st.integers(1, 20_000))
machines = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=4)
"""For each machine that a sandbox had, what was used between its samples."""
walls = st.lists(st.integers(-4_000_000, 4_000_000), min_size=32, max_size=32)
"""A wall clock that jumps by up to an hour, both ways."""


def sampled(lives: list[list[Used]], wall: list[int] | None = None) -> list[Sample]:
    samples: list[Sample] = []
    for number, life in enumerate(lives):
        for counters in accumulate(life, Used.__add__):
            seq = len(samples) + 1
            jump = wall[seq % len(wall)] if wall else 0
            samples.append(
                Sample(
                    sandbox_id=SBX,
                    seq=seq,
                    incarnation=f"machine {number}",
                    kind="tick",
                    at_ms=seq * 10_000 + jump,
                    counters=counters,
                ).sealed()
            )
    return samples


def everything(lives: list[list[Used]]) -> Used:
    return total_of([used for life in lives for used in life])


def total_of(parts: list[Used]) -> Used:
    whole = Used()
    for part in parts:
        whole = whole + part
    return whole


def total(records: list[UsageRecord]) -> Used:
    return total_of([record.used for record in records])


def counted(batches: list[list[Sample]]) -> tuple[Folded, list[UsageRecord]]:
    state, records = Folded(sandbox_id=SBX), list[UsageRecord]()
    for batch in batches:
        done = fold(state, batch)
        state, records = done.state, records + done.records
    done = close(state)
    return done.state, records + done.records


@given(machines)
def test_what_was_used_is_what_is_counted(lives: list[list[Used]]) -> None:
    samples = sampled(lives)
    _, records = counted([[sample] for sample in samples])

    assert total(records) == everything(lives)
    assert [record.sample_hash for record in records] == [sample.hash for sample in samples]


@settings(max_examples=200)
@given(machines, st.randoms(), st.integers(1, 5))
def test_order_and_repeats_do_not_matter(lives: list[list[Used]], chance: random.Random, size: int) -> None:
    samples = sampled(lives)
    mixed = samples * 3
    chance.shuffle(mixed)
    batches = [mixed[at : at + size] for at in range(0, len(mixed), size)]

    assert counted(batches) == counted([samples])


@given(machines, st.data())
def test_a_lost_sample_is_in_the_counters_of_the_next(lives: list[list[Used]], data: st.DataObject) -> None:
    samples = sampled(lives)
    last_of_each = {sample.incarnation: sample.seq for sample in samples}.values()
    may_go = [sample.seq for sample in samples if sample.seq not in last_of_each]
    lost = data.draw(st.sets(st.sampled_from(may_go)) if may_go else st.just(set[int]()))
    state, records = counted([[s for s in samples if s.seq not in lost]])

    assert total(records) == everything(lives)
    assert state.lost == len(lost)


@given(machines, walls)
def test_a_wall_clock_that_jumps_changes_nothing(lives: list[list[Used]], wall: list[int]) -> None:
    _, steady = counted([sampled(lives)])
    _, jumpy = counted([sampled(lives, wall)])

    assert [r.used for r in steady] == [r.used for r in jumpy]


def test_what_ran_while_no_service_was_there_is_credited() -> None:
    first, second, third = sampled([[Used(running_ms=1000)] * 3])
    found = replace(second, kind="found").sealed()
    _, records = counted([[first, found, third]])

    assert [record.credited for record in records] == [False, True, False]


def test_an_early_sample_waits_for_those_before_it() -> None:
    first, second, third = sampled([[Used(running_ms=1000)] * 3])
    waits = fold(Folded(sandbox_id=SBX), [third, second])
    then = fold(waits.state, [first])

    assert waits.records == []
    assert [r.seq for r in then.records] == [1, 2, 3]
    assert not then.state.waiting


def test_nothing_waits_for_ever_for_a_sample_that_is_lost() -> None:
    samples = sampled([[Used(running_ms=1000)] * (WAITING_MAX + 3)])
    done = fold(Folded(sandbox_id=SBX), samples[1:])

    assert total(done.records) == Used(running_ms=1000 * (WAITING_MAX + 3))
    assert done.state.lost == 1


def test_a_late_sample_is_not_counted_again() -> None:
    first, second = sampled([[Used(running_ms=1000)] * 2])
    closed = close(fold(Folded(sandbox_id=SBX), [second]).state)

    assert total(closed.records) == Used(running_ms=2000)
    assert fold(closed.state, [first]).records == []


def test_a_sample_that_was_changed_is_not_believed() -> None:
    first, second = sampled([[Used(running_ms=1000)] * 2])
    forged = replace(first, counters=Used(running_ms=10**9))
    done = fold(Folded(sandbox_id=SBX), [forged, first, second])

    assert total(done.records) == Used(running_ms=2000)
    assert done.state.damaged == 1


def test_counters_that_started_again_under_the_same_name_are_added() -> None:
    first, second = (
        Sample(
            sandbox_id=SBX,
            seq=seq,
            incarnation="one",
            kind="tick",
            at_ms=0,
            counters=Used(cpu_us=cpu, running_ms=running),
        ).sealed()
        for seq, cpu, running in ((1, 500, 9000), (2, 300, 1000))
    )
    _, records = counted([[first, second]])

    assert total(records) == Used(cpu_us=800, running_ms=10_000)


def test_cpu_that_the_kernel_takes_back_is_not_counted_twice() -> None:
    readings = [(100, 1000), (99, 2000), (105, 3000)]
    samples = [
        Sample(
            sandbox_id=SBX,
            seq=seq,
            incarnation="one",
            kind="tick",
            at_ms=0,
            counters=Used(cpu_us=cpu, running_ms=running),
        ).sealed()
        for seq, (cpu, running) in enumerate(readings, start=1)
    ]
    _, records = counted([samples])

    assert total(records) == Used(cpu_us=105, running_ms=3000)
