"""Makes the templates of shapes that were booted cold, in the background: one at a time, when no start is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runtimed.core.boot import ImageFiles
from runtimed.core.errors import RuntimedError
from runtimed.core.specs import Shape
from runtimed.core.tasks import spawn

_log = logging.getLogger(__name__)

QUIET_S = 1.0
"""How long no start may have been under way before a template is begun."""


class TemplateQueue:
    """What is still to be made. The next cold boot of a shape wants again what could not be made."""

    def __init__(self, make: Callable[[ImageFiles, Shape], Awaitable[object]], *, idle: Callable[[], bool]) -> None:
        self._make, self._idle = make, idle
        self._wanted: dict[tuple[str, Shape], ImageFiles] = {}
        self._task: asyncio.Task[None] | None = None

    def want(self, image: ImageFiles, shape: Shape) -> None:
        """Make the template of this image and shape when the host has time. Idempotent."""
        self._wanted.setdefault((image.image_id, shape), image)
        if self._task is None or self._task.done():
            self._task = spawn(self._work(), name="templates of new shapes")

    async def stop(self) -> None:
        """Make no more; what was half made is gone. Idempotent."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _work(self) -> None:
        while self._wanted:
            await self._quiet()
            (key, image) = next(iter(self._wanted.items()))
            try:
                await self._make(image, key[1])
            except (RuntimedError, OSError, TimeoutError) as failure:
                _log.warning("no template of image %s, %s: %s", image.name, key[1], failure)
            self._wanted.pop(key, None)

    async def _quiet(self) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            if self._idle():
                return
