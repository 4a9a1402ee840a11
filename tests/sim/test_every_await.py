"""Something fails at any await of any move: all states converge, nothing is left over, what was acknowledged is there.

An await is every moment at which any task that the move began waits for anything: the host, the database, a lock,
another task. What happens there is, in one sweep each: a fault that nobody expects; a fault that the service knows;
the one who asked goes away; the service is told to stop; the service is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.core.lifecycle import State
from runtimed.core.sandbox import SandboxRecord
from tests.unit.control.conftest import Rig

from .awaits import Driven
from .database import no_threads
from .house import House, Photograph
from .moves import MOVES

__all__ = ["no_threads"]

pytestmark = [
    pytest.mark.usefixtures("no_threads"),
    # What a killed service leaves of itself: connections not returned, and tasks that had not begun.
    pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up", "ignore:coroutine .* was never"),
]

FILE, CONTENT = "/workspace/f", b"written"
PICTURES_MIN = 3
"""No move changes less."""
ASKED_WITHIN_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One move, and what it is asked of."""

    move: str
    record: SandboxRecord

    @property
    def ends(self) -> bool:
        return "delete" in self.move

    async def of(self, rig: Rig) -> object:
        return await MOVES[self.move][0](rig, self.record)

    async def check(self, house: House) -> None:
        """The states have converged, and the sandbox has what it was told to have; it can also be used again."""
        await house.settle()
        await house.check()
        life, host = house.rig.lives.get(self.record.id), house.host
        if life is None:
            assert self.ends or self.move == "stop", "it is gone"
            return
        held = host.machines.get(self.record.id) or host.kept[self.record.id]
        assert held.guest.sim_files.content[FILE] == CONTENT, life.record
        if life.record.state is State.STOPPED:
            await house.rig.moves.restart(house.caller, self.record.id, wait_s=5)
        inside = await house.rig.sandboxes.inside(house.caller, self.record.id)
        assert inside.record.state is State.RUNNING


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = await House.built(tmp_path)
    yield house
    await house.close()


async def _asked(house: House, move: str) -> tuple[Asked, Photograph]:
    """A sandbox with something on its disk, in the state in which it is asked; and how all is then."""
    state = MOVES[move][1]
    record = await house.rig.create(persistent=state is State.STOPPED)
    house.rig.node.guests[record.id].sim_files._put(FILE, CONTENT, None)
    if state is State.PAUSED:
        await house.rig.moves.pause(house.caller, record.id, wait_s=5)
    elif state is State.STOPPED:
        await house.rig.sandboxes.stop(house.caller, record.id, wait_s=5)
    await house.settle()
    return Asked(move=move, record=record), Photograph.of(house)


Swept = Callable[[Asked, int], Awaitable[Driven]]
"""Ask, with something happening at the await that has this number."""


async def _sweep(house: House, move: str, swept: Swept, *, ends: bool = True) -> None:
    """Once without anything happening, to see where it waits; then once for each of these.

    An await of ours may wait many times for the database. What matters is its beginning and its end.
    """
    asked, before = await _asked(house, move)
    driven = await swept(asked, -1)
    await driven.ended()
    places = driven.awaits(ends=ends)
    await asked.check(house)
    assert places, "it waits for nothing"
    for number in places:
        await before.become(house)
        try:
            async with asyncio.timeout(ASKED_WITHIN_S):
                driven = await swept(asked, number)
                await driven.ended()
            await asked.check(house)
        except BaseException as failure:
            failure.add_note(f"{move}, await {number}: {driven.places[number]}")
            raise
        assert driven.hit


@pytest.mark.parametrize("move", MOVES)
async def test_a_fault_at_any_await_leaves_nothing_behind_and_loses_nothing(move: str, house: House) -> None:
    async def faulty(asked: Asked, number: int) -> Driven:
        driven = Driven(number, lambda: OSError("nobody thought of this"))
        with contextlib.suppress(Exception):  # the one who asked is told something
            await driven.run(asked.of(house.rig))
        return driven

    await _sweep(house, move, faulty)


@pytest.mark.parametrize("move", MOVES)
async def test_one_who_asks_and_goes_away_at_any_await_leaves_nothing_behind(move: str, house: House) -> None:
    async def left(asked: Asked, number: int) -> Driven:
        def go() -> None:
            assert driven.asked is not None
            driven.asked.cancel()

        driven = Driven(number, go, asked_only=True)
        with contextlib.suppress(asyncio.CancelledError):
            await driven.run(asked.of(house.rig))
        return driven

    await _sweep(house, move, left)


@pytest.mark.parametrize("move", MOVES)
async def test_a_service_that_is_stopped_at_any_await_is_taken_up_by_the_next_one(move: str, house: House) -> None:
    async def stopped(asked: Asked, number: int) -> Driven:
        def stop() -> None:
            for task in driven.tasks:
                task.cancel()

        driven = Driven(number, stop)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await driven.run(asked.of(house.rig))
        await driven.ended()
        await house.serve_again()
        return driven

    await _sweep(house, move, stopped, ends=False)  # those are moments of a kill too


@pytest.mark.parametrize("move", MOVES)
async def test_a_service_that_is_killed_at_any_await_is_taken_up_by_the_next_one(move: str, house: House) -> None:
    """Only where the host or the database have changed: the next service cannot tell other moments apart."""
    asked, before = await _asked(house, move)
    taken = [(before, False)]

    def photograph() -> None:
        picture = Photograph.of(house)
        if picture.content != taken[-1][0].content:
            assert driven.asked is not None
            taken.append((picture, driven.asked.done()))

    driven = Driven(None, photograph)
    await driven.run(asked.of(house.rig))
    await house.settle()

    assert len(taken) >= PICTURES_MIN
    for number, (picture, answered) in enumerate(taken):
        await picture.become(house)
        try:
            await asked.check(house)
            if answered and asked.ends:
                assert house.rig.lives.get(asked.record.id) is None, "a delete that was answered is done"
        except BaseException as failure:
            failure.add_note(f"{move}, picture {number}")
            raise
