"""Keeps a few machines restored and waiting, so that the default create costs no restore.

A spare is handed out once, alive and of the current template, or not at all. Refilling waits until no start is under
way, so that it never slows the creates it exists for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from runtimed.core.errors import RuntimedError
from runtimed.core.tasks import spawn
from runtimed.node.parts import Ready

_log = logging.getLogger(__name__)

QUIET_S = 0.3
"""How long no start may have been under way before a spare is made."""
RETRY_S = 5.0
"""After a spare could not be made."""


@dataclass(frozen=True, kw_only=True)
class SpareSupply:
    """How spares are made and thrown away; the node knows."""

    make: Callable[[], Awaitable[Ready]]
    drop: Callable[[Ready], Coroutine[Any, Any, None]]
    idle: Callable[[], bool]
    """Whether no start is under way and the host has memory to give."""


class Spares:
    """The pool of one shape and image."""

    def __init__(self, wanted: int, supply: SpareSupply) -> None:
        self._wanted = wanted
        self._supply = supply
        self._waiting: deque[Ready] = deque()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fill the pool in the background. Idempotent."""
        if self._task is None and self._wanted > 0:
            self._task = spawn(self._refill(), name="spares")

    async def stop(self) -> None:
        """Stop filling and end every spare. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        while self._waiting:
            await self._supply.drop(self._waiting.popleft())

    def take(self, template_key: str) -> Ready | None:
        """A spare of this template whose channel is open; whoever takes it owns it from then on."""
        while self._waiting:
            ready = self._waiting.popleft()
            self._changed.set()
            if ready.template.key == template_key and not ready.channel.closed.done():
                return ready
            spawn(self._supply.drop(ready), name="drop a spare")
        return None

    @property
    def count(self) -> int:
        return len(self._waiting)

    async def _refill(self) -> None:
        while True:
            if len(self._waiting) >= self._wanted:
                self._changed.clear()
                await self._changed.wait()
            await self._quiet()
            try:
                self._waiting.append(await self._supply.make())
            except (RuntimedError, OSError, TimeoutError) as failure:
                _log.warning("a spare could not be made: %s", failure)
                await asyncio.sleep(RETRY_S)

    async def _quiet(self) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            if self._supply.idle():
                return
