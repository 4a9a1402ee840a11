"""Counts samples on top of a document that the store keeps for each sandbox and nobody else reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

from runtimed.core.ids import SandboxId
from runtimed.core.usage import Counted, Sample, Used
from runtimed.meter.fold import Fold, Folded, close, fold


class SampleCount:
    """Implements core.ports.SampleCounter."""

    def count(self, sandbox_id: SandboxId, document: Mapping[str, object] | None, samples: Iterable[Sample]) -> Counted:
        """Count these samples as far as they follow each other."""
        return _counted(fold(_state(sandbox_id, document), samples))

    def finish(self, sandbox_id: SandboxId, document: Mapping[str, object] | None) -> Counted:
        """No more will come: count what waits for an earlier one."""
        return _counted(close(_state(sandbox_id, document)))


def _counted(done: Fold) -> Counted:
    return Counted(document=counted_to(done.state), records=tuple(done.records))


def _state(sandbox_id: SandboxId, document: Mapping[str, object] | None) -> Folded:
    return Folded(sandbox_id=sandbox_id) if document is None else counted_from(document)


def counted_to(state: Folded) -> dict[str, object]:
    return {
        "sandbox_id": state.sandbox_id,
        "last_seq": state.last_seq,
        "incarnation": state.incarnation,
        "counters": asdict(state.counters),
        "waiting": [asdict(sample) for sample in state.waiting.values()],
        "lost": state.lost,
        "damaged": state.damaged,
    }


def counted_from(document: Mapping[str, object]) -> Folded:
    raw = cast("Mapping[str, Any]", document)
    waiting = [Sample(**{**sample, "counters": Used(**sample["counters"])}) for sample in raw["waiting"]]
    return Folded(
        sandbox_id=SandboxId(raw["sandbox_id"]),
        last_seq=raw["last_seq"],
        incarnation=raw["incarnation"],
        counters=Used(**raw["counters"]),
        waiting=MappingProxyType({sample.seq: sample for sample in waiting}),
        lost=raw["lost"],
        damaged=raw["damaged"],
    )
