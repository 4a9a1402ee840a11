"""What a sandbox used, as integers: what a host sampled, what is counted of it once, and sums of that.

Sums add up without any rounding, so that an interval may be split or joined anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, Self

from runtimed.core.ids import AccountId, KeyId, SandboxId

SampleKind = Literal["ready", "found", "tick", "paused", "stopped"]
"""Why a sample was taken: the machine became ready, was found running by a service that was not there before, time
went by, its vCPUs stopped (for now, or for good). What came before `found` is credited: nobody could reach it."""

MB = 1_000_000
"""Storage is counted in whole decimal megabytes, rounded down in the customer's favour."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """An amount of use. `+` joins two."""

    cpu_us: int = 0
    """Microseconds of CPU of the machine's process on the host, from ready to the stop of the vCPUs."""
    running_ms: int = 0
    """Milliseconds between ready and the stop of the vCPUs, on a clock that never jumps."""
    paused_mb_ms: int = 0
    """Decimal megabytes that the paused sandbox alone owned, times milliseconds."""
    outbound_bytes: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def since(self, earlier: Used) -> Used:
        """What came after `earlier` of a counter that only grows."""
        return Used(**{f.name: max(0, getattr(self, f.name) - getattr(earlier, f.name)) for f in fields(self)})

    @property
    def nothing(self) -> bool:
        return not any(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Counters of one machine, read on its host. They grow from the machine's start; a new machine starts at 0."""

    sandbox_id: SandboxId
    seq: int
    """1, 2, 3, ... for each sandbox, across all of its machines."""
    incarnation: str
    """Names the machine: another one counts from 0 again."""
    kind: SampleKind
    at_ms: int
    """Wall clock of the host, for people. No duration is ever taken from it."""
    counters: Used
    hash: str = ""
    """SHA-256 of everything else: a line that was damaged on disk is known, and the same sample is known again."""

    def sealed(self) -> Self:
        return replace(self, hash=self.digest())

    def digest(self) -> str:
        values = asdict(self)
        del values["hash"]
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def intact(self) -> bool:
        return self.hash == self.digest()


@dataclass(frozen=True, kw_only=True)
class UsageRecord:
    """What one sample adds to a sandbox's use. Exactly one for each sample that counts."""

    sandbox_id: SandboxId
    seq: int
    """The sample's: a record with the same number is the same record."""
    at_ms: int
    sample_hash: str
    used: Used
    credited: bool = False
    """The host could not be reached then: shown, and given back."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What some samples added, and where the count stands after them."""

    document: Mapping[str, object]
    records: tuple[UsageRecord, ...]


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Samples that a host hands over together, until it is told that they were kept."""

    name: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True)
class UsageRun:
    """Samples of one sandbox that were counted together, and what they cost."""

    sandbox_id: SandboxId
    first_seq: int
    last_seq: int
    """No two runs of a sandbox share a sample."""
    account_id: AccountId
    key_id: KeyId
    at_s: float
    """Wall clock of the last sample."""
    used: Used
    mib_ms: int
    """Memory that was reserved, times how long."""
    credited: bool
    micros: int
    sample_hashes: tuple[str, ...]
    """One for each sample: the proof that none was counted twice."""
