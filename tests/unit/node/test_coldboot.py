"""A cold boot is watched: one without progress is ended and tried again, and nothing of it is left."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles
from runtimed.core.errors import StartFailed
from runtimed.core.specs import Shape
from runtimed.node import coldboot
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.fake import FakeDriver


class Hanging(FakeDriver):
    """The first boots make a machine that says one line and then nothing."""

    def __init__(self, root: Path, hangs: int) -> None:
        super().__init__(root)
        self.hangs, self.boots = hangs, 0

    async def boot(self, plan: MachinePlan) -> None:
        self.boots += 1
        if self.boots > self.hangs:
            await super().boot(plan)
        else:
            plan.own.mkdir(parents=True)
            (plan.directory / "console").write_text("could not calculate TSC khz\n")

    async def wait_exit(self, machine_id: str) -> str:
        if self.boots > self.hangs:
            return await super().wait_exit(machine_id)
        await asyncio.Event().wait()
        return "never"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldboot, "STALL_S", 4.0)
    monkeypatch.setattr(coldboot, "WATCH_EVERY_S", 0.05)


@pytest.fixture
def plan(tmp_path: Path) -> MachinePlan:
    image = ImageFiles(
        image_id="i", name="fake", release="", rootfs=tmp_path, rootfs_bytes=0, kernel_id="", kernel=tmp_path,
        initrd=tmp_path, agent_id="", agent_disk=tmp_path,
    )  # fmt: skip
    machine_id = str(uuid.uuid4())
    directory = tmp_path / "machines" / machine_id
    return MachinePlan(
        machine_id=machine_id, directory=directory, image=image, shape=Shape(vcpu=1, memory_mib=512, disk_mib=3072)
    )


async def test_a_boot_without_progress_is_ended_and_started_again(plan: MachinePlan, tmp_path: Path) -> None:
    driver = Hanging(tmp_path / "machines", hangs=1)

    channel = await coldboot.boot_watched(driver, plan)

    assert driver.boots == 2
    assert await driver.list() == {plan.machine_id}
    await channel.close()
    await driver.kill(plan.machine_id)


async def test_an_image_that_never_boots_is_a_sentence_with_the_end_of_its_console(
    plan: MachinePlan, tmp_path: Path
) -> None:
    driver = Hanging(tmp_path / "machines", hangs=99)

    with pytest.raises(StartFailed, match="could not calculate TSC khz"):
        await coldboot.boot_watched(driver, plan, attempts=2)

    assert driver.boots == 2
    assert list((tmp_path / "machines").iterdir()) == []
