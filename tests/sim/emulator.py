"""A host's emulator without processes: machines are entries of a table, their disks and their memory are small files.

The real driver and the real node run over it. A machine's guest knows everything that is on its disk, as a page cache
does, and whenever it runs it writes: memory that meets a disk of another moment is noticed (`wrong`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtimed.core.errors import HostUnavailable
from runtimed.core.specs import Shape
from runtimed.node import adopting, keeping, templates
from runtimed.node.channel import Channel
from runtimed.node.vmm import blank, chains, difference, journal, qemu
from runtimed.node.vmm.argv import DEVICE_STATE, DISK, MEMORY, Start
from runtimed.node.vmm.base import MachinePlan, Template
from runtimed.node.vmm.launch import Launched, Order
from runtimed.node.vmm.processes import ProcessMark
from runtimed.wire import frames
from runtimed.wire.frames import Json
from runtimed.wire.streams import Link, Stream

from .hurried import moment, without_threads

FIRST_PID = 1 << 30
"""More than any process of a host can have."""
LAYERS_MAX = 2
"""A chain of so many is long here: it is made short at the next copy."""
HELD_MAX_S = 10.0
"""As the real agent's: what is held goes on then, whatever was planned."""
Content = dict[str, Any]


def read_disk(path: Path) -> Content:
    """What one file of a chain holds."""
    return cast("Content", json.loads(path.read_text()))


def chain(template: Template, layers: Iterable[Path]) -> Content:
    """What lies below a machine's own disk. Raises OSError where a part is missing."""
    found = read_disk(template.directory / DISK)
    for layer in layers:
        found |= read_disk(layer)
    return found


def pages_of(memory: Content) -> bytes:
    return json.dumps(memory).encode().ljust(difference.PAGE, b"\0")


def make_template(directory: Path) -> None:
    directory.mkdir(parents=True)
    first: Content = {"ticks": 0}
    (directory / MEMORY).write_bytes(pages_of(first))
    (directory / DEVICE_STATE).write_bytes(pages_of(first))
    (directory / DISK).write_text(json.dumps(first))
    (directory / blank.EMPTY).write_text("{}")


@dataclass(kw_only=True)
class Machine:
    """One process, as it outlives whoever started it."""

    pid: int
    own: Path
    template: Path | None
    below: Content
    layers: int
    disk: str = DISK
    memory: Content | None = None
    """None until there is any: a clone's is loaded."""
    running: bool = False
    held: bool = False
    sandbox: str = ""
    flattening: bool = False
    """Its layers are being copied into its disk, whether somebody waits for that or not."""

    def view(self) -> Content:
        """What its guest reads from its disk."""
        return self.below | read_disk(self.own / self.disk)

    def write(self, **content: object) -> None:
        """What the guest writes is on the disk when it is told so."""
        assert self.memory is not None and self.running
        path = self.own / self.disk
        path.write_text(json.dumps(read_disk(path) | content))
        self.memory |= content

    def flatten(self) -> None:
        """Its disk has all of its layers then, and lies above its template's."""
        assert self.template is not None
        path = self.own / self.disk
        path.write_text(json.dumps(self.view()))
        self.below, self.layers, self.flattening = read_disk(self.template / DISK), 0, False

    def go(self) -> None:
        assert self.memory is not None
        self.running = True
        self.write(ticks=self.memory.get("ticks", 0) + 1)


@dataclass(kw_only=True)
class Emulator:
    """The processes of a host."""

    machines: dict[int, Machine] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    pids: int = FIRST_PID
    owners_live: bool = True
    """Whether whoever builds a template lives: a service that begins is the same process as the one that was killed."""
    _ends: dict[int, asyncio.Event] = field(default_factory=dict)
    _wires: list[Wire] = field(default_factory=list)

    def at(self, own: Path) -> Machine | None:
        return next((machine for machine in self.machines.values() if machine.own == own), None)

    def forget_wires(self) -> None:
        """Whoever was connected is gone, and so is the loop that it lived in."""
        self._ends, self._wires = {}, []

    # What the driver asks of a process.

    def same(self, seen: ProcessMark) -> bool:
        return seen.pid in self.machines

    def end(self, seen: ProcessMark) -> None:
        machine = self.machines.pop(seen.pid, None)
        if machine is None:
            return
        self._ends.setdefault(seen.pid, asyncio.Event()).set()
        for wire in self._wires:
            if wire.machine is machine:
                wire.hang_up()

    def started_for(self, own: Path) -> list[ProcessMark]:
        machine = self.at(own)
        return [_mark(machine)] if machine else []

    async def exited(self, pid: int) -> int:
        if pid in self.machines:
            await self._ends.setdefault(pid, asyncio.Event()).wait()
        return -9

    async def launch(self, _: object, order: Order) -> Launched:
        await moment()
        try:
            below = chain(order.template, order.plan.layers) if order.template else {}
            read_disk(order.plan.own / DISK)
        except OSError as failure:
            raise HostUnavailable(f"the emulator ended: {failure}") from failure
        self.pids += 1
        template = order.template.directory if order.template else None
        machine = Machine(
            pid=self.pids, own=order.plan.own, template=template, below=below, layers=len(order.plan.layers)
        )
        self.machines[machine.pid] = machine
        if order.command in ([Start.FROM_DISK], [Start.NEW]):
            machine.memory = machine.view()
            machine.go()
        await moment()
        mark = _mark(machine)
        process = SimpleNamespace(wait=lambda: self.exited(mark.pid))
        return Launched(process=cast("asyncio.subprocess.Process", process), jail=mark, vmm=mark)

    @contextlib.asynccontextmanager
    async def monitor(self, own: Path, *, within_s: float = 10.0) -> AsyncIterator[SimpleNamespace]:
        await moment()
        machine = self.at(own)
        if machine is None:
            raise TimeoutError(f"nothing listened within {within_s:g} s")

        async def execute(command: str, arguments: Json | None = None) -> object:
            await moment()
            if machine.pid not in self.machines:
                raise ConnectionError("the machine went away")
            answer = self._execute(machine, command, arguments or {})
            await moment()
            return answer

        yield SimpleNamespace(execute=execute)

    def _execute(self, machine: Machine, command: str, arguments: Json) -> object:
        if command.startswith(("query", "block-")):
            return self._blocks(machine, command)
        if machine.flattening:
            machine.flatten()
        match command:
            case "stop":
                machine.running = False
            case "cont" if not machine.running:
                machine.go()
                for wire in list(self._wires):
                    wire.goes_on(machine)
            case "xen-save-devices-state":
                assert machine.memory is not None and not machine.running
                Path(str(arguments["filename"])).write_bytes(pages_of(machine.memory))
            case "migrate-incoming":
                self._load(machine, Path(str(arguments["uri"]).removeprefix("file:")))
            case "migrate":
                assert machine.memory is not None and not machine.running
                Path(str(arguments["uri"]).removeprefix("file:")).write_bytes(pages_of(machine.memory))
                (machine.own / MEMORY).write_bytes(pages_of(machine.memory))
            case "quit":
                self.end(_mark(machine))
            case "blockdev-snapshot-sync":
                fresh = Path(str(arguments["snapshot-file"]))
                fresh.write_text("{}")
                machine.below, machine.disk = machine.view(), fresh.name
                machine.layers += 1
            case "ringbuf-read":
                return ""
        return {}

    def _blocks(self, machine: Machine, command: str) -> object:
        name = machine.disk.removesuffix(".qcow2")
        match command:
            case "query-status":
                return {"status": "paused"}
            case "query-migrate":
                return {"status": "completed"}
            case "query-block":
                node = "disk0" if name == "disk" else name
                return [{"inserted": {"node-name": node, "backing_file_depth": 2 + machine.layers}}]
            case "query-named-block-nodes":
                return [{"node-name": "layer0"}, {"node-name": "saved"}]
            case "block-stream":
                machine.flattening = True
            case "query-block-jobs" if machine.flattening:
                machine.flatten()
                return [{}]
            case "query-block-jobs":
                return []
        return {}

    def _load(self, machine: Machine, state: Path) -> None:
        if machine.memory is None:
            assert machine.template is not None
            machine.memory = json.loads((machine.template / MEMORY).read_bytes().rstrip(b"\0"))
        if pages_of(machine.memory) != state.read_bytes():
            self.wrong.append(f"pages of one moment and a state of another: {machine.memory}")
        if machine.memory != machine.view():
            self.wrong.append(f"memory of one moment and a disk of another: {machine.memory}, {machine.view()}")

    def copy_to_file(self, pid: int, _: object, __: object, path: Path) -> int:
        memory = self.machines[pid].memory
        assert memory is not None
        path.write_bytes(pages_of(memory))
        return difference.PAGE

    def copy_from_file(self, pid: int, _: object, runs: list[difference.Run], path: Path) -> None:
        if runs:
            self.machines[pid].memory = json.loads(path.read_bytes().rstrip(b"\0"))

    async def connect(self, channel: Channel, socket: Path) -> None:
        await moment()
        machine = self.at(socket.parent)
        if machine is None or machine.memory is None:
            raise ConnectionRefusedError(111, "nobody listens")
        wire = Wire(machine, channel)
        self._wires.append(wire)
        channel._transport = cast("asyncio.Transport", wire)


class Wire:
    """The transport of one channel and, at its other end, as much of an agent as the node asks for."""

    def __init__(self, machine: Machine, channel: Channel) -> None:
        self.machine, self._channel, self._open = machine, channel, True
        self._waiting: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._connection = frames.Connection(host=False)
        self._link = Link(self._connection, write=self._answer, opened=self._opened, greeted=self._greeted)

    # The transport.

    def write(self, data: bytes) -> None:
        self._loop.call_soon(self._arrived, data)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self._open = False

    def hang_up(self) -> None:
        self._open = False
        self._loop.call_soon(self._channel._end, "the machine hung up")

    def goes_on(self, machine: Machine) -> None:
        if machine is self.machine:
            waiting, self._waiting = self._waiting, []
            for data in waiting:
                self.write(data)

    # The agent.

    def _arrived(self, data: bytes) -> None:
        if self._open and self.machine.running:
            self._link.feed(data)
        elif self._open:
            self._waiting.append(data)

    def _answer(self, data: bytes) -> None:
        if self._open:
            self._loop.call_soon(self._channel._received, data)

    def _greeted(self, hello: frames.HelloReceived) -> None:
        if hello.fresh:
            self._connection.hello(hello.nonce, {"version": frames.VERSION, "max_frame": frames.MAX_FRAME})
            self._link.flush_soon()

    def _opened(self, stream: Stream) -> None:
        answer: Json = {}
        match stream.method:
            case "machine.hold":
                self.machine.held = True
                self._loop.call_later(HELD_MAX_S, self._release)
            case "machine.identify":
                self.machine.held, self.machine.sandbox = False, str(stream.params["machine_id"])
                answer = {"worked_ns": 0, "clock_ns": stream.params["clock_ns"], "entropy_reseeded": True}
            case "machine.grow":
                answer = {"bytes": 1}
        self._connection.message(stream.id, frames.encode_json(answer), last=True)
        self._link.sent(stream.id)

    def _release(self) -> None:
        self.machine.held = False


def _mark(machine: Machine) -> ProcessMark:
    return ProcessMark(pid=machine.pid, start_ticks=1, program="emulator")


def install(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the real driver have this emulator in place of QEMU."""

    def places(_: object, plan: MachinePlan, template: Template | None, state: Path | None) -> SimpleNamespace:
        below = template.directory / DEVICE_STATE if template else None
        return SimpleNamespace(machine=str(plan.own), state=str(state or below or ""))

    async def make_overlay(_: object, path: Path, __: Shape) -> None:
        await moment()
        path.write_text("{}")
        await moment()

    async def connect(channel: Channel, socket: Path) -> None:
        await emulator.connect(channel, socket)

    pages = SimpleNamespace(
        spans=lambda pid, _: [pid],
        owned=lambda _, __: [difference.Run(offset=0, length=difference.PAGE)],
        write_table=difference.write_table,
        read_table=difference.read_table,
        copy_to_file=emulator.copy_to_file,
        copy_from_file=emulator.copy_from_file,
    )
    monkeypatch.setattr(templates, "same", lambda _: emulator.owners_live)
    monkeypatch.setattr(templates, "step_back", lambda _: None)
    monkeypatch.setattr(keeping, "LAYERS_MAX", LAYERS_MAX)
    for module in (qemu, journal, adopting):
        monkeypatch.setattr(module, "same", emulator.same)
    for module in (qemu, journal):
        monkeypatch.setattr(module, "end", emulator.end)
    for module in (qemu, blank):
        monkeypatch.setattr(module, "make_overlay", make_overlay)
    monkeypatch.setattr(journal, "started_for", emulator.started_for)
    monkeypatch.setattr(keeping, "check_room_for_memory", lambda *_: None)
    monkeypatch.setattr(qemu, "launch", emulator.launch)
    for module in (qemu, chains):
        monkeypatch.setattr(module, "monitor", emulator.monitor)
    monkeypatch.setattr(qemu, "places", places)
    monkeypatch.setattr(qemu, "qemu_argv", lambda _, __, ___, start: [start])
    monkeypatch.setattr(qemu, "check_room", lambda *_: None)
    monkeypatch.setattr(qemu, "difference", pages)
    monkeypatch.setattr(Channel, "_connect", connect)
    without_threads(monkeypatch)
