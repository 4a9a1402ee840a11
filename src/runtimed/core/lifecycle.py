"""The sandbox lifecycle: every state, every fact that moves it, nothing else.

Rule 1: a transition that is not in this table does not exist.
Rule 2: this file does not know who is asking (user, timeout, node, bill).

    STARTING --ready--> RUNNING --stop_asked--> STOPPING --exited--> STOPPED --restart_asked--> RESUMING
                          |  ^
               pause_asked|  |pause_failed              Any state ends in STOPPED when its machine, or what
                          v  |                          was kept of it, is gone (`exited`).
                       PAUSING --paused--> PAUSED --wake_asked--> RESUMING --ready--> RUNNING

A pause is answered when the vCPUs have stopped, and its memory is written afterwards: so PAUSED can still turn into
RUNNING (`pause_failed`, the machine goes on) or STOPPED (`exited`, its disk may be kept). Only a restart leaves
STOPPED, and only where the disk was kept; RESUMING that fails is what it was before.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Fact(StrEnum):
    READY = "ready"
    """The machine answers and has its identity."""
    PAUSE_ASKED = "pause_asked"
    PAUSED = "paused"
    PAUSE_FAILED = "pause_failed"
    """Its memory could not be written; the machine goes on."""
    WAKE_ASKED = "wake_asked"
    WAKE_FAILED = "wake_failed"
    """What was kept is as it was."""
    RESTART_ASKED = "restart_asked"
    STOP_ASKED = "stop_asked"
    EXITED = "exited"
    """The machine's process is gone, for whatever reason."""


class StopReason(StrEnum):
    """Why a sandbox is paused or stopped; part of the API."""

    REQUESTED = "requested"
    LEASE_EXPIRED = "lease_expired"
    IDLE = "idle"
    PAUSED_EXPIRED = "paused_expired"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    LIFETIME_CAP = "lifetime_cap"
    SPENDING_LIMIT = "spending_limit"
    AUTHORITY_REVOKED = "authority_revoked"
    STARTUP_FAILED = "startup_failed"
    PAUSE_FAILED = "pause_failed"
    HOST_STOPPED = "host_stopped"
    HOST_LOST = "host_lost"


class IllegalTransition(Exception):
    """A fact that the table does not know in this state: a defect of ours, never a user's."""

    def __init__(self, state: State, fact: Fact) -> None:
        super().__init__(f"{fact} cannot happen to a sandbox that is {state}")
        self.state, self.fact = state, fact


TRANSITIONS: dict[tuple[State, Fact], State] = {
    (State.STARTING, Fact.READY): State.RUNNING,
    (State.STARTING, Fact.STOP_ASKED): State.STOPPING,
    (State.STARTING, Fact.EXITED): State.STOPPED,
    (State.RUNNING, Fact.PAUSE_ASKED): State.PAUSING,
    (State.RUNNING, Fact.STOP_ASKED): State.STOPPING,
    (State.RUNNING, Fact.EXITED): State.STOPPED,
    (State.PAUSING, Fact.PAUSED): State.PAUSED,
    (State.PAUSING, Fact.PAUSE_FAILED): State.RUNNING,
    (State.PAUSING, Fact.STOP_ASKED): State.STOPPING,
    (State.PAUSING, Fact.EXITED): State.STOPPED,
    (State.PAUSED, Fact.WAKE_ASKED): State.RESUMING,
    (State.PAUSED, Fact.STOP_ASKED): State.STOPPING,
    (State.PAUSED, Fact.PAUSE_FAILED): State.RUNNING,
    (State.PAUSED, Fact.EXITED): State.STOPPED,
    (State.RESUMING, Fact.READY): State.RUNNING,
    (State.RESUMING, Fact.STOP_ASKED): State.STOPPING,
    (State.RESUMING, Fact.WAKE_FAILED): State.PAUSED,
    (State.RESUMING, Fact.EXITED): State.STOPPED,
    (State.STOPPING, Fact.STOP_ASKED): State.STOPPING,  # asking twice is harmless
    (State.STOPPING, Fact.READY): State.STOPPING,  # it became ready while it was being stopped
    (State.STOPPING, Fact.EXITED): State.STOPPED,
    (State.STOPPED, Fact.STOP_ASKED): State.STOPPED,
    (State.STOPPED, Fact.EXITED): State.STOPPED,
    (State.STOPPED, Fact.RESTART_ASKED): State.RESUMING,
}

LIVE = frozenset({State.STARTING, State.RUNNING, State.PAUSING, State.RESUMING, State.STOPPING})
"""States in which a machine may hold memory of the host."""


def advance(state: State, fact: Fact) -> State:
    """The state after `fact`. Raises IllegalTransition when the table has none."""
    try:
        return TRANSITIONS[state, fact]
    except KeyError:
        raise IllegalTransition(state, fact) from None
