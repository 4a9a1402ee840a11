"""A loop in which waiting costs nothing: time goes on when nobody has anything to do, and threads are none.

The same run takes the same steps every time.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Answers at once, and says how long it would have waited."""

    waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nobody will ever have anything to do"
            self.waited_s += max(timeout, 0.0)
        return found


class Hurried(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passed = _Selector()
        super().__init__(self._passed)

    def time(self) -> float:
        return 1000.0 + self._passed.waited_s


def hurry(work: Coroutine[Any, Any, T]) -> T:
    """Run in a loop of its own; what still runs at the end is cancelled."""
    with asyncio.Runner(loop_factory=Hurried) as runner:
        return runner.run(work)


async def moment() -> None:
    """One turn of the loop, in which something may happen to whoever waits."""
    await asyncio.sleep(0)


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def to_thread(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        await moment()
        answer = function(*args, **named)
        await moment()
        return answer

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill takes no file from the host
