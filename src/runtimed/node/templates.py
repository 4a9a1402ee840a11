"""Keeps templates: a machine of each image and shape, booted once, warmed and saved, from which every other is cloned.

Templates are in the cache folder, shared by the services of a user, built under a lock and put in place by one rename.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimed.core import file_lock
from runtimed.core.boot import ImageFiles
from runtimed.core.specs import Shape
from runtimed.node import unused
from runtimed.node.channel import Channel
from runtimed.node.coldboot import BootWay, boot_watched
from runtimed.node.vmm import journal
from runtimed.node.vmm.base import MachinePlan, Template, VmmDriver
from runtimed.node.vmm.processes import ProcessMark, mark, same, step_back

_log = logging.getLogger(__name__)

FORMAT = 3
"""Raised when what a template holds or how it is made changes."""
KEPT = 12
"""Templates in the cache, the least recently used go first: each holds some 250 MiB of memory and what was warmed."""
PATIENCE = 5.0
"""Times the usual wait that a boot gets which leaves the processor to others."""

Warm = Callable[[Channel], Awaitable[None]]
"""What is done inside before the save, so that no clone has to do it again."""
MakeDriver = Callable[[Path], VmmDriver]
"""A driver whose machines live below the given folder."""


@dataclass(frozen=True, kw_only=True)
class TemplateMaker:
    """What building a template needs; the same for every template of a host."""

    make_driver: MakeDriver
    warm: Warm
    host_key: str
    """What else a saved machine depends on: processor, kernel, emulator and its settings."""


class Templates:
    """Finds, builds and drops templates below one folder."""

    def __init__(self, root: Path, maker: TemplateMaker, *, progress: Callable[[str], None]) -> None:
        self._root = root
        self._maker = maker
        self._progress = progress
        root.mkdir(parents=True, exist_ok=True)

    def key(self, image: ImageFiles, shape: Shape) -> str:
        """Everything that the saved memory depends on."""
        parts = {
            "format": FORMAT,
            "image": [image.image_id, image.kernel_id, image.agent_id, str(image.rootfs)],
            "shape": asdict(shape),
            "host": self._maker.host_key,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def find(self, image: ImageFiles, shape: Shape) -> Template | None:
        """The template if it is there; never builds."""
        key = self.key(image, shape)
        return Template(key=key, directory=self._root / key) if unused.use(self._root, key) else None

    async def ensure(self, image: ImageFiles, shape: Shape, *, background: bool = False) -> Template:
        """The template, built if it is missing. Idempotent; builders of the same one wait for each other.

        In the `background` its making leaves the processor to whatever else wants it.

        Raises:
            HostUnavailable, StartFailed, NoCapacity: as a cold boot does.
        """
        if (found := self.find(image, shape)) is not None:
            return found
        key = self.key(image, shape)
        async with self._locked(key):
            if (found := self.find(image, shape)) is not None:
                return found
            await self._build(key, image, shape, background=background)
        self._forget_old(keep=key)
        return Template(key=key, directory=self._root / key)

    def hold(self, template: Template, folder: Path) -> None:
        """Keep the template for as long as `folder` exists: a machine's, a paused sandbox's or a snapshot's."""
        if template.directory.parent != self._root:
            return  # the base of a fork, which is not ours
        holders = self._root / ".holders" / template.key
        holders.mkdir(parents=True, exist_ok=True)
        (holders / hashlib.sha256(str(folder).encode()).hexdigest()[:32]).write_text(str(folder))

    def _is_held(self, key: str) -> bool:
        return bool(unused.holders(self._root, key))

    def discard(self, template: Template) -> None:
        """Drop a template that does not answer. Clones that live keep their files, which they have open."""
        gone = self._root / f".discarded-{uuid.uuid4()}"
        try:
            os.rename(template.directory, gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> list[str]:
        """End and remove what dead builders left. Idempotent; answers a line for each."""
        swept = []
        for directory in self._root.glob(".building-*"):
            try:
                owner = ProcessMark(**json.loads((directory / "owner.json").read_text()))
            except (FileNotFoundError, ValueError, TypeError):
                owner = None
            if owner is not None and same(owner):
                continue
            for machine in journal.machines(directory):
                journal.end_machine(machine)
            shutil.rmtree(directory, ignore_errors=True)
            swept.append(f"an unfinished template build ({directory.name})")
        for directory in self._root.glob(".discarded-*"):
            shutil.rmtree(directory, ignore_errors=True)
        return swept

    async def _build(self, key: str, image: ImageFiles, shape: Shape, *, background: bool) -> None:
        self._progress(
            f"preparing a template of {image.name}: {shape.vcpu} vCPU, {shape.memory_mib} MiB memory, "
            f"{shape.disk_mib} MiB disk (once; about 20 s without KVM)"
        )
        building = self._root / f".building-{uuid.uuid4()}"
        building.mkdir(mode=0o700)
        owner = mark(os.getpid())
        assert owner is not None
        (building / "owner.json").write_text(json.dumps(asdict(owner)))
        driver = self._maker.make_driver(building)
        machine_id = str(uuid.uuid4())
        plan = MachinePlan(machine_id=machine_id, directory=building / machine_id, image=image, shape=shape)
        try:

            async def begin() -> None:
                await driver.boot(plan)
                if background and (pid := driver.vmm_pid(machine_id)) is not None:
                    step_back(pid)

            channel = await boot_watched(
                driver, plan, way=BootWay(begin=begin), patience=PATIENCE if background else 1.0
            )
            try:
                await self._maker.warm(channel)
            finally:
                await channel.close()
            made = building / "template"
            await driver.save(plan, made)
            unused.write_needs(made, image)
            await asyncio.to_thread(_flush, made)
            os.rename(made, self._root / key)
        finally:
            await asyncio.shield(_clear_away(driver, plan, building))

    def _forget_old(self, *, keep: str) -> None:
        kept = [d for d in self._root.iterdir() if d.is_dir() and not d.name.startswith(".") and d.name != keep]
        kept.sort(key=lambda d: d.stat().st_mtime, reverse=True)
        for directory in kept[KEPT - 1 :]:
            if self._is_held(directory.name):
                continue
            self.discard(Template(key=directory.name, directory=directory))

    @asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        """One builder of this template at a time, in every process of this user."""
        while (lock := file_lock.take(self._root / f".lock-{key}")) is None:  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            os.close(lock)


async def _clear_away(driver: VmmDriver, plan: MachinePlan, building: Path) -> None:
    """All that a build has left, whatever became of it."""
    try:
        await driver.kill(plan.machine_id)
    finally:
        journal.end_machine(plan.directory)
        shutil.rmtree(building, ignore_errors=True)


def _flush(directory: Path) -> None:
    """To the disk itself: a template half written by a power cut would be wrong for every clone."""
    for path in [*directory.iterdir(), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
