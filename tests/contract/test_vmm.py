"""The promises of `VmmDriver`, held by every driver: the fake for speed, QEMU for real."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles
from runtimed.core.errors import HostUnavailable
from runtimed.core.specs import Shape
from runtimed.core.wait import wait_for
from runtimed.node.channel import Channel
from runtimed.node.coldboot import boot_watched
from runtimed.node.vmm.base import MachinePlan, Template, VmmDriver
from runtimed.node.vmm.processes import mark

SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)


@dataclass(kw_only=True)
class Bench:
    """A driver, and machines for it that are all ended after the test."""

    driver: VmmDriver
    root: Path
    image: ImageFiles

    def plan(self) -> MachinePlan:
        machine_id = str(uuid.uuid4())
        return MachinePlan(machine_id=machine_id, directory=self.root / machine_id, image=self.image, shape=SHAPE)


@pytest.fixture(params=["fake", pytest.param("qemu", marks=pytest.mark.system)])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    image: ImageFiles = request.getfixturevalue("default_image") if request.param == "qemu" else nothing(tmp_path)
    root = tmp_path / "machines"
    made = Bench(driver=driver_of(request, root), root=root, image=image)
    try:
        yield made
    finally:
        for directory in root.iterdir():
            await made.driver.kill(directory.name)
    assert list(root.iterdir()) == []


def driver_of(request: pytest.FixtureRequest, root: Path) -> VmmDriver:
    if request.param == "fake":
        from runtimed.node.vmm.fake import FakeDriver

        return FakeDriver(root)
    from runtimed.node.accel import Verdict, emulator
    from runtimed.node.vmm.launch import JailPolicy
    from runtimed.node.vmm.qemu import QemuDriver

    qemu = request.getfixturevalue("qemu")
    verdict = Verdict(accel="tcg", reason="the contract is the same under both")
    return QemuDriver(root, emulator(qemu, verdict, jailed=True), JailPolicy(qemu=qemu))


def nothing(tmp_path: Path) -> ImageFiles:
    """The fake boots no image."""
    return ImageFiles(
        image_id="fake", name="fake", release="", rootfs=tmp_path, rootfs_bytes=0, kernel_id="", kernel=tmp_path,
        initrd=tmp_path, agent_id="", agent_disk=tmp_path,
    )  # fmt: skip


async def answering(bench: Bench, plan: MachinePlan) -> Channel:
    return await Channel.open(plan.socket, within_s=60)


async def test_a_booted_machine_is_listed_and_its_agent_answers(bench: Bench) -> None:
    plan = bench.plan()

    await bench.driver.boot(plan)
    channel = await answering(bench, plan)

    assert await bench.driver.list() == {plan.machine_id}
    await channel.close()


async def test_booting_twice_is_booting_once(bench: Bench) -> None:
    plan = bench.plan()
    await bench.driver.boot(plan)
    pid = bench.driver.vmm_pid(plan.machine_id)

    await bench.driver.boot(plan)

    assert bench.driver.vmm_pid(plan.machine_id) == pid
    assert await bench.driver.list() == {plan.machine_id}


async def test_killing_ends_the_process_and_removes_the_folder_and_may_be_asked_twice(bench: Bench) -> None:
    plan = bench.plan()
    await bench.driver.boot(plan)
    pid = bench.driver.vmm_pid(plan.machine_id)
    assert pid is not None

    await bench.driver.kill(plan.machine_id)
    await bench.driver.kill(plan.machine_id)

    assert mark(pid) is None
    assert not plan.directory.exists()
    assert await bench.driver.list() == frozenset()


async def test_a_saved_machine_is_gone_and_its_clones_answer_while_the_template_stays_as_it_was(
    bench: Bench, tmp_path: Path
) -> None:
    template = await saved(bench, tmp_path / "template")
    assert list(bench.root.iterdir()) == []
    before = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in template.directory.rglob("*") if f.is_file()}

    plans = [bench.plan(), bench.plan()]
    for plan in plans:
        await bench.driver.restore(plan, template)
    channels = [await answering(bench, plan) for plan in plans]

    assert await bench.driver.list() == {plan.machine_id for plan in plans}
    after = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in template.directory.rglob("*") if f.is_file()}
    assert after == before
    for channel in channels:
        await channel.close()


async def test_the_end_of_a_machine_is_noticed_with_a_sentence(bench: Bench) -> None:
    plan = bench.plan()
    await bench.driver.boot(plan)
    waiting = asyncio.ensure_future(bench.driver.wait_exit(plan.machine_id))
    pid = bench.driver.vmm_pid(plan.machine_id)
    assert pid is not None
    seen = mark(pid)
    assert seen is not None

    from runtimed.node.vmm.processes import end

    end(seen)
    async with asyncio.timeout(10):
        why = await waiting

    assert why
    assert await bench.driver.list() == frozenset()


async def test_a_restore_that_is_refused_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    plan = bench.plan()

    with pytest.raises(HostUnavailable):
        await bench.driver.restore(plan, Template(key="gone", directory=tmp_path / "gone"))

    assert await bench.driver.list() == frozenset()
    assert not plan.directory.exists()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    template = await saved(bench, tmp_path / "template")
    plan = bench.plan()

    starting = asyncio.ensure_future(bench.driver.restore(plan, template))
    await wait_for("the machine's folder", lambda: there(plan.directory), within_s=10, every_s=0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert await bench.driver.list() == frozenset()
    assert not plan.directory.exists()


async def there(path: Path) -> bool | None:
    return path.exists() or None


async def saved(bench: Bench, into: Path) -> Template:
    plan = bench.plan()
    channel = await boot_watched(bench.driver, plan)
    await channel.close()
    await bench.driver.save(plan, into)
    return Template(key="t", directory=into)
