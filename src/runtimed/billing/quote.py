"""Says what a lease can cost at most, so that exactly this much is held before anything starts."""

from __future__ import annotations

from runtimed.billing.rating import Terms, rate
from runtimed.core.money import Micros
from runtimed.core.usage import Used


def busiest(terms: Terms, lease_ms: int) -> Used:
    """The most that can be used in this time: every vCPU busy from the first moment to the last."""
    return Used(cpu_us=terms.vcpu * lease_ms * 1000, running_ms=lease_ms)


def worst_case(terms: Terms, lease_ms: int, *, so_far: Used | None = None) -> Micros:
    """The most that `lease_ms` more of running can cost after what was used so far."""
    before = so_far or Used()
    return Micros(rate(before + busiest(terms, lease_ms), terms).total - rate(before, terms).total)
