"""Something fails at any await inside the node and its driver: no disk is lost, and no memory meets another's disk.

The node, the driver, the shelves and the adoption are the real ones; only the emulator is a table. A kill is also
tried before every change of a file, and while a file is being written anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runtimed.core.errors import HostUnavailable
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.qemu import QemuDriver

from .asked import BOX, MOVES, PICTURES_MIN, Asked, looks_on, settled
from .awaits import Driven
from .host import Host, Picture, before_each_change
from .hurried import hurry

Swept = Callable[[Asked, int], Awaitable[Driven]]


def _sweep(host: Host, move: str, swept: Swept) -> None:
    """Once without anything happening, to see where it waits; then once for each of these, in a loop of its own."""
    asked = Asked(move, host)

    async def first() -> tuple[Picture, Driven]:
        await asked.prepare()
        before = Picture.of(host)
        await host.serve()
        driven = await swept(asked, -1)
        await settled(driven)
        await asked.check()
        return before, driven

    async def again(number: int) -> Driven:
        before.become(host)
        await host.serve()
        driven = await swept(asked, number)
        await settled(driven)
        asked.check_answer(driven)
        await asked.check()
        return driven

    before, driven = hurry(first())
    for number in driven.awaits(ends=True):
        if looks_on(driven.places[number][0]):
            continue
        try:
            assert hurry(again(number)).hit
        except BaseException as failure:
            failure.add_note(f"{move}, await {number}: {driven.places[number][1:]}")
            raise


@pytest.mark.parametrize("move", MOVES)
def test_a_fault_at_any_await_loses_no_disk_and_leaves_no_machine(move: str, host: Host) -> None:
    async def faulty(asked: Asked, number: int) -> Driven:
        driven = Driven(number, lambda: OSError("nobody thought of this"))
        with contextlib.suppress(Exception):
            await driven.run(asked.of())
        return driven

    _sweep(host, move, faulty)


@pytest.mark.parametrize("move", MOVES)
def test_one_who_goes_away_at_any_await_loses_no_disk_and_leaves_no_machine(move: str, host: Host) -> None:
    async def left(asked: Asked, number: int) -> Driven:
        def go() -> None:
            assert driven.asked is not None
            driven.asked.cancel()

        driven = Driven(number, go, asked_only=True)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await driven.run(asked.of())
        return driven

    _sweep(host, move, left)


CALLS = ("restore", "boot_disk", "wake", "freeze", "thaw", "keep", "split_disk", "release", "kill")


WITHOUT_THE_DRIVER = ("snapshot of a paused one", "stop a paused one", "forget a snapshot")


@pytest.mark.parametrize("move", MOVES)
def test_a_call_of_the_driver_that_is_refused_loses_no_disk(move: str, host: Host) -> None:
    asked = Asked(move, host)

    async def prepare() -> Picture:
        await asked.prepare()
        return Picture.of(host)

    async def refusing(call: str) -> bool:
        before.become(host)
        await host.serve()
        whole, refused = getattr(host.driver, call), []

        async def refuses(*arguments: Any) -> Any:
            if refused:
                return await whole(*arguments)
            refused.append(call)
            raise HostUnavailable("refused once")

        setattr(host.driver, call, refuses)
        driven = Driven(-1, lambda: None)
        with contextlib.suppress(Exception):
            await driven.run(asked.of())
        await settled(driven)
        asked.check_answer(driven)
        await asked.check()
        return bool(refused)

    before, refused = hurry(prepare()), []
    for call in CALLS:
        try:
            refused += [call] * hurry(refusing(call))
        except BaseException as failure:
            failure.add_note(f"{move}, {call}")
            raise
    assert bool(refused) == (move not in WITHOUT_THE_DRIVER)


@pytest.mark.parametrize("move", MOVES)
def test_a_kill_at_any_await_and_before_any_change_of_a_file_loses_no_disk(move: str, host: Host) -> None:
    """Also a second one, while the next service takes up what the first has left."""
    asked = Asked(move, host)
    pictures: dict[str, Picture] = {}
    driven: Driven

    def take(emptied: Path | None = None) -> None:
        place = driven.places[-1][1:] if driven.places else ()
        picture = Picture.of(host, emptied=emptied, place=(place, emptied))
        pictures.setdefault(picture.shown, picture)

    async def first() -> None:
        nonlocal driven
        await asked.prepare()
        await host.serve()
        driven = Driven(None, take)
        with before_each_change(host, take):
            await driven.run(asked.of())
        await settled(driven)
        await asked.check()

    async def again(picture: Picture) -> None:
        picture.become(host)
        await host.serve()
        await asked.check()

    async def killed_again(picture: Picture) -> None:
        nonlocal driven
        picture.become(host)
        driven = Driven(None, take)
        with before_each_change(host, take):
            await driven.run(host.serve())

    hurry(first())
    assert len(pictures) >= PICTURES_MIN
    for picture in list(pictures.values()) if move != "fork into four and keep" else ():  # a fork into one has the same
        hurry(killed_again(picture))
    for number, picture in enumerate(pictures.values()):
        try:
            hurry(again(picture))
        except BaseException as failure:
            failure.add_note(f"{move}, picture {number}: {picture.place}")
            raise


@pytest.mark.parametrize("late", [False, True])
def test_a_dead_machine_whose_disk_is_refused_to_the_next_service_keeps_it(
    late: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before anything of it has happened, or when the disk has moved."""
    asked, refused, whole = Asked("die", host), [], QemuDriver.release

    async def release(driver: QemuDriver, plan: MachinePlan, disk: Path) -> None:
        if refused or late:
            await whole(driver, plan, disk)
        if not refused:
            refused.append(plan)
            raise HostUnavailable("refused once")

    async def one() -> None:
        await asked.prepare()
        machine = host.machine(BOX)
        assert machine is not None
        del host.emulator.machines[machine.pid]
        monkeypatch.setattr(QemuDriver, "release", release)
        await host.serve()
        await asked.check()

    hurry(one())
    assert refused
