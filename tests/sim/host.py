"""A node with its real driver and folders over the simulated emulator, and what a kill would leave of all that."""

from __future__ import annotations

import copy
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from runtimed.core.boot import ImageFiles
from runtimed.core.clock import ManualClock
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Shape
from runtimed.node import unused
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient
from runtimed.node.keeping import CAPTURED
from runtimed.node.kept import DISK, KeptRecord, KeptRoom
from runtimed.node.node import LocalNode, NodeLimits, NodeParts
from runtimed.node.parts import Ready
from runtimed.node.templates import TemplateMaker, Templates
from runtimed.node.vmm.base import Template
from runtimed.node.vmm.qemu import QemuDriver

from .emulator import Content, Emulator, Machine, chain, make_template, read_disk

SHAPE = Shape(vcpu=1, memory_mib=0, disk_mib=3072)
"""Without memory of its own: a file of holes would be read for each picture."""
FOLDERS = ("machines", "kept", "snapshots", "layers", "bases", "scratch", "leases", "templates")
Files = dict[str, bytes | None]
"""By path below the state folder; None is a folder."""


def spec_of(sandbox_id: SandboxId, **more: Any) -> MachineSpec:
    return MachineSpec(sandbox_id=sandbox_id, image="image", shape=SHAPE, hostname="h", **more)


@dataclass(kw_only=True)
class Host:
    """One state folder, the processes beside it, and the node that answers for them now."""

    state: Path
    emulator: Emulator = field(default_factory=Emulator)
    spares: int = 0
    makes_templates: bool = False
    """Whether a shape that was booted cold gets its template in the background."""
    node: LocalNode = field(init=False)
    room: KeptRoom = field(init=False)
    driver: QemuDriver = field(init=False)
    templates: Templates = field(init=False)
    template: Path = field(init=False)

    async def serve(self) -> None:
        """A service begins, and takes up what the last one left."""
        self.emulator.forget_wires()
        machines = self.state / "machines"
        policy, emulator = SimpleNamespace(qemu=None), SimpleNamespace(accel="none")

        def driver(root: Path) -> QemuDriver:
            return QemuDriver(root, cast("Any", emulator), cast("Any", policy))

        self.driver = driver(machines)
        self.room = KeptRoom(self.state, machines)
        maker = TemplateMaker(make_driver=driver, warm=_asked_something, host_key="")
        self.templates = Templates(self.state / "templates", maker, progress=lambda _: None)
        self.emulator.owners_live = False
        self.templates.sweep()
        self.emulator.owners_live = True
        self.template = self.state / "templates" / self.templates.key(self.image(), SHAPE)

        async def files(_: str) -> ImageFiles:
            return self.image()

        self.node = LocalNode(
            NodeParts(
                driver=self.driver,
                memory=self.driver,
                machines=machines,
                room=self.room,
                templates=self.templates,
                images=cast("Any", SimpleNamespace(files=files)),
                clock=ManualClock(),
                limits=NodeLimits(memory_keep_free_mib=0, spares=self.spares),
                default_image="image",
                default_shape=SHAPE,
                rehearse=_asked_something,
            )
        )
        if not self.makes_templates:
            self.node._starter.templates.want = lambda *_: None  # type: ignore[method-assign]
        await self.node.adopt()

    def image(self) -> ImageFiles:
        nowhere = self.state
        return ImageFiles(
            image_id="i", name="image", release="", rootfs=nowhere, rootfs_bytes=0, kernel_id="", kernel=nowhere,
            initrd=nowhere, agent_id="", agent_disk=nowhere,
        )  # fmt: skip

    def make_template(self) -> None:
        if not self.template.exists():
            make_template(self.template)

    def machine(self, sandbox_id: SandboxId) -> Machine | None:
        held = self.node._held.get(sandbox_id)
        return None if held is None else self.emulator.at(held.plan.own)

    def kept_content(self, sandbox_id: SandboxId) -> Content:
        """What the disk of a sandbox says that does not run."""
        record = self.room.sandboxes.find(sandbox_id)
        assert record is not None, "it is nowhere"
        disk = self.room.sandboxes.folder(sandbox_id) / DISK
        assert disk.exists(), "its disk is lost"
        return chain(record.template, record.plan.layers) | read_disk(disk)

    def check(self) -> None:
        """Each process is a sandbox's that the node knows, runs as that one, and fits what it lies on."""
        assert self.emulator.wrong == []
        held = {one.plan.own: one for one in self.node._held.values()}
        spares = {ready.plan.own for ready in self.waiting()}
        known = set(held) | spares
        assert {machine.own for machine in self.emulator.machines.values()} == known, "machines and their sandboxes"
        for machine in self.emulator.machines.values():
            if machine.own in spares:
                assert machine.running and machine.sandbox == "" and machine.own not in held
                continue
            one = held[machine.own]
            assert machine.sandbox == one.spec.sandbox_id.replace("-", ""), "whose it believes to be"
            assert machine.running and not machine.held and not one.frozen, "it goes on"
            assert machine.view() == machine.memory
            below, own = chain(one.template, one.plan.layers), read_disk(machine.own / machine.disk)
            assert below | own == machine.view(), "what lies below its disk is there"
            assert not one.channel.closed.done(), "it can be reached"
            assert one.watch is not None and not one.watch.done(), "its end will be noticed"
        for _, record in self.room.snapshots.all():
            chain(record.template, record.plan.layers)
        assert not self.node._starting

    def check_folders(self) -> None:
        """Once a service has begun: nothing is there that belongs to nobody."""
        held = list(self.node._held.values())
        known = {one.plan.machine_id for one in [*held, *self.waiting()]}
        assert _names(self.state / "machines") == known, "machines"
        records: list[KeptRecord] = []
        for shelf, name in ((self.room.sandboxes, "kept"), (self.room.snapshots, "snapshots")):
            for found in _names(self.state / name):
                record = shelf.find(found)
                assert record is not None, f"a folder that is nobody's: {name}/{found}"
                if record.mode == "memory":
                    assert set(CAPTURED) <= _names(self.state / name / found), f"a part is missing: {name}/{found}"
                records.append(record)
                self._check_holder(record.template, self.state / name / found)
        for one in held:
            self._check_holder(one.template, one.plan.directory)
        assert _names(self.state / "kept").isdisjoint(self.node._held), "it runs and is kept"
        below = [(record.plan, record.template) for record in records] + [(one.plan, one.template) for one in held]
        assert _names(self.state / "layers") == {layer.name for plan, _ in below for layer in plan.layers}, "layers"
        bases = {template.key for _, template in below if template.directory.parent.name == "bases"}
        assert _names(self.state / "bases") == bases, "bases"
        assert _names(self.state / "scratch") == set(), "scratch"
        assert _names(self.state / "leases") <= {one.plan.machine_id for one in held}, "leases"
        self.check_templates()

    def check_templates(self) -> None:
        """None is half made."""
        half_made = {name for name in _names(self.state / "templates") if name.startswith((".building", ".discarded"))}
        assert half_made == set(), "templates"

    def waiting(self) -> list[Ready]:
        """Its spares."""
        return [ready for waiting in self.node._starter.spares._waiting.values() for ready in waiting]

    def _check_holder(self, template: Template, folder: Path) -> None:
        root = self.state / "templates"
        if template.directory.parent == root:
            assert folder in unused.holders(root, template.key), f"nothing keeps the template of {folder}"


async def _asked_something(channel: Channel) -> None:
    """What a template is warmed with, and a spare rehearses."""
    await GuestClient(channel).flush()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is there if the service is killed at this moment."""

    files: Files
    emulator: Emulator
    shown: str
    place: object = None

    @classmethod
    def of(cls, host: Host, *, emptied: Path | None = None, place: object = None) -> Picture:
        """`emptied` has been opened, and nothing is written to it yet."""
        files = _read(host.state)
        if emptied is not None:
            files[str(emptied.relative_to(host.state))] = b""
        shown = repr((sorted(files.items()), host.emulator.machines))
        return cls(files=files, emulator=_copied(host.emulator), shown=shown, place=place)

    def become(self, host: Host) -> None:
        for name in FOLDERS:
            shutil.rmtree(host.state / name, ignore_errors=True)
        for name, content in sorted(self.files.items()):
            path = host.state / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.write_bytes(content)
        fresh = _copied(self.emulator)
        host.emulator.machines, host.emulator.wrong, host.emulator.pids = fresh.machines, fresh.wrong, fresh.pids


def _read(state: Path) -> Files:
    found: Files = {}
    for folder, folders, files in os.walk(state):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), state)] = None
        for name in files:
            found[os.path.relpath(os.path.join(folder, name), state)] = Path(folder, name).read_bytes()
    return found


def _copied(emulator: Emulator) -> Emulator:
    machines = copy.deepcopy(emulator.machines)
    return Emulator(machines=machines, wrong=list(emulator.wrong), pids=emulator.pids)


_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
_look: Callable[[str, tuple[Any, ...]], None] | None = None
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    global _look
    if _look is None or not (event in _CHANGES or event == "open"):
        return
    look, _look = _look, None  # not at what looking does
    try:
        look(event, arguments)
    finally:
        _look = look


@contextmanager
def before_each_change(host: Host, take: Callable[[Path | None], None]) -> Iterator[None]:
    """Call `take` before anything in the host's folders changes, also with the file that is being emptied then."""
    global _look, _hooked

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            take(None)
            return
        path, _, flags = arguments
        if isinstance(path, (str, Path)) and flags & (os.O_WRONLY | os.O_RDWR):
            take(None)
            if flags & os.O_TRUNC and Path(path).is_relative_to(host.state) and Path(path).parent.name != "own":
                take(Path(path))

    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _look = look
    try:
        yield
    finally:
        _look = None
