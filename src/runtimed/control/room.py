"""Decides whether the host has room for machines that are about to start, before anything of them is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from runtimed.core.errors import InvalidRequest, NoCapacity
from runtimed.core.lifecycle import State
from runtimed.core.ports import Node
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Shape
from runtimed.scheduler.placement import HostView, place

NO_ROOM_RETRY_MS = 1000
"""Room comes when somebody's sandbox ends, which nobody can foretell; the clients' own backoff goes on from here."""


class Recorded(Protocol):
    record: SandboxRecord


def admit(node: Node, sandboxes: Iterable[Recorded], shapes: Sequence[Shape]) -> None:
    """Raises NoCapacity when the host has no room now, InvalidRequest naming the field when it never could.

    A sandbox that is paused or stopped takes no room, and its wake asks for it like a create does.
    """
    running = node.running()
    promised = [
        one.record.shape
        for one in sandboxes
        if one.record.id not in running and one.record.state in (State.STARTING, State.RESUMING)
    ]
    for number, shape in enumerate(shapes):
        host = HostView(name="local", capacity=node.capacity(), promised=[*promised, *shapes[:number]])
        placement = place(shape, [host])
        if placement.never:
            raise InvalidRequest([{"field": name, "message": why} for name, why in placement.never.items()])
        if placement.host is None:
            raise NoCapacity(
                "; ".join(f"host {name}: {why}" for name, why in placement.rejected.items()),
                hint="end a sandbox that is no longer needed, ask for a smaller one, or ask again",
                retry_after_ms=NO_ROOM_RETRY_MS,
            )
