"""Where time comes from: the one place that reads a clock, so that tests can turn it by hand."""

from __future__ import annotations

import asyncio
import time as _time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for every duration and deadline."""

    def now_s(self) -> float:
        """Seconds since 1970, UTC. May jump."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this long on the monotonic clock."""


class SystemClock:
    """The host's own clocks."""

    def now_s(self) -> float:
        return _time.time()  # noqa: TID251 - the clock itself

    def monotonic_s(self) -> float:
        return _time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until a test turns it; sleepers wake in order."""

    def __init__(self, start_s: float = 1_800_000_000.0) -> None:
        self._now_s = start_s
        self._mono_s = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._mono_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._mono_s + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Turn both clocks, waking whoever is due, and let them run once."""
        self._now_s += seconds
        self._mono_s += seconds
        due = sorted((s for s in self._sleepers if s[0] <= self._mono_s), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._mono_s]
        for _, future in due:
            if not future.done():
                future.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


def iso(seconds: float | None) -> str | None:
    """ISO-8601 UTC with milliseconds and a Z, as the wire protocol wants it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
