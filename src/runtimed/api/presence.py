"""Knows whether anybody still waits for a piece of work, so that a command nobody will hear of can be ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

RETURNS_WITHIN_S = 30.0
"""A client whose connection broke repeats its request, with the same key, long before this."""


class Presence:
    """Clients that wait, by the work they wait for."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._left: dict[str, asyncio.Event] = {}

    @contextmanager
    def here(self, work: str) -> Iterator[None]:
        """One client waits for as long as this is open."""
        self._waiting[work] += 1
        try:
            yield
        finally:
            self._waiting[work] -= 1
            if not self._waiting[work]:
                del self._waiting[work]
                if (left := self._left.get(work)) is not None:
                    left.set()

    async def abandoned(self, work: str, *, returns_within_s: float = RETURNS_WITHIN_S) -> None:
        """Return once nobody has waited for this work for so long. One task asks for one piece of work."""
        left = self._left.setdefault(work, asyncio.Event())
        try:
            while True:
                left.clear()
                if work in self._waiting:
                    await left.wait()
                if not await self._came_back(work, returns_within_s):
                    return
        finally:
            self._left.pop(work, None)

    async def _came_back(self, work: str, within_s: float) -> bool:
        # Whoever comes back shows in the count only, and half a second more or less does not matter here.
        for _ in range(max(1, round(within_s / 0.5))):
            await asyncio.sleep(min(0.5, within_s))
            if work in self._waiting:
                return True
        return False


async def until_gone(request: Request) -> None:
    """Return when the client has hung up. Its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
