"""Reads what each machine's process used on the host and numbers it as samples; nothing inside a guest is asked.

A machine counts from `begin` (it is ready) to `end` (its vCPUs stopped). What is needed to go on counting after a
restart of the service is kept beside the samples, so that a machine that is found again keeps its counters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from runtimed.core.clock import Clock
from runtimed.core.ids import SandboxId
from runtimed.core.usage import MB, Sample, SampleKind, Used
from runtimed.node.sample_log import SampleLog
from runtimed.node.vmm.processes import mark

EVERY_S = 10.0
"""At most this much use is unknown when a host dies."""
STATE = "counting.json"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_us(pid: int) -> int | None:
    """CPU time of a process and of all that it started, microseconds; None when it is gone.

    User and system time of the whole process (every vCPU and I/O thread of a QEMU), with what its ended children
    used, and the same for each living child: the pid may be that of a jail whose child is the machine.
    """
    found = _one_us(pid)
    if found is None:
        return None
    return found + sum(cpu_us(child) or 0 for child in _children(pid))


def incarnation(pid: int) -> str | None:
    """A name for exactly this process: another one, or another start of the host, has another. None when it is gone."""
    seen = mark(pid)
    return None if seen is None else f"{boot_id()}/{seen.pid}/{seen.start_ticks}"


@cache
def boot_id() -> str:
    """Names this start of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, kw_only=True)
class Counting:
    """How one sandbox is being counted."""

    seq: int
    """Of its newest sample."""
    incarnation: str = ""
    """Empty while nothing of it counts."""
    began_mono_s: float = 0.0
    base_cpu_us: int = 0
    """What the process had used before it was ready: boot and restore are free."""
    counters: Used = field(default_factory=Used)
    """As last read."""
    pid: int | None = None
    """None where there is no process to read: a paused sandbox, a simulated machine."""
    gone: bool = False
    """Its process ended without anyone taking a last sample: what was read last is all that it used."""
    base_outbound: int = 0
    """What its connections had carried out when it began to count."""
    owned_mb: int | None = None
    """Decimal megabytes that a paused sandbox alone owns; None while it runs."""


class UsageSampler:
    """Samples of all machines of a host.

    Everything but `write` takes microseconds and belongs to one thread. `write` blocks on the disk: give it a thread.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        read_cpu_us: Callable[[int], int | None] = cpu_us,
        outbound_bytes: Callable[[SandboxId], int] = lambda sandbox_id: 0,
    ) -> None:
        self._outbound_bytes = outbound_bytes
        self.log = SampleLog(directory)
        self._state_path = directory / STATE
        self._clock = clock
        self._read_cpu_us = read_cpu_us
        self._counting = self._load()
        self._unwritten: list[Sample] = []
        self._find_stored()

    def begin(self, sandbox_id: SandboxId, machine: str, pid: int | None) -> Sample:
        """Count this machine from now on; one that was counted before the service restarted goes on where it was.

        `machine` is its `incarnation`.
        """
        known = self._counting.get(sandbox_id, Counting(seq=0))
        if known.owned_mb is not None:
            self._take(sandbox_id, "tick")  # what it stored until this moment
            known = self._counting[sandbox_id]
        if known.incarnation == machine:
            # The gateway counts from 0 again in a service that was not there before.
            carried = self._outbound_bytes(sandbox_id) - known.counters.outbound_bytes
            base = carried if known.gone else known.base_outbound
            self._counting[sandbox_id] = replace(known, pid=pid, gone=False, base_outbound=base)
            return self._take(sandbox_id, "found" if known.gone else "tick")
        self._counting[sandbox_id] = Counting(
            seq=known.seq,
            incarnation=machine,
            began_mono_s=self._clock.monotonic_s(),
            base_cpu_us=(self._read_cpu_us(pid) or 0) if pid else 0,
            base_outbound=self._outbound_bytes(sandbox_id),
            pid=pid,
        )
        return self._take(sandbox_id, "ready")

    def begin_paused(self, sandbox_id: SandboxId, owned_bytes: int) -> Sample:
        """Count storage of a sandbox that is paused, until its next `begin` or `end`."""
        known = self._counting.get(sandbox_id, Counting(seq=0))
        self._counting[sandbox_id] = Counting(
            seq=known.seq,
            incarnation=f"paused/{boot_id()}/{known.seq + 1}",
            began_mono_s=self._clock.monotonic_s(),
            owned_mb=owned_bytes // MB,
        )
        return self._take(sandbox_id, "paused")

    def _find_stored(self) -> None:
        """What was stored while no service lived could not be woken: it is noted as found, so that it is credited."""
        for sandbox_id, known in list(self._counting.items()):
            if known.owned_mb is None:
                continue
            if known.incarnation.startswith(f"paused/{boot_id()}/"):
                self._take(sandbox_id, "found")
            else:  # the host was started again, and its monotonic clock with it: how long it was off is not known
                self.begin_paused(sandbox_id, known.owned_mb * MB)

    def tick(self) -> list[Sample]:
        """A sample of everything that counts."""
        return [self._take(name, "tick") for name, counting in self._counting.items() if counting.incarnation]

    def end(self, sandbox_id: SandboxId, kind: SampleKind = "stopped") -> Sample | None:
        """The last sample of a machine; None where nothing counted. Idempotent. Take it before the process is ended."""
        known = self._counting.get(sandbox_id)
        if known is None or not known.incarnation:
            return None
        sample = self._take(sandbox_id, kind)
        self._counting[sandbox_id] = Counting(seq=sample.seq)
        return sample

    def forget(self, sandbox_id: SandboxId) -> None:
        """It will never count again. Idempotent."""
        self._counting.pop(sandbox_id, None)

    def write(self) -> None:
        """Put every sample that was taken on the disk, so that it may be collected. Blocks; one call at a time.

        Raises:
            OSError: nothing is lost: the next call writes them again, numbered alike.
        """
        samples, counting = list(self._unwritten), dict(self._counting)
        self.log.append(samples)
        # After the samples: what is lost between the two is found in them again.
        self._save(counting)
        del self._unwritten[: len(samples)]

    def _take(self, sandbox_id: SandboxId, kind: SampleKind) -> Sample:
        counting = self._read(self._counting[sandbox_id])
        if not counting.gone and counting.owned_mb is None:
            out = max(counting.counters.outbound_bytes, self._outbound_bytes(sandbox_id) - counting.base_outbound)
            counting = replace(counting, counters=replace(counting.counters, outbound_bytes=out))
        self._counting[sandbox_id] = counting
        sample = Sample(
            sandbox_id=sandbox_id,
            seq=counting.seq,
            incarnation=counting.incarnation,
            kind=kind,
            at_ms=int(self._clock.now_s() * 1000),
            counters=counting.counters,
        ).sealed()
        self._unwritten.append(sample)
        return sample

    def _read(self, counting: Counting) -> Counting:
        counting = replace(counting, seq=counting.seq + 1)
        passed_ms = max(0, int((self._clock.monotonic_s() - counting.began_mono_s) * 1000))
        if counting.gone:
            return counting
        if counting.owned_mb is not None:
            return replace(counting, counters=Used(paused_mb_ms=counting.owned_mb * passed_ms))
        if counting.pid is None:
            return replace(counting, counters=replace(counting.counters, running_ms=passed_ms))
        if (used := self._read_cpu_us(counting.pid)) is None:
            return replace(counting, gone=True)
        cpu = max(counting.counters.cpu_us, used - counting.base_cpu_us)
        return replace(counting, counters=replace(counting.counters, cpu_us=cpu, running_ms=passed_ms))

    def _save(self, counting: Mapping[SandboxId, Counting]) -> None:
        temporary = self._state_path.with_suffix(".new")
        with temporary.open("w") as file:
            json.dump({name: asdict(c) for name, c in counting.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._state_path)

    def _load(self) -> dict[SandboxId, Counting]:
        counting: dict[SandboxId, Counting] = {}
        if self._state_path.exists():
            raw: dict[str, dict[str, Any]] = json.loads(self._state_path.read_text())
            for name, values in raw.items():
                known = Counting(**{**values, "counters": Used(**values["counters"])})
                if known.owned_mb is None:
                    # Until `begin` finds the same machine again: its pid may be anybody's by now.
                    known = replace(known, pid=None, gone=True)
                counting[SandboxId(name)] = known
        for path in self.log.closed():
            for sample in self.log.read(path).samples:
                known = counting.get(sample.sandbox_id, Counting(seq=0))
                if sample.seq > known.seq:
                    counting[sample.sandbox_id] = replace(known, seq=sample.seq)
        return counting


def _one_us(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name may hold spaces and brackets; what follows the last bracket is field 3 and on.
    fields = text[text.rindex(")") + 2 :].split()
    ticks = sum(int(fields[place]) for place in (11, 12, 13, 14))  # utime, stime and those of ended children
    return ticks * 1_000_000 // _TICKS_PER_S


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
    return found
