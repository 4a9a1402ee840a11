"""A machine dies and its disk cannot be put on the shelf: it waits where it is, and nothing loses it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtimed.core.errors import HostUnavailable, MachineGone, NoCapacity
from runtimed.core.ids import SandboxId
from runtimed.node.leftovers import disks_waiting, left_over
from runtimed.node.vmm import journal
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.processes import ProcessMark
from runtimed.node.vmm.qemu import QemuDriver

from .host import Host, spec_of
from .hurried import hurry

BOX = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2a11")
KID = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2b00")
SNAPSHOT = "snapshot-1"
NOTICED_S = 30.0


@dataclass
class Room:
    """Whether the host's disk has any: without it no file and no folder is made."""

    full: bool = False

    def check(self, path: Path) -> None:
        if self.full and not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.fixture
def room(host: Host, monkeypatch: pytest.MonkeyPatch) -> Room:
    found, mkdir, write_text = Room(), Path.mkdir, Path.write_text

    def make(path: Path, *arguments: Any, **named: Any) -> None:
        found.check(path)
        mkdir(path, *arguments, **named)

    def write(path: Path, *arguments: Any, **named: Any) -> int:
        found.check(path)
        return write_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "write_text", write)
    return found


def die(host: Host) -> None:
    machine = host.machine(BOX)
    assert machine is not None
    host.emulator.end(ProcessMark(pid=machine.pid, start_ticks=1, program="emulator"))


def told_by(host: Host) -> list[str]:
    told: list[str] = []

    async def ended(sandbox_id: SandboxId, _: str) -> None:
        told.append(sandbox_id)

    host.node.on_ended(ended)
    return told


async def one_that_wrote(host: Host) -> None:
    await host.serve()
    host.make_template()
    await host.node.start(spec_of(BOX))
    machine = host.machine(BOX)
    assert machine is not None
    machine.write(f="written")


async def died_without_room(host: Host, room: Room) -> None:
    """The node has noticed it and told it, and the disk is where it was."""
    await one_that_wrote(host)
    told = told_by(host)
    room.full = True
    die(host)
    await asyncio.sleep(NOTICED_S)
    assert told == [BOX]
    await host.node.stop(BOX, keep_disk=True)  # as whoever is told does
    waits(host)


def waits(host: Host) -> None:
    assert host.node.running() == frozenset() and host.emulator.machines == {}
    stored = host.node.stored(BOX)
    assert stored is not None and stored.mode == "disk" and stored.disk_bytes > 0
    with pytest.raises(MachineGone):
        host.node.guest(BOX)


async def restarted(host: Host) -> None:
    await host.node.wake(spec_of(BOX), from_disk=True)
    machine = host.machine(BOX)
    assert machine is not None and machine.view()["f"] == "written"
    host.check()


async def ended_and_gone(host: Host) -> None:
    """Nothing of it is left when it is given up, nor of anything else."""
    await asyncio.sleep(1.0)
    for sandbox_id in host.node.running() | {BOX}:
        await host.node.stop(sandbox_id)
    await host.node.forget_snapshot(SNAPSHOT)
    assert host.node.stored(BOX) is None
    host.check_folders()
    await host.serve()
    host.check_folders()
    assert list((host.state / "kept").iterdir()) == list((host.state / "machines").iterdir()) == []


def test_the_disk_of_a_machine_that_dies_on_a_full_host_is_restarted_when_there_is_room(host: Host, room: Room) -> None:
    async def story() -> None:
        await died_without_room(host, room)
        with pytest.raises(NoCapacity, match="no room"):
            await host.node.wake(spec_of(BOX), from_disk=True)
        waits(host)

        room.full = False
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


def test_it_waits_for_the_next_service_and_for_the_one_after_that(host: Host, room: Room) -> None:
    async def story() -> None:
        await died_without_room(host, room)
        await host.serve()
        waits(host)

        room.full = False
        await host.serve()

        waits(host)
        host.check_folders()
        assert host.kept_content(BOX)["f"] == "written"
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


async def _stop_again(host: Host) -> None:
    await host.node.stop(BOX, keep_disk=True)


async def _snapshot(host: Host) -> None:
    await host.node.snapshot(BOX, SNAPSHOT, "disk")


@pytest.mark.parametrize("wanting", [_stop_again, _snapshot])
def test_whoever_wants_it_has_it_put_on_the_shelf(
    wanting: Callable[[Host], Awaitable[None]], host: Host, room: Room
) -> None:
    async def story() -> None:
        await died_without_room(host, room)
        room.full = False

        await wanting(host)

        host.check_folders()
        assert host.kept_content(BOX)["f"] == "written"
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


def test_a_snapshot_of_it_says_that_there_is_no_room(host: Host, room: Room) -> None:
    async def story() -> None:
        await died_without_room(host, room)
        with pytest.raises(NoCapacity, match="no room"):
            await _snapshot(host)
        waits(host)

    hurry(story())


def test_it_is_removed_with_its_sandbox_also_while_the_host_is_full(host: Host, room: Room) -> None:
    async def story() -> None:
        await died_without_room(host, room)

        await host.node.stop(BOX)

        assert host.node.stored(BOX) is None
        assert list((host.state / "machines").iterdir()) == []
        room.full = False
        await ended_and_gone(host)

    hurry(story())


def test_the_doctor_calls_it_a_disk_that_waits_and_nothing_left_over(host: Host, room: Room) -> None:
    async def story() -> None:
        await died_without_room(host, room)

    hurry(story())
    machines = host.state / "machines"
    (directory,) = machines.iterdir()
    record = journal.read(directory)
    assert record is not None and record.owner is not None  # this process: nothing of it could be left over
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "same", lambda _: False)

        assert left_over(machines=machines, templates=host.state / "templates") == []
        assert disks_waiting(machines) == 1


def test_a_stop_on_a_full_host_ends_the_machine_and_keeps_its_disk(host: Host, room: Room) -> None:
    async def story() -> None:
        await one_that_wrote(host)
        room.full = True

        await host.node.stop(BOX, keep_disk=True)

        waits(host)
        room.full = False
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


def test_a_full_disk_ends_no_machine_that_the_next_service_finds(host: Host, room: Room) -> None:
    async def story() -> None:
        await one_that_wrote(host)
        room.full = True
        await host.serve()

        assert host.node.running() == {BOX}
        host.check()
        room.full = False
        await ended_and_gone(host)

    hurry(story())


def test_a_restart_that_cannot_be_written_down_gives_the_disk_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    write = journal.write

    def refuse(record: journal.MachineRecord) -> None:
        if record.sandbox is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(record)

    async def story() -> None:
        await one_that_wrote(host)
        await host.node.stop(BOX, keep_disk=True)
        monkeypatch.setattr(journal, "write", refuse)
        for asked in (host.node.wake(spec_of(BOX), from_disk=True), host.node.start(spec_of(KID))):
            with pytest.raises(NoCapacity):
                await asked

        assert host.emulator.machines == {}
        host.check_folders()
        monkeypatch.setattr(journal, "write", write)
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


# A wake that was cut short, and the disk that it had taken.


def refuse_release(monkeypatch: pytest.MonkeyPatch) -> list[MachinePlan]:
    """Until the answered list is emptied of its first entry, no disk is given back."""
    whole, refused = QemuDriver.release, list[MachinePlan]()

    async def release(driver: QemuDriver, plan: MachinePlan, disk: Path) -> None:
        if len(refused) < 99:
            refused.append(plan)
            raise HostUnavailable("not now")
        await whole(driver, plan, disk)

    monkeypatch.setattr(QemuDriver, "release", release)
    return refused


async def killed_in_a_wake(host: Host) -> None:
    """The machine that woke is nobody's yet, and has the disk."""
    await one_that_wrote(host)
    await host.node.stop(BOX, keep_disk=True)
    begun = host.node._keeper
    ready, _, _ = await begun.wake(spec_of(BOX), from_disk=True)
    assert host.emulator.at(ready.plan.own) is not None


@pytest.mark.parametrize("by", ["the next service", "the next wake", "giving it up"])
def test_a_disk_that_cannot_be_taken_back_from_a_wake_stays_until_it_can(
    by: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        await killed_in_a_wake(host)
        refused = refuse_release(monkeypatch)
        await host.serve()

        assert refused and host.emulator.machines == {}, "it does not run on for nobody"
        assert disks_waiting(host.state / "machines") == 1
        assert host.node.stored(BOX) is not None
        with pytest.raises(HostUnavailable):
            await host.node.wake(spec_of(BOX), from_disk=True)
        refused.extend([refused[0]] * 99)
        if by == "giving it up":
            await host.node.stop(BOX)
            assert list((host.state / "machines").iterdir()) == []
        else:
            if by == "the next service":
                await host.serve()
                host.check_folders()
            await restarted(host)
        await ended_and_gone(host)

    hurry(story())


# A machine that stands still after a capture.


@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("move", ["fork", "snapshot"])
def test_one_that_does_not_go_on_after_a_capture_is_as_one_that_died(
    move: str, lives: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thaw(driver: QemuDriver, plan: MachinePlan) -> None:
        if not lives:
            die(host)
        raise TimeoutError("the monitor did not answer")

    async def story() -> None:
        await one_that_wrote(host)
        told = told_by(host)
        with monkeypatch.context() as patched, pytest.raises(MachineGone):
            patched.setattr(QemuDriver, "thaw", thaw)
            if move == "fork":
                await host.node.fork(BOX, [spec_of(KID)], keep_as=SNAPSHOT)
            else:
                await host.node.snapshot(BOX, SNAPSHOT, "memory")

        assert told == [BOX]
        waits(host)
        await asyncio.sleep(1.0)  # what was captured is removed when nobody waits for it
        host.check_folders()
        assert list((host.state / "snapshots").iterdir()) == []
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())


def test_one_that_goes_on_at_the_last_try_is_not_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, refused = QemuDriver.thaw, list[str]()

    async def thaw(driver: QemuDriver, plan: MachinePlan) -> None:
        if len(refused) < 2:
            refused.append(plan.machine_id)
            raise TimeoutError("the monitor did not answer")
        await whole(driver, plan)

    async def story() -> None:
        await one_that_wrote(host)
        monkeypatch.setattr(QemuDriver, "thaw", thaw)
        await host.node.snapshot(BOX, SNAPSHOT, "memory")

        assert len(refused) == 2
        host.check()
        await ended_and_gone(host)

    hurry(story())


def test_a_layer_that_could_not_be_written_down_is_below_the_disk_all_the_same(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has become a layer, and the host is too full to say so; the next move is made all the same."""
    write = journal.write

    def refuse(record: journal.MachineRecord) -> None:
        if record.plan.layers:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(record)

    async def story() -> None:
        await one_that_wrote(host)
        monkeypatch.setattr(journal, "write", refuse)
        with pytest.raises(OSError, match="No space"):
            await host.node.snapshot(BOX, SNAPSHOT, "disk")
        monkeypatch.setattr(journal, "write", write)
        host.emulator.wrong.clear()

        await host.node.snapshot(BOX, SNAPSHOT, "disk")

        host.check()
        await host.node.start(spec_of(KID, snapshot_id=SNAPSHOT))
        copy = host.machine(KID)
        assert copy is not None and copy.view()["f"] == "written"
        await host.node.stop(BOX, keep_disk=True)
        assert host.kept_content(BOX)["f"] == "written"
        await ended_and_gone(host)

    hurry(story())


def test_a_pause_that_cannot_be_written_and_is_stopped_meanwhile_leaves_no_machine_running(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(*_: object) -> int:
        await asyncio.sleep(1.0)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story() -> None:
        await one_that_wrote(host)
        monkeypatch.setattr(QemuDriver, "keep", keep)
        await host.node.pause(BOX)

        await host.node.stop(BOX, keep_disk=True)

        waits(host)
        host.check_folders()
        await restarted(host)
        await ended_and_gone(host)

    hurry(story())
