"""Decides whether the host has room for machines that are about to start, before anything of them is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from runtimed.core.errors import InvalidRequest, NoCapacity
from runtimed.core.lifecycle import State
from runtimed.core.ports import Node
from runtimed.core.sandbox import SandboxRecord
from runtimed.scheduler.placement import HostView, place

NO_ROOM_RETRY_MS = 1000
"""Room comes when somebody's sandbox ends, which nobody can foretell; the clients' own backoff goes on from here."""


_TAKES_CPU = frozenset({State.STARTING, State.RUNNING, State.PAUSING, State.RESUMING, State.STOPPING})


class Recorded(Protocol):
    record: SandboxRecord


def admit(node: Node, sandboxes: Iterable[Recorded], asking: Sequence[SandboxRecord]) -> None:
    """Raises NoCapacity when the host has no room now, InvalidRequest naming the field when it never could.

    A sandbox that is paused or stopped takes no room, and its wake asks for it like a create does. CPU that is
    guaranteed is promised once: all floors together are never more than the host's cores.
    """
    running, others = node.running(), [one.record for one in sandboxes]
    promised = [
        record.shape
        for record in others
        if record.id not in running and record.state in (State.STARTING, State.RESUMING)
    ]
    new = {record.id for record in asking}
    # A paused one whose memory is still being written goes on without asking again, when it is woken meanwhile.
    takes_cpu = [r for r in others if r.id not in new and (r.state in _TAKES_CPU or r.id in running)]
    floors = sum(record.cpu_floor_millis or 0 for record in takes_cpu)
    for number, record in enumerate(asking):
        before = asking[:number]
        host = HostView(
            name="local",
            capacity=node.capacity(),
            promised=[*promised, *(earlier.shape for earlier in before)],
            floors_millis=floors + sum(earlier.cpu_floor_millis or 0 for earlier in before),
        )
        placement = place(record.shape, [host], floor_millis=record.cpu_floor_millis or 0)
        if placement.never:
            raise InvalidRequest([{"field": name, "message": why} for name, why in placement.never.items()])
        if placement.host is None:
            raise NoCapacity(
                "; ".join(f"host {name}: {why}" for name, why in placement.rejected.items()),
                hint="end a sandbox that is no longer needed, ask for a smaller one, or ask again",
                retry_after_ms=NO_ROOM_RETRY_MS,
            )
