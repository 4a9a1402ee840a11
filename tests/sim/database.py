"""A database that answers without threads: the same run takes the same awaits every time, and a hundred times as many.

Each statement is run at once and answered at the loop's next turn, in order, as the thread of a connection would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiosqlite.core
import pytest


class _AtOnce:
    """In place of the queue of a connection's thread."""

    def put_nowait(self, asked: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = asked
        try:
            result = function()
        except Exception as failure:  # noqa: BLE001 - told to whoever waits, as the thread does
            if future is not None:
                asyncio.get_running_loop().call_soon(aiosqlite.core.set_exception, future, failure)
            return
        if future is not None:
            asyncio.get_running_loop().call_soon(aiosqlite.core.set_result, future, result)


class _NoThread:
    """In place of that thread."""

    daemon = True

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None: ...


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(aiosqlite.core, "SimpleQueue", _AtOnce)
    monkeypatch.setattr(aiosqlite.core, "Thread", _NoThread)
    yield
