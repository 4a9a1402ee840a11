"""Makes what a machine lies above that boots cold and is yet to be kept, woken and copied like a clone.

A base has no memory (a file of holes), and the disk of what is under it, else of the image: all memory that such a
machine touches is its own.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from runtimed.core.boot import QemuInstall
from runtimed.core.errors import HostUnavailable
from runtimed.core.run import run
from runtimed.core.specs import Shape
from runtimed.node.vmm.argv import DISK, MEMORY
from runtimed.node.vmm.base import Template
from runtimed.node.vmm.linking import link_or_copy

EMPTY = "empty.qcow2"
"""In a template: an overlay without content, copied for each clone (a fork of qemu-img costs more than the restore)."""


class Blanks:
    """Implements `BlankMaker`."""

    def __init__(self, qemu: QemuInstall) -> None:
        self._qemu = qemu

    async def make(self, into: Path, shape: Shape, under: Template | None) -> Template:
        into.mkdir(parents=True, mode=0o700)
        (into / MEMORY).touch()
        os.truncate(into / MEMORY, shape.memory_mib << 20)
        (into / MEMORY).chmod(0o444)
        if under is None:
            await make_overlay(self._qemu, into / DISK, shape)
            (into / DISK).chmod(0o444)
        else:
            await asyncio.to_thread(link_or_copy, under.directory / DISK, into / DISK)
        await make_overlay(self._qemu, into / EMPTY, shape)
        return Template(key=into.name, directory=into)


async def make_overlay(qemu: QemuInstall, path: Path, shape: Shape) -> None:
    """An empty qcow2 of the guest's size; what lies under it is said on QEMU's command line. Raises HostUnavailable."""
    line = [*qemu.img_argv, "create", "-q", "-f", "qcow2", str(path), f"{shape.disk_mib}M"]
    made = await run(line, within_s=30)
    if made.code != 0:
        raise HostUnavailable(f"qemu-img could not make a disk: {made.stderr.strip()}")
