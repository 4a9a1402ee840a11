"""Bounds how many calls reach into sandboxes at once, so that the service refuses before it falls over."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from runtimed.core.errors import GuestBusy

RETRY_MS = 500


class CallLimits:
    """Counts calls under way, for each sandbox and in all."""

    def __init__(self, *, per_sandbox: int, total: int) -> None:
        self._per_sandbox = per_sandbox
        self._total = total
        self._running: Counter[str] = Counter()

    def under_way(self, sandbox_id: str) -> int:
        """Calls that reach into it now."""
        return self._running.get(sandbox_id, 0)

    @contextlib.contextmanager
    def call(self, sandbox_id: str) -> Iterator[None]:
        """Raises GuestBusy at once when there are too many; nothing ran then."""
        if self._running[sandbox_id] >= self._per_sandbox:
            raise _busy(f"sandbox {sandbox_id} has {self._per_sandbox} calls under way")
        if self._running.total() >= self._total:
            raise _busy(f"the service has {self._total} calls under way")
        self._running[sandbox_id] += 1
        try:
            yield
        finally:
            self._running[sandbox_id] -= 1
            if not self._running[sandbox_id]:
                del self._running[sandbox_id]


def _busy(message: str) -> GuestBusy:
    return GuestBusy(message, hint="wait for some of them to end", retry_after_ms=RETRY_MS)
