"""Something fails at any await of what a service does by itself: it begins, makes templates and spares, and stops.

As in the sweep over what is asked of a node: an error or a caller that goes away at each await, and a kill there and
before each change of a file. Nothing that was written is lost, nothing is left, and what failed can be done again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.node.vmm.processes import ProcessMark

from .asked import BOX, CONTENT, KIDS, MOVES, Asked, looks_on
from .awaits import Driven
from .host import SHAPE, Host, Picture, before_each_change, spec_of
from .hurried import hurry

LOOKS_ON = ("watch", "exit", "reopen", "look", "spares")
SETTLED_S = 30.0


Act = Callable[[Host], Awaitable[object]]


async def _one_that_wrote(host: Host) -> None:
    host.make_template()
    await host.node.start(spec_of(BOX))
    machine = host.machine(BOX)
    assert machine is not None
    machine.write(f=CONTENT)


async def _nothing(_: Host) -> None: ...


async def _a_spare(host: Host) -> None:
    await _one_that_wrote(host)
    host.node._starter.spares.start()
    await asyncio.sleep(SETTLED_S)
    assert len(host.waiting()) == 1


async def _build(host: Host) -> None:
    await host.templates.ensure(host.image(), SHAPE)


async def _boot_the_first(host: Host) -> None:
    """Its template follows in the background."""
    await host.node.start(spec_of(KIDS[0]))
    await asyncio.sleep(SETTLED_S)


async def _refill(host: Host) -> None:
    host.node._starter.spares.start()
    await asyncio.sleep(SETTLED_S)


async def _hand_out(host: Host) -> None:
    await host.node.start(spec_of(KIDS[0]))


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a service does, and before what."""

    before: Act
    act: Act
    has_box: bool = True
    spares: int = 0
    makes_templates: bool = False
    stops: bool = False
    ends: bool = False
    """The machines too, with what is on their disks."""


STORIES = {
    "build a template": Story(before=_nothing, act=_build, has_box=False),
    "boot the first of a shape": Story(before=_nothing, act=_boot_the_first, has_box=False, makes_templates=True),
    "make a spare": Story(before=_one_that_wrote, act=_refill, spares=1),
    "make a spare and its template": Story(before=_nothing, act=_refill, has_box=False, spares=1),
    "hand out a spare": Story(before=_a_spare, act=_hand_out, spares=1),
    "stop": Story(before=_a_spare, act=lambda h: h.node.close(end_machines=False), spares=1, stops=True),
    "stop and end": Story(before=_a_spare, act=lambda h: h.node.close(), spares=1, stops=True, ends=True),
}


class Told:
    """One story on one host."""

    def __init__(self, name: str, host: Host) -> None:
        self.story, self.host = STORIES[name], host
        host.spares, host.makes_templates = self.story.spares, self.story.makes_templates

    async def prepare(self) -> None:
        await self.host.serve()
        await self.story.before(self.host)

    async def again(self, picture: Picture) -> None:
        """The same start of it: a spare is a process of the service that is there."""
        picture.become(self.host)
        await self.host.serve()
        if self.story.before is _a_spare:
            self.host.node._starter.spares.start()
            await asyncio.sleep(SETTLED_S)

    async def check(self, *, lives: bool) -> None:
        """Whoever is there, and the next service, have what was written; then all of it is used, ended and gone."""
        host = self.host
        if lives and not self.story.stops:
            host.check()
            host.check_templates()
        if lives:
            await host.node.close(end_machines=False)
            assert host.waiting() == []
        await host.serve()
        host.check()
        host.check_folders()
        if self.story.has_box and (not self.story.ends or BOX in host.node.running()):
            machine = host.machine(BOX)
            assert machine is not None and machine.view()["f"] == CONTENT
        await host.node.start(spec_of(KIDS[1]))
        host.check()
        await host.node.close()
        assert host.emulator.machines == {}
        await host.serve()
        host.check_folders()
        assert list((host.state / "machines").iterdir()) == list((host.state / "bases").iterdir()) == []


async def _settled(driven: Driven) -> None:
    for _ in range(20):
        await asyncio.sleep(SETTLED_S)
        if all(task.done() or task.get_name().split()[0] in LOOKS_ON for task in driven.tasks):
            return
    raise AssertionError("it does not come to an end")


def _fails(number: int) -> Driven:
    return Driven(number, lambda: OSError("nobody thought of this"))


def _leaves(number: int) -> Driven:
    def go() -> None:
        assert driven.asked is not None
        driven.asked.cancel()

    driven = Driven(number, go, asked_only=True)
    return driven


FAULTS = {"an error": _fails, "one who goes away": _leaves}


def _noting(numbers: Iterable[int], what: str, driven: Driven, again: Callable[[int], None]) -> None:
    for number in numbers:
        if looks_on(driven.places[number][0]):
            continue
        try:
            again(number)
        except BaseException as failure:
            failure.add_note(f"{what}, await {number}: {driven.places[number][1:]}")
            raise


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", STORIES)
def test_a_fault_at_any_await_of_a_service_leaves_nothing(name: str, fault: str, host: Host) -> None:
    told = Told(name, host)

    async def swept(number: int) -> Driven:
        driven = FAULTS[fault](number)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await driven.run(_coroutine(told.story.act(host)))
        await _settled(driven)
        await told.check(lives=True)
        return driven

    async def first() -> tuple[Picture, Driven]:
        await told.prepare()
        before = Picture.of(host)
        if told.story.before is _a_spare:
            await told.again(before)
        return before, await swept(-1)

    async def later(number: int) -> None:
        await told.again(before)
        assert (await swept(number)).hit

    before, driven = hurry(first())
    _noting(driven.awaits(ends=True), name, driven, lambda number: hurry(later(number)))


async def _coroutine(work: Awaitable[object]) -> object:
    return await work


@pytest.mark.parametrize("name", STORIES)
def test_a_kill_at_any_await_of_a_service_leaves_nothing_to_the_next(name: str, host: Host) -> None:
    told, pictures = Told(name, host), dict[str, Picture]()
    driven: Driven

    def take(emptied: Path | None = None) -> None:
        picture = Picture.of(host, emptied=emptied, place=(driven.places[-1:], emptied))
        pictures.setdefault(picture.shown, picture)

    async def first() -> None:
        nonlocal driven
        await told.prepare()
        driven = Driven(None, take)
        with before_each_change(host, take):
            await driven.run(_coroutine(told.story.act(host)))

    async def again(picture: Picture) -> None:
        picture.become(host)
        await told.check(lives=False)

    hurry(first())
    assert len(pictures) > 1
    for number, picture in enumerate(pictures.values()):
        try:
            hurry(again(picture))
        except BaseException as failure:
            failure.add_note(f"{name}, picture {number}: {picture.place}")
            raise


# A service that begins, over what a kill has left of a move.

LEFT_BY = ("pause", "wake", "restart", "die", "stop and keep the disk", "fork a long chain", "start")


def _left_by(host: Host, move: str) -> list[Picture]:
    """One picture for each place where a kill of the move leaves something else."""
    asked, pictures = Asked(move, host), dict[object, Picture]()
    driven: Driven

    def take(emptied: Path | None = None) -> None:
        if emptied is None:
            picture = Picture.of(host, place=driven.places[-1][1:] if driven.places else ())
            pictures.setdefault(picture.place, picture)

    async def first() -> None:
        nonlocal driven
        await asked.prepare()
        await host.serve()
        driven = Driven(None, take)
        with before_each_change(host, take):
            await driven.run(asked.of())

    hurry(first())
    return list(pictures.values())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("move", LEFT_BY)
def test_a_fault_at_any_await_of_an_adoption_loses_nothing_to_the_next(move: str, fault: str, host: Host) -> None:
    """Also of machines that died while no service lived."""
    asked = Asked(move, host)
    assert move in MOVES

    async def begun(picture: Picture, number: int, dead: bool) -> Driven:
        picture.become(host)
        if dead:
            for machine in list(host.emulator.machines.values()):
                host.emulator.end(ProcessMark(pid=machine.pid, start_ticks=1, program="emulator"))
        driven = FAULTS[fault](number)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await driven.run(host.serve())
        return driven

    async def first(picture: Picture, dead: bool) -> Driven:
        driven = await begun(picture, -1, dead)
        await asked.check()
        return driven

    async def later(picture: Picture, number: int, dead: bool) -> None:
        assert (await begun(picture, number, dead)).hit
        await asyncio.sleep(SETTLED_S)
        await host.serve()
        await asked.check()

    for number, picture in enumerate(_left_by(host, move)):
        for dead in (False, True):
            driven = hurry(first(picture, dead))
            what = f"{move}, picture {number} at {picture.place}, {dead=}"

            def again(number: int, picture: Picture = picture, dead: bool = dead) -> None:
                hurry(later(picture, number, dead))

            _noting(driven.awaits(ends=False), what, driven, again)
