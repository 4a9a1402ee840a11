"""Decides which host a new sandbox goes to, and says of every other host why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtimed.core.specs import Capacity, Shape
from runtimed.core.wording import are, counted


@dataclass(frozen=True, kw_only=True)
class HostView:
    """A host as it says it is, and what was promised on it that it does not count yet."""

    name: str
    capacity: Capacity
    promised: Sequence[Shape] = ()
    floors_millis: int = 0
    """Thousandths of a core that are guaranteed there already."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    host: str | None
    rejected: Mapping[str, str]
    """Why each host was passed over; shown to operators as is."""
    never: Mapping[str, str]
    """Fields that no host could ever satisfy, with the reason; asking again does not help."""


def place(ask: Shape, hosts: Sequence[HostView], *, floor_millis: int = 0) -> Placement:
    """The host with the most memory left that has room, also for `floor_millis` of guaranteed CPU."""
    rejected: dict[str, str] = {}
    fitting: list[tuple[int, str]] = []
    for host in hosts:
        free_mib, reason = _room(ask, host, floor_millis)
        if reason is None:
            fitting.append((free_mib, host.name))
        else:
            rejected[host.name] = reason
    return Placement(
        host=max(fitting)[1] if fitting else None, rejected=rejected, never=_never(ask, hosts, floor_millis)
    )


def _room(ask: Shape, host: HostView, floor_millis: int) -> tuple[int, str | None]:
    has = host.capacity
    free_mib = has.memory_total_mib - has.memory_used_mib - sum(s.memory_mib for s in host.promised)
    free_vcpu = has.vcpu_total - has.vcpu_used - sum(s.vcpu for s in host.promised)
    if has.machines + len(host.promised) >= has.machines_max:
        return free_mib, f"{counted(has.machines_max, 'sandbox')} {are(has.machines_max)} as many as it may hold"
    if free_mib < ask.memory_mib:
        return free_mib, f"{max(0, free_mib)} MiB of memory free, {ask.memory_mib} asked"
    if free_vcpu < ask.vcpu:
        return free_mib, f"{max(0, free_vcpu)} vCPUs free, {ask.vcpu} asked"
    free_millis = has.cores * 1000 - host.floors_millis
    if floor_millis > max(0, free_millis):
        return free_mib, f"{max(0, free_millis)} thousandths of a core can still be guaranteed, {floor_millis} asked"
    return free_mib, None


def _never(ask: Shape, hosts: Sequence[HostView], floor_millis: int) -> dict[str, str]:
    memory_mib = max((h.capacity.memory_total_mib for h in hosts), default=0)
    vcpu = max((h.capacity.vcpu_total for h in hosts), default=0)
    found: dict[str, str] = {}
    if ask.memory_mib > memory_mib:
        found["memoryMiB"] = f"{ask.memory_mib} is more than the {memory_mib} MiB that this service can give"
    if ask.vcpu > vcpu:
        found["vcpu"] = f"{ask.vcpu} is more than the {vcpu} vCPUs that this service can give"
    cores = max((h.capacity.cores for h in hosts), default=0)
    if floor_millis > cores * 1000:
        found["cpuFloorMillis"] = f"{floor_millis} is more than the {cores} cores of a host can guarantee"
    return found
