"""Waits for a state, never for a duration: every wait has a bound and a last word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def wait_for(what: str, probe: Callable[[], Awaitable[T | None]], *, within_s: float, every_s: float = 0.05) -> T:
    """Poll until `probe` returns a value.

    Raises:
        TimeoutError: it did not within `within_s` seconds; the message names `what`.
    """
    try:
        async with asyncio.timeout(within_s):
            while (found := await probe()) is None:  # noqa: ASYNC110 - what is polled has no event
                await asyncio.sleep(every_s)
            return found
    except TimeoutError:
        raise TimeoutError(f"{what} did not happen within {within_s:g} s") from None
