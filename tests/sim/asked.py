"""What is asked of a node in the sweeps over its awaits, from which state, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from runtimed.core.ids import SandboxId
from runtimed.node.vmm.processes import ProcessMark

from .awaits import Driven
from .host import Host, spec_of

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
    "fork a long chain": (lambda h: _fork(h, 1, None), "chained"),
    "snapshot of a long chain": (lambda h: h.node.snapshot(BOX, SNAPSHOT, "disk"), "chained"),
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
        if state == "chained":
            await host.node.snapshot(BOX, SNAPSHOT, "disk")
            await host.node.forget_snapshot(SNAPSHOT)
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
        for sandbox_id in host.node.running() | {BOX, *KIDS}:
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


async def settled(driven: Driven) -> None:
    """All that was begun has ended, but for what looks on for as long as a machine lives."""
    for _ in range(SETTLES):
        await asyncio.sleep(SETTLED_S)
        if all(task.done() or looks_on(task) for task in driven.tasks):
            return
    raise AssertionError("it does not come to an end")


def looks_on(task: object) -> bool:
    return isinstance(task, asyncio.Task) and task.get_name().split()[0] in ("watch", "exit", "reopen")
