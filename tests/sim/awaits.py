"""Drives what an operation does from await to await, through every task that it starts, and acts at one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

Act = Callable[[], BaseException | None]
"""What happens at an await that does not go on at once; what it answers is raised there."""


class Driven:
    """One operation. Every time that one of its tasks waits for anything counts as a step, the first being 0."""

    def __init__(self, at: int | None, act: Act, *, asked_only: bool = False) -> None:
        self.steps = 0
        self.places: list[tuple[object, ...]] = []
        """For each step: which task, and the lines of ours that wait."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.asked: asyncio.Task[Any] | None = None
        """Of whoever asked; all others are the service's own."""
        self._at, self._act, self._asked_only = at, act, asked_only

    @property
    def hit(self) -> bool:
        """Whether the step was reached."""
        return self._at is not None and self.steps > self._at

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the operation answers. Its own tasks may go on after that, and are driven on."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_make_task)
        token = _driven.set(self)
        try:
            asked: asyncio.Task[T] = loop.create_task(work)
        finally:
            _driven.reset(token)
        self.asked = asked
        return await asked

    def step(self, work: object) -> BaseException | None:
        task = asyncio.current_task()
        if self._asked_only and task is not self.asked:
            return None
        self.places.append((task, *_lines(work)))
        number, self.steps = self.steps, self.steps + 1
        return self._act() if self._at is None or number == self._at else None

    def awaits(self, *, ends: bool) -> list[int]:
        """The first step of each await, before anything of it has happened; and the last, when all of it has."""
        found = []
        for number, place in enumerate(self.places):
            before, after = self.places[number - 1 : number], self.places[number + 1 : number + 2]
            if before != [place] or (ends and after != [place]):
                found.append(number)
        return found

    async def ended(self) -> None:
        """Return when its last task has ended."""
        while left := {task for task in self.tasks if not task.done()}:
            await asyncio.wait(left)


_driven: ContextVar[Driven | None] = ContextVar("driven", default=None)


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **named: Any
) -> asyncio.Task[T]:
    driven = _driven.get()
    if driven is None:
        return asyncio.Task(work, loop=loop, **named)
    task: asyncio.Task[T] = asyncio.Task(_Stepped(work, driven), loop=loop, **named)  # type: ignore[arg-type]
    driven.tasks.add(task)
    return task


def _lines(work: object) -> list[tuple[str, int]]:
    """Where in our own code a coroutine waits, outermost first."""
    found = []
    while (frame := getattr(work, "cr_frame", None)) is not None:
        if "/runtimed/" in frame.f_code.co_filename:
            found.append((frame.f_code.co_filename, frame.f_lineno))
        work = getattr(work, "cr_await", None)
    return found


class _Stepped(Coroutine[Any, Any, T]):
    """A coroutine whose every wait is told, and may fail instead."""

    def __init__(self, work: Coroutine[Any, Any, T], driven: Driven) -> None:
        self._work, self._driven = work, driven

    def send(self, value: Any) -> Any:
        return self._waits(self._work.send(value))

    def throw(self, *raised: Any) -> Any:
        return self._waits(self._work.throw(*raised))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def __del__(self) -> None:
        self._work.close()  # a task that a kill left before its first step

    def _waits(self, awaited: Any) -> Any:
        error = self._driven.step(self._work)
        if error is None:
            return awaited
        if awaited is not None:
            awaited._asyncio_future_blocking = False  # nobody waits for it any more; whoever makes it goes on
        return self.throw(error)
