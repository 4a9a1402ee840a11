"""Turns samples into records of use, each exactly once, in whatever order and however often the samples come.

Samples of a sandbox are numbered 1, 2, 3, ... on its host and counted strictly in that order: one that comes early
waits for those before it, one that comes again is dropped. So the same samples always give the same records. Their
counters grow from the start of a machine; a machine that was started again counts from 0. Durations come from the
host's monotonic clock and are only ever added: no wall clock is read here, and none can change a figure.

A host whose service does not live cannot be reached. Its interval is frozen at the last sample, and the first sample
of the next service, which is of the kind `found`, covers everything since: that is shown, and credited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from runtimed.core.ids import SandboxId
from runtimed.core.usage import Sample, UsageRecord, Used

WAITING_MAX = 64
"""Samples that wait for an earlier one. With more it is taken for lost: the next counter contains what it said."""


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Where the count of one sandbox stands."""

    sandbox_id: SandboxId
    last_seq: int = 0
    incarnation: str = ""
    counters: Used = field(default_factory=Used)
    """Of the newest sample that was counted."""
    waiting: Mapping[int, Sample] = field(default_factory=lambda: MappingProxyType({}))
    """Came before an earlier one did."""
    lost: int = 0
    """Samples that never came; their use is in the counters of later ones."""
    damaged: int = 0
    """Samples whose hash does not fit; they are as good as lost."""


@dataclass(frozen=True)
class Fold:
    """The count after some samples, and what they added."""

    state: Folded
    records: list[UsageRecord]


def fold(state: Folded, samples: Iterable[Sample]) -> Fold:
    """Count these samples as far as they follow each other. Idempotent: a sample that was counted adds nothing."""
    waiting, damaged = dict(state.waiting), state.damaged
    for sample in samples:
        if sample.sandbox_id != state.sandbox_id:
            raise ValueError(f"a sample of {sample.sandbox_id} does not belong to {state.sandbox_id}")
        if not sample.intact:
            damaged += 1
        elif sample.seq > state.last_seq:
            waiting.setdefault(sample.seq, sample)
    state = replace(state, waiting=MappingProxyType(waiting), damaged=damaged)
    return _count(state, all_that_wait=False)


def close(state: Folded) -> Fold:
    """No more samples will come: count those that wait, without those before them. Idempotent."""
    return _count(state, all_that_wait=True)


def _count(state: Folded, *, all_that_wait: bool) -> Fold:
    waiting, records = dict(state.waiting), list[UsageRecord]()
    while waiting:
        seq = state.last_seq + 1
        if seq not in waiting:
            if not all_that_wait and len(waiting) <= WAITING_MAX:
                break
            seq = min(waiting)
            state = replace(state, lost=state.lost + seq - state.last_seq - 1)
        sample = waiting.pop(seq)
        before = Used() if _started_again(state, sample) else state.counters
        records.append(
            UsageRecord(
                sandbox_id=state.sandbox_id,
                seq=seq,
                at_ms=sample.at_ms,
                sample_hash=sample.hash,
                used=sample.counters.since(before),
                credited=sample.kind == "found",
            )
        )
        # At least what was counted: a counter that the kernel corrects downwards by a tick is not counted up again.
        counters = before + sample.counters.since(before)
        state = replace(state, last_seq=seq, incarnation=sample.incarnation, counters=counters)
    return Fold(replace(state, waiting=MappingProxyType(waiting)), records)


def _started_again(state: Folded, sample: Sample) -> bool:
    """Whether the sample's counters began at 0 after the newest one that was counted.

    CPU alone decides nothing: the kernel may correct it downwards by a tick between two reads.
    """
    now, before = sample.counters, state.counters
    fell = now.running_ms < before.running_ms or now.paused_mb_ms < before.paused_mb_ms
    return fell or sample.incarnation != state.incarnation
