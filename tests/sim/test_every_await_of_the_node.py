"""Something fails at any await inside the node and its driver: no disk is lost, and no memory meets another's disk.

The node, the driver, the shelves and the adoption are the real ones; only the emulator is a table. A kill is also
tried before every change of a file, and while a file is being written anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runtimed.core.errors import HostUnavailable
from runtimed.core.ids import SandboxId
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.processes import ProcessMark
from runtimed.node.vmm.qemu import QemuDriver

from .awaits import Driven
from .emulator import install
from .host import Host, Picture, before_each_change, spec_of
from .hurried import hurry

BOX = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2a11")
KIDS = [SandboxId(f"0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2b{number:02}") for number in range(4)]
SNAPSHOT, EARLIER = "snapshot-1", "snapshot-0"
CONTENT = "written"
SETTLED_S, SETTLES = 30.0, 20
PICTURES_MIN = 4

Ask = Callable[[Host], Awaitable[object]]


async def _pause(host: Host) -> None:
    await host.node.pause(BOX)
    held = host.node._held.get(BOX)
    if held is not None and held.writing is not None:
        await asyncio.wait([held.writing])


async def _dies(host: Host) -> None:
    """Its process ends, and the node finds that out by itself."""
    machine = host.machine(BOX)
    assert machine is not None
    host.emulator.end(ProcessMark(pid=machine.pid, start_ticks=1, program="emulator"))
    await asyncio.sleep(SETTLED_S)


async def _fork(host: Host, count: int, keep_as: str | None) -> None:
    await host.node.fork(BOX, [spec_of(kid) for kid in KIDS[:count]], keep_as=keep_as)


MOVES: dict[str, tuple[Ask, str]] = {
    "start": (lambda h: h.node.start(spec_of(KIDS[0])), "running"),
    "start without a template": (lambda h: h.node.start(spec_of(KIDS[0])), "cold"),
    "start a copy": (lambda h: h.node.start(spec_of(KIDS[0], snapshot_id=EARLIER)), "running"),
    "pause": (_pause, "running"),
    "wake": (lambda h: h.node.wake(spec_of(BOX)), "paused"),
    "wake from disk": (lambda h: h.node.wake(spec_of(BOX), from_disk=True), "paused"),
    "restart": (lambda h: h.node.wake(spec_of(BOX), from_disk=True), "stopped"),
    "fork": (lambda h: _fork(h, 1, None), "running"),
    "fork into four and keep": (lambda h: _fork(h, 4, SNAPSHOT), "running"),
    "snapshot": (lambda h: h.node.snapshot(BOX, SNAPSHOT, "memory"), "running"),
    "snapshot of the disk": (lambda h: h.node.snapshot(BOX, SNAPSHOT, "disk"), "running"),
    "snapshot of a paused one": (lambda h: h.node.snapshot(BOX, SNAPSHOT, "memory"), "paused"),
    "stop and keep the disk": (lambda h: h.node.stop(BOX, keep_disk=True), "running"),
    "stop": (lambda h: h.node.stop(BOX), "running"),
    "stop a paused one": (lambda h: h.node.stop(BOX), "paused"),
    "forget a snapshot": (lambda h: h.node.forget_snapshot(EARLIER), "running"),
    "die": (_dies, "running"),
}


class Asked:
    """One move of one host, from how all was before."""

    def __init__(self, move: str, host: Host) -> None:
        self.move, self.host = move, host
        self.ends = move in ("stop", "stop a paused one")

    async def of(self) -> object:
        return await MOVES[self.move][0](self.host)

    async def prepare(self) -> None:
        """A sandbox with something on its disk and a snapshot of an earlier moment, in the state that is asked for."""
        state, host = MOVES[self.move][1], self.host
        await host.serve()
        if state != "cold":
            host.make_template()
        await host.node.start(spec_of(BOX))
        self._write(at="first")
        await host.node.snapshot(BOX, EARLIER, "memory")
        self._write(f=CONTENT)
        if state == "paused":
            await _pause(host)
        elif state == "stopped":
            await host.node.stop(BOX, keep_disk=True)

    def _write(self, **content: str) -> None:
        machine = self.host.machine(BOX)
        assert machine is not None
        machine.write(**content)

    def content(self) -> object:
        """The sandbox's, wherever it is now."""
        machine = self.host.machine(BOX)
        if machine is not None:
            self.host.node.guest(BOX)
            return machine.view().get("f")
        return self.host.kept_content(BOX).get("f")

    def check_answer(self, driven: Driven) -> None:
        """Who was told that it failed has none of what was asked for; whoever was only copied is there."""
        assert driven.asked is not None
        if driven.asked.cancelled() or driven.asked.exception() is not None:
            assert self.host.node.running().isdisjoint(KIDS)
        if self.move.startswith(("start", "fork")):
            assert BOX in self.host.node.running()

    async def check(self) -> None:
        """As it is; as the next service finds it; then everything is used again and ended, and nothing is left."""
        host = self.host
        if self.move.startswith("stop"):
            await self.of()  # whoever was told of a failure asks again
        self._check_now()
        await host.serve()
        self._check_now()
        host.check_folders()
        if self._is_there() and BOX not in host.node.running():
            stored = host.node.stored(BOX)
            assert stored is not None
            await host.node.wake(spec_of(BOX), from_disk=stored.mode == "disk")
            self._check_now()
        for sandbox_id in host.node.running() | {BOX}:
            await host.node.stop(sandbox_id)
        for record in (SNAPSHOT, EARLIER):
            await host.node.forget_snapshot(record)
        assert host.emulator.machines == {}
        await host.serve()
        host.check_folders()
        assert list((host.state / "kept").iterdir()) == list((host.state / "snapshots").iterdir()) == []

    def _check_now(self) -> None:
        self.host.check()
        if self._is_there():
            assert self.content() == CONTENT, "what was acknowledged is on its disk"

    def _is_there(self) -> bool:
        return not self.ends or self.host.machine(BOX) is not None or self.host.node.stored(BOX) is not None


async def _settled(driven: Driven) -> None:
    """All that was begun has ended, but for what looks on for as long as a machine lives."""
    for _ in range(SETTLES):
        await asyncio.sleep(SETTLED_S)
        if all(task.done() or _looks_on(task) for task in driven.tasks):
            return
    raise AssertionError("it does not come to an end")


def _looks_on(task: object) -> bool:
    return isinstance(task, asyncio.Task) and task.get_name().split()[0] in ("watch", "exit", "reopen")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    logging.getLogger("runtimed").setLevel(logging.CRITICAL)
    host = Host(state=tmp_path / "state")
    (tmp_path / "state").mkdir()
    install(host.emulator, monkeypatch)
    return host


Swept = Callable[[Asked, int], Awaitable[Driven]]


def _sweep(host: Host, move: str, swept: Swept) -> None:
    """Once without anything happening, to see where it waits; then once for each of these, in a loop of its own."""
    asked = Asked(move, host)

    async def first() -> tuple[Picture, Driven]:
        await asked.prepare()
        before = Picture.of(host)
        await host.serve()
        driven = await swept(asked, -1)
        await _settled(driven)
        await asked.check()
        return before, driven

    async def again(number: int) -> Driven:
        before.become(host)
        await host.serve()
        driven = await swept(asked, number)
        await _settled(driven)
        asked.check_answer(driven)
        await asked.check()
        return driven

    before, driven = hurry(first())
    for number in driven.awaits(ends=True):
        if _looks_on(driven.places[number][0]):
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
        await _settled(driven)
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
        await _settled(driven)
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
