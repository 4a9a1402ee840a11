"""A service that died while it woke a sandbox: the disk was in a machine that nobody knew yet, and it is not lost."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtimed.core.boot import ImageFiles
from runtimed.core.ids import SandboxId
from runtimed.core.specs import MachineSpec, Shape
from runtimed.node.adopting import adopt
from runtimed.node.kept import DISK, KeptRecord, KeptRoom
from runtimed.node.leftovers import left_over
from runtimed.node.parts import NodeParts
from runtimed.node.remains import Remains
from runtimed.node.starting import Starter
from runtimed.node.vmm import journal
from runtimed.node.vmm.base import MachinePlan, Template

SANDBOX = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2a11")
SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)


class Driver:
    """As much of a driver as an adoption asks for, over machines that are folders."""

    def __init__(self, machines: Path) -> None:
        self.machines = machines

    async def release(self, plan: MachinePlan, disk: Path) -> None:
        os.rename(plan.own / DISK, disk)
        await self.kill(plan.machine_id)

    async def kill(self, machine_id: str) -> None:
        for path in sorted((self.machines / machine_id).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.machines / machine_id).rmdir()


@pytest.fixture
def parts(tmp_path: Path) -> NodeParts:
    machines = tmp_path / "machines"
    machines.mkdir()
    driver = Driver(machines)
    templates = SimpleNamespace(hold=lambda *_: None)
    made: Any = SimpleNamespace(
        machines=machines, driver=driver, memory=driver, room=KeptRoom(tmp_path, machines), templates=templates
    )
    return cast("NodeParts", made)


def _dies_in_the_middle_of_a_wake(parts: NodeParts) -> None:
    """What is there then: the shelf without its disk, and a machine with it that is no sandbox's."""
    nowhere = parts.machines.parent
    image = ImageFiles(
        image_id="i", name="fake", release="", rootfs=nowhere, rootfs_bytes=0, kernel_id="", kernel=nowhere,
        initrd=nowhere, agent_id="", agent_disk=nowhere,
    )  # fmt: skip
    plan = MachinePlan(machine_id="m", directory=parts.machines / "m", image=image, shape=SHAPE)
    template = Template(key="t", directory=nowhere / "template")
    spec = MachineSpec(
        sandbox_id=SANDBOX, image="fake", shape=SHAPE, hostname="h", env={}, user="sandbox", snapshot_id=None
    )
    shelf = parts.room.sandboxes
    shelf.write(shelf.begin(SANDBOX), KeptRecord(mode="memory", generation=1, plan=plan, template=template, spec=spec))
    shelf.finish(SANDBOX)
    shelf.take(SANDBOX, "m")
    plan.own.mkdir(parents=True)
    (plan.own / DISK).write_text("what a user wrote")
    journal.write(journal.MachineRecord(plan=plan, template=template, owner=None, jail=None, vmm=None))


def test_the_next_service_takes_the_disk_back_and_never_the_memory_with_it(parts: NodeParts) -> None:
    _dies_in_the_middle_of_a_wake(parts)

    adopted = asyncio.run(adopt(parts, cast("Starter", None), Remains(parts)))

    stored = parts.room.sandboxes.stored(SANDBOX)
    assert adopted == []
    assert stored is not None and stored.mode == "disk"
    assert (parts.room.sandboxes.folder(SANDBOX) / DISK).read_text() == "what a user wrote"
    assert list(parts.machines.iterdir()) == []


def test_nobody_removes_such_a_machine_before_that(parts: NodeParts) -> None:
    _dies_in_the_middle_of_a_wake(parts)

    assert left_over(machines=parts.machines, templates=parts.machines.parent / "templates") == []
