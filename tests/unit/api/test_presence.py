"""Whether anybody still waits for a piece of work."""

from __future__ import annotations

import asyncio

import pytest

from runtimed.api.presence import Presence


async def test_work_is_abandoned_once_its_last_client_has_left_for_long_enough() -> None:
    presence = Presence()
    with presence.here("work"), presence.here("work"):
        asking = asyncio.ensure_future(presence.abandoned("work", returns_within_s=0.01))
        await asyncio.sleep(0)
        assert not asking.done()

    async with asyncio.timeout(5):
        await asking


async def test_a_client_that_comes_back_in_time_is_waited_for_again() -> None:
    presence = Presence()
    with presence.here("work"):
        asking = asyncio.ensure_future(presence.abandoned("work", returns_within_s=5.0))
        await asyncio.sleep(0)

    with presence.here("work"), pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await asyncio.shield(asking)
    assert not asking.done()
    asking.cancel()


async def test_nothing_is_remembered_of_work_that_nobody_waits_for() -> None:
    presence = Presence()
    with presence.here("work"):
        pass
    await presence.abandoned("work", returns_within_s=0.01)

    assert not presence._waiting and not presence._left
