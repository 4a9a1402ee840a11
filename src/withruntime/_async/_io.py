"""Does what differs between asyncio and threads: waiting, locking, connections, work in the background."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

HttpClient = httpx.AsyncClient
Lock = asyncio.Lock
sleep = asyncio.sleep
INTERRUPTS: tuple[type[BaseException], ...] = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)
"""What ends a wait from outside."""


def home() -> object:
    """What an HTTP client may not be carried away from: here, the running event loop."""
    return asyncio.get_running_loop()


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run blocking work aside. It is given an event that is set when nobody waits for it any more."""
    give_up = threading.Event()
    try:
        return await asyncio.to_thread(work, give_up)
    finally:
        give_up.set()


async def disk(work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - as given to the work
    """Run work on local files, which may block for as long as a disk does."""
    return await asyncio.to_thread(work, *args)


async def finish(work: Callable[[], Awaitable[object]], *, within_s: float) -> None:
    """Do the last work of something, cancelled or not, for at most so many seconds.

    A cancel that comes meanwhile is raised when the work is done.
    """
    task = asyncio.ensure_future(_bounded(work, within_s))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                break
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()


async def _bounded(work: Callable[[], Awaitable[object]], within_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await work()


@contextlib.asynccontextmanager
async def cut_after(response: httpx.Response, seconds: float | None) -> AsyncIterator[None]:
    """Break off the reading of an answer at a moment, however much the other side still drips."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise httpx.ReadTimeout("its time is over", request=response.request) from None


async def chunks_of(response: httpx.Response, left_s: Callable[[], float | None]) -> AsyncIterator[bytes]:
    """Yield a body as it comes; no chunk is waited for longer than is left."""
    chunks = aiter(response.aiter_raw())
    while True:
        # The time runs only while we read: a timeout around the yield would cancel the reader's own work.
        try:
            async with asyncio.timeout(left_s()):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise httpx.ReadTimeout("its time is over", request=response.request) from None
        yield chunk


@contextlib.asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an iterator that is left half way here and now, and with it the connection under it.

    Left to the garbage collector, nested ones are closed in any order when the event loop ends, and complain.
    """
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_once: int) -> None:
    """Do the work for every item, some at once; the first failure ends the rest."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def repeat(round_: Callable[[], Awaitable[bool]], *, every_s: float) -> Callable[[], None]:
    """Do a round now and then until it answers False. Returns what stops it."""

    async def rounds() -> None:
        while await round_():  # noqa: ASYNC110 - there is no event: time passes
            await asyncio.sleep(every_s)

    task = asyncio.ensure_future(rounds())

    def stop() -> None:
        task.cancel()

    return stop


async def told(answer: object) -> None:
    """Wait for what a caller's callback returned, if it is something to wait for."""
    if isinstance(answer, Awaitable):
        await answer
