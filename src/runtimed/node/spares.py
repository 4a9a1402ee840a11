"""Keeps a few machines restored and waiting, so that the creates they fit cost no restore.

A spare is handed out once, alive and of the current template, or not at all. Refilling waits until no start is under
way, so that it never slows the creates it exists for; under pressure of memory spares are ended, and come back later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from runtimed.core.errors import RuntimedError
from runtimed.core.specs import Shape
from runtimed.core.tasks import spawn
from runtimed.node.parts import Ready

_log = logging.getLogger(__name__)

QUIET_S = 0.3
"""How long no start may have been under way before a spare is made."""
RETRY_S = 5.0
"""After a spare could not be made; each time twice as long, up to RETRY_MAX_S."""
RETRY_MAX_S = 300.0
LOOK_S = 2.0
"""How often spares are looked at: whether they live, are current, and whether the host wants their memory back."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What spares of one kind fit: creates of this image, as an operator named it, in this shape."""

    image: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class SpareSupply:
    """How spares are made and thrown away; the node knows."""

    make: Callable[[Kind], Awaitable[Ready]]
    drop: Callable[[Ready], Coroutine[Any, Any, None]]
    idle: Callable[[], bool]
    """Whether no start is under way and the host has memory to give."""
    pressed: Callable[[], bool]
    """Whether the host wants memory back."""
    current: Callable[[Kind], Awaitable[str | None]]
    """Key of the kind's template as it is now; None where that cannot be said."""


class Spares:
    """The pool of a host: so many of each kind, the most wanted first."""

    def __init__(self, wanted: Mapping[Kind, int], supply: SpareSupply) -> None:
        self._wanted = {kind: count for kind, count in wanted.items() if count > 0}
        self._supply = supply
        self._waiting: dict[Kind, deque[Ready]] = {kind: deque() for kind in self._wanted}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to fill the pool in the background. Idempotent."""
        if not self._tasks and self._wanted:
            self._tasks = [spawn(self._refill(), name="spares"), spawn(self._look_after(), name="look after spares")]

    async def stop(self) -> None:
        """Stop filling and end every spare. Idempotent."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._tasks = []
        while await self.give_back():
            pass

    def take(self, template_key: str) -> Ready | None:
        """A spare of this template whose channel is open; whoever takes it owns it from then on."""
        for waiting in self._waiting.values():
            for ready in list(waiting):
                if ready.template.key != template_key:
                    continue
                waiting.remove(ready)
                self._changed.set()
                if not ready.channel.closed.done():
                    return ready
                spawn(self._supply.drop(ready), name="drop a spare")
        return None

    async def give_back(self) -> bool:
        """End one spare, of the kind that is wanted least; False where there is none. Its memory is free then."""
        for waiting in reversed(self._waiting.values()):
            if waiting:
                await asyncio.shield(self._supply.drop(waiting.pop()))
                self._changed.set()
                return True
        return False

    def count(self, kind: Kind | None = None) -> int:
        """How many wait, of one kind or in all."""
        return sum(len(waiting) for of, waiting in self._waiting.items() if kind in (None, of))

    async def _refill(self) -> None:
        delay_s: dict[Kind, float] = {}
        again_at_s: dict[Kind, float] = {}
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            missing = [kind for kind, count in self._wanted.items() if len(self._waiting[kind]) < count]
            kind = next((kind for kind in missing if again_at_s.get(kind, 0.0) <= clock()), None)
            if kind is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min((again_at_s[kind] for kind in missing), default=None)):
                        await self._changed.wait()
                continue
            await self._quiet()
            try:
                self._waiting[kind].append(await self._supply.make(kind))
                delay_s.pop(kind, None)
            except (RuntimedError, OSError, TimeoutError) as failure:
                _log.warning("a spare of image %s, %s could not be made: %s", kind.image, kind.shape, failure)
                delay_s[kind] = min(2 * delay_s.get(kind, RETRY_S / 2), RETRY_MAX_S)
                again_at_s[kind] = clock() + delay_s[kind]

    async def _quiet(self) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            if self._supply.idle():
                return

    async def _look_after(self) -> None:
        """End spares that died, that are of an old template, and those whose memory the host wants back."""
        while True:
            await asyncio.sleep(LOOK_S)
            for kind, waiting in self._waiting.items():
                if not waiting:
                    continue
                key = await self._supply.current(kind)
                for ready in [r for r in waiting if r.channel.closed.done() or key not in (None, r.template.key)]:
                    waiting.remove(ready)
                    self._changed.set()
                    await asyncio.shield(self._supply.drop(ready))
            while self._supply.pressed() and await self.give_back():
                _log.info("a spare was ended: the host is short of memory")
