"""Keeps on disk what paused sandboxes and snapshots own, whole or not at all.

    STATE/kept/<sandbox>/        state  pages  pages.json  disk.qcow2  kept.json     one for a sandbox that does not run
    STATE/snapshots/<snapshot>/  state  pages  pages.json  kept.json                 copies begin over its layers
    STATE/layers/<id>.qcow2      frozen disks that several of them lie above
    STATE/bases/<id>/            memory of a fork that its copies share; or no memory, below a machine that booted cold

A folder is made under a name with a dot and put in place by one rename, after its record. Memory and disk of one folder
are of the same moment: the disk moves out when a machine starts from it, and the memory is worthless from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Shape, Stored
from runtimed.node.vmm import splitting
from runtimed.node.vmm.base import Kept, MachinePlan, Template
from runtimed.node.vmm.journal import machines, plan_from, read, template_from

RECORD, DISK, PAGES = "kept.json", "disk.qcow2", "pages"
ABOVE = ".above-"
"""With the name of a layer: the disk to be above that, which the disk until now is becoming."""
TAKEN_BY = "taken-by"
"""Names the machine that the disk moves into, until that is a sandbox's by its own record."""


@dataclass(frozen=True, kw_only=True)
class KeptRecord:
    """What one folder holds."""

    mode: Literal["memory", "disk"]
    generation: int
    plan: MachinePlan
    """Of the machine that it was kept of: its image, its shape, the layers below its disk."""
    template: Template
    """What its memory and the lowest layer of its disk lie above."""
    spec: MachineSpec


class Shelf:
    """Folders of one kind, by id."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, owner: str) -> Path:
        return self._root / owner

    def find(self, owner: str) -> KeptRecord | None:
        return _read(self._root / owner)

    def kept(self, owner: str) -> Kept:
        """The folder as a driver takes it."""
        folder = self._root / owner
        disk = folder / DISK
        return Kept(directory=folder, disk=disk if disk.exists() else None)

    def begin(self, owner: str) -> Path:
        """A folder to fill, which nobody sees until `finish`."""
        folder = self._root / f".{owner}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def write(self, folder: Path, record: KeptRecord) -> None:
        """Replace the folder's record in one step: without one, what is in the folder is nobody's."""
        temporary = folder / f".{RECORD}"
        temporary.write_text(json.dumps(asdict(record), default=str))
        os.replace(temporary, folder / RECORD)

    def finish(self, owner: str) -> Stored:
        """Put the folder in place, after its files are on the disk itself."""
        folder = self._root / f".{owner}"
        _flush(folder)
        self.remove(owner)
        os.rename(folder, self._root / owner)
        stored = self.stored(owner)
        assert stored is not None
        return stored

    def give_up(self, owner: str) -> None:
        """Throw a folder away that was begun. Idempotent."""
        shutil.rmtree(self._root / f".{owner}", ignore_errors=True)

    def unfinished(self) -> list[str]:
        """Owners whose folder was begun and not finished, after a crash."""
        for gone in self._root.glob(".gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
        return [path.name[1:] for path in self._root.glob(".*") if path.is_dir()]

    def unfinished_folder(self, owner: str) -> Path:
        return self._root / f".{owner}"

    def unfinished_record(self, owner: str) -> KeptRecord | None:
        """The record of a folder that was begun: with it, everything but perhaps the disk is written."""
        return _read(self._root / f".{owner}")

    def remove(self, owner: str) -> None:
        """Idempotent."""
        if (gone := self.put_aside(owner)) is not None:
            shutil.rmtree(gone, ignore_errors=True)

    def put_aside(self, owner: str) -> Path | None:
        """Take its name, so that a half removed folder is never found; who asks removes what is answered."""
        gone = self._root / f".gone-{uuid.uuid4()}"
        try:
            os.rename(self._root / owner, gone)
        except FileNotFoundError:
            return None
        return gone

    def take(self, owner: str, machine_id: str) -> None:
        """Before a machine takes the disk: where it is to be found should the service die meanwhile."""
        (self._root / owner / TAKEN_BY).write_text(machine_id)

    def stored(self, owner: str, *, unfinished: bool = False) -> Stored | None:
        """Its sizes, for people and for metering; also of a folder that is whole and not yet in place."""
        folder = self.unfinished_folder(owner) if unfinished else self._root / owner
        record = _read(folder)
        if record is None:
            return None
        return sizes(record, [folder / DISK, *record.plan.layers], memory=folder / PAGES)

    def all(self) -> Iterable[tuple[str, KeptRecord]]:
        """By owner."""
        for path in self._root.iterdir():
            if (record := _read(path)) is not None:
                yield path.name, record


class KeptRoom:
    """Everything of one state folder that outlives machines, and the layers that they share."""

    def __init__(self, state_dir: Path, machines_dir: Path) -> None:
        self.sandboxes = Shelf(state_dir / "kept")
        self.snapshots = Shelf(state_dir / "snapshots")
        self._layers, self._bases, self._scratch = state_dir / "layers", state_dir / "bases", state_dir / "scratch"
        for folder in (self._layers, self._bases, self._scratch):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self._scratch.iterdir():  # the folder stays: a host without room could not make it again
            shutil.rmtree(left, ignore_errors=True)
        self._machines = machines_dir
        self._moves = 0
        """Forks, snapshots and cold boots under way: what they make is in no record yet."""

    def begin(self) -> None:
        """What is made from now on may be in no record yet: nothing is swept until `settle`."""
        self._moves += 1

    def new_layer(self) -> Path:
        """A name for a layer, made until `settle`."""
        self.begin()
        return self._layers / f"{uuid.uuid4()}.qcow2"

    def new_base(self) -> Path:
        """A name for what machines lie above that are no clones of a template; after `begin`."""
        return self._bases / str(uuid.uuid4())

    def scratch(self) -> Path:
        """A folder that is gone at the next start at the latest."""
        folder = self._scratch / str(uuid.uuid4())
        folder.mkdir(mode=0o700)
        return folder

    def settle(self) -> None:
        """A fork, a snapshot or a cold boot is over, well or not."""
        self._moves = max(0, self._moves - 1)
        self.sweep()

    def sweep(self) -> None:
        """Remove layers and bases that no machine, no paused sandbox and no snapshot lies above. Idempotent."""
        if self._moves:
            return
        layers: set[Path] = set()
        bases: set[Path] = set()
        for shelf in (self.sandboxes, self.snapshots):
            for _, kept in shelf.all():
                layers.update(kept.plan.layers)
                bases.add(kept.template.directory)
        for directory in machines(self._machines):
            if (machine := read(directory)) is not None:
                layers.update(machine.plan.layers)
                if (layer := splitting.under_way(directory)) is not None:
                    layers.add(layer)
                if machine.template is not None:
                    bases.add(machine.template.directory)
        for layer in set(self._layers.iterdir()) - layers:
            layer.unlink(missing_ok=True)
        for base in set(self._bases.iterdir()) - bases:
            shutil.rmtree(base, ignore_errors=True)


def sizes(record: KeptRecord, disks: Iterable[Path], *, memory: Path | None = None) -> Stored:
    """What is kept, by the room that it takes."""
    return Stored(
        mode=record.mode,
        generation=record.generation,
        memory_bytes=_allocated(memory) if memory is not None and record.mode == "memory" else 0,
        disk_bytes=sum(_allocated(disk) for disk in disks),
        shape=record.plan.shape,
        image=record.spec.image,
    )


def has_unfinished_disk(shelf: Shelf, owner: str) -> bool:
    """Whether the disk has moved into a folder that was begun: that is whole, and its machine is gone."""
    return shelf.unfinished_record(owner) is not None and (shelf.unfinished_folder(owner) / DISK).exists()


def finish_layers(state_dir: Path) -> None:
    """After a crash: what the record of a paused sandbox says lies below its disk is below it. Idempotent."""
    for above in state_dir.glob(f"kept/*/{ABOVE}*"):
        record = _read(above.parent)
        if record is not None and above.name.removeprefix(ABOVE) in {layer.name for layer in record.plan.layers}:
            above.rename(above.parent / DISK)
        else:
            above.unlink()


def taken_disks(state_dir: Path) -> dict[str, str]:
    """Owners whose disk is with a machine that is not theirs yet, and the machine's id."""
    found = {}
    for mark in state_dir.glob(f"kept/*/{TAKEN_BY}"):
        with contextlib.suppress(FileNotFoundError):
            if not (mark.parent / DISK).exists():
                found[mark.parent.name] = mark.read_text().strip()
    return found


def spec_from(raw: dict[str, Any]) -> MachineSpec:
    """A spec from what `asdict` made of it."""
    return MachineSpec(
        sandbox_id=SandboxId(raw["sandbox_id"]),
        image=raw["image"],
        shape=Shape(**raw["shape"]),
        hostname=raw["hostname"],
        env=dict(raw["env"]),
        user=raw["user"],
        snapshot_id=raw["snapshot_id"],
    )


def _read(folder: Path) -> KeptRecord | None:
    try:
        raw = json.loads((folder / RECORD).read_text())
        template = template_from(raw["template"])
        if template is None:
            return None
        return KeptRecord(
            mode=raw["mode"],
            generation=raw["generation"],
            plan=plan_from(raw["plan"]),
            template=template,
            spec=spec_from(raw["spec"]),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
