"""Decides whether a call that failed is sent again, and after how long; it neither sends nor sleeps."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from withruntime._errors import RETRIED_STATUSES, SWITCHED_OFF, ConnectionError, RuntimeError

NOTHING_RAN = frozenset({"guest_busy", "busy", "rate_limited"})
"""With 429 or 503 these say that the call had no effect at all: waiting longer is safe."""
WAITS_FOR_ROOM = frozenset(
    {
        "no_capacity",
        "quota_exceeded",
        "account_share_full",
        "volume_releasing",
        "no_credit_running_limit",
        "no_credit_total_limit",
        "no_credit_domain_limit",
        "no_credit_capacity_full",
    }
)
NOTHING_RAN_MAX_S = 300.0
NAMED_WAIT_MAX_S = 60.0
"""A longer wait than this is the caller's decision, not ours."""
PAUSE_MAX_S = 30.0
_BACKOFF_MAX_S = 8.0

Clock = Callable[[], float]
"""Seconds on a clock that never jumps."""
Broken = Literal["not_connected", "broken", "timeout"]


class TransportFailure(Exception):
    """No answer came. `kind` says how far the call got; it never leaves this package."""

    def __init__(self, kind: Broken, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def as_error(self, key: str | None) -> ConnectionError:
        hint = "Is the service running there, and is RUNTIME_API_URL right?" if self.kind == "not_connected" else None
        return ConnectionError(str(self), code="connection_error", idempotency_key=key, hint=hint)


OnCapacityWait = Callable[[RuntimeError, float], None]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How patient a client is."""

    max_retries: int = 4
    timeout_s: float = 300.0
    """Silence allowed on a connection."""
    room_wait_s: float = 120.0
    """How long a create, wake or restart waits while the service has no room."""
    on_capacity_wait: OnCapacityWait | None = None
    clock: Clock = time.monotonic
    rng: random.Random = field(default_factory=random.Random)


@dataclass(kw_only=True)
class Attempts:
    """What became of one logical call so far."""

    policy: RetryPolicy
    deadline: float | None = None
    """The moment on the policy's clock after which nothing is sent any more; retries do not move it."""
    may_retry: bool = True
    room_wait_s: float = 0.0
    _retries: int = 0
    _unconnected: int = 0
    _refusals: int = 0
    _room_refusals: int = 0
    _waiting_since: float | None = None

    def pause_after(self, error: RuntimeError | TransportFailure) -> float | None:
        """Seconds to wait before the call is sent again, or None when it has failed for good."""
        if not self.may_retry:
            return None
        pause = self._pause_unconnected(error) if isinstance(error, TransportFailure) else self._pause_refused(error)
        if pause is not None and self.deadline is not None and self.policy.clock() + pause >= self.deadline:
            return None
        return pause

    def _pause_unconnected(self, failure: TransportFailure) -> float | None:
        if failure.kind == "not_connected" and self._unconnected == 0:
            self._unconnected += 1
            return self.policy.rng.uniform(0, 0.05)
        return self._backoff()

    def _pause_refused(self, error: RuntimeError) -> float | None:
        if error.sent_retryable is False:
            return None
        named_s = None if error.retry_after_ms is None else error.retry_after_ms / 1000
        if error.code in NOTHING_RAN and error.status in (429, 503):
            return self._pause_nothing_ran(named_s)
        if self.room_wait_s > 0 and error.code in WAITS_FOR_ROOM and (error.details or {}).get("field") != "count":
            return self._pause_for_room(error, named_s)
        retried = error.status in RETRIED_STATUSES and error.code not in SWITCHED_OFF
        if not (retried or error.sent_retryable) or _too_long(named_s):
            return None
        return self._backoff() if named_s is None else self._counted(min(named_s, PAUSE_MAX_S))

    def _pause_nothing_ran(self, named_s: float | None) -> float | None:
        if _too_long(named_s):
            return None
        first_s = 0.25 if named_s is None else named_s
        pause = min(PAUSE_MAX_S, first_s * 2 ** min(self._refusals, 3)) * self.policy.rng.uniform(0.9, 1.1)
        self._refusals += 1
        return pause if self._waited_s() + pause <= NOTHING_RAN_MAX_S else None

    def _pause_for_room(self, error: RuntimeError, named_s: float | None) -> float | None:
        if named_s is None:
            named_s = min(_BACKOFF_MAX_S, 0.5 * 2 ** min(self._room_refusals, 4)) * self.policy.rng.uniform(0.75, 1.25)
        self._room_refusals += 1
        if self._waited_s() + named_s > self.room_wait_s:
            return None
        if self.policy.on_capacity_wait is not None:
            self.policy.on_capacity_wait(error, named_s)
        return named_s

    def _backoff(self) -> float | None:
        return self._counted(min(_BACKOFF_MAX_S, 0.25 * 2**self._retries) * self.policy.rng.uniform(0.5, 1.5))

    def _counted(self, pause: float) -> float | None:
        if self._retries >= self.policy.max_retries:
            return None
        self._retries += 1
        return pause

    def _waited_s(self) -> float:
        now = self.policy.clock()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since


def _too_long(named_s: float | None) -> bool:
    return named_s is not None and named_s > NAMED_WAIT_MAX_S
