"""A host's meter in memory: a test says how much CPU each machine used; time comes from the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runtimed.core.clock import Clock
from runtimed.core.ids import SandboxId
from runtimed.core.usage import MB, Sample, SampleBatch, SampleKind, Used


@dataclass(frozen=True, kw_only=True)
class _Counting:
    incarnation: str
    began_mono_s: float
    cpu_us: int = 0
    owned_mb: int | None = None


class SimMeter:
    """Implements core.ports.Meter. Hands every batch over again until it was collected."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counting: dict[SandboxId, _Counting] = {}
        self._seqs: dict[SandboxId, int] = {}
        self._batches: dict[str, SampleBatch] = {}
        self._new: list[Sample] = []
        self._machines = 0
        self.duplicate = False
        """Hand everything over twice, newest first."""

    def burn(self, sandbox_id: SandboxId, cpu_us: int) -> None:
        """The machine used so much more CPU."""
        counting = self._counting[sandbox_id]
        self._counting[sandbox_id] = replace(counting, cpu_us=counting.cpu_us + cpu_us)

    def begin(self, sandbox_id: SandboxId) -> None:
        self._start(sandbox_id, owned_mb=None)
        self._take(sandbox_id, "ready")

    def begin_paused(self, sandbox_id: SandboxId, owned_bytes: int) -> None:
        self._start(sandbox_id, owned_mb=owned_bytes // MB)
        self._take(sandbox_id, "paused")

    def end(self, sandbox_id: SandboxId, kind: SampleKind) -> None:
        if sandbox_id in self._counting:
            self._take(sandbox_id, kind)
            del self._counting[sandbox_id]

    def forget(self, sandbox_id: SandboxId) -> None:
        self._counting.pop(sandbox_id, None)

    async def tick(self) -> None:
        for sandbox_id in self._counting:
            self._take(sandbox_id, "tick")

    async def collect(self) -> list[SampleBatch]:
        if self._new:
            name = f"batch {len(self._batches)} {self._new[0].hash}"
            self._batches[name] = SampleBatch(name=name, samples=tuple(self._new))
            self._new = []
        kept = list(self._batches.values())
        return [*reversed(kept), *kept] if self.duplicate else kept

    async def collected(self, batches: list[SampleBatch]) -> None:
        for batch in batches:
            self._batches.pop(batch.name, None)

    def _start(self, sandbox_id: SandboxId, *, owned_mb: int | None) -> None:
        self._machines += 1
        name = f"machine {self._machines}"
        self._counting[sandbox_id] = _Counting(
            incarnation=name, began_mono_s=self._clock.monotonic_s(), owned_mb=owned_mb
        )

    def _take(self, sandbox_id: SandboxId, kind: SampleKind) -> None:
        counting = self._counting[sandbox_id]
        passed_ms = int((self._clock.monotonic_s() - counting.began_mono_s) * 1000)
        used = Used(cpu_us=counting.cpu_us, running_ms=passed_ms)
        if counting.owned_mb is not None:
            used = Used(paused_mb_ms=counting.owned_mb * passed_ms)
        self._seqs[sandbox_id] = self._seqs.get(sandbox_id, 0) + 1
        sample = Sample(
            sandbox_id=sandbox_id,
            seq=self._seqs[sandbox_id],
            incarnation=counting.incarnation,
            kind=kind,
            at_ms=int(self._clock.now_s() * 1000),
            counters=used,
        )
        self._new.append(sample.sealed())
