"""The node on real machines: a broken template, a pool, an adoption, and what a start leaves when it fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.errors import ImageNotFound
from runtimed.core.ids import ProcessId, SandboxId, new_id
from runtimed.core.specs import MachineSpec, Shape, Stored
from runtimed.node.build import NodePlan, make_node
from runtimed.node.node import LocalNode, NodeLimits

pytestmark = pytest.mark.system

SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)


class OneImage:
    """The default image and no other."""

    def __init__(self, image: ImageFiles) -> None:
        self._image = image

    async def files(self, name: str) -> ImageFiles:
        if name != "default":
            raise ImageNotFound(f"there is no image {name!r}")
        return self._image


@pytest.fixture
async def node(tmp_path: Path, default_image: ImageFiles, qemu: QemuInstall) -> AsyncIterator[LocalNode]:
    made = await make(tmp_path, default_image, qemu)
    yield made
    await made.close()
    assert list((tmp_path / "state" / "machines").iterdir()) == []


async def make(tmp_path: Path, image: ImageFiles, qemu: QemuInstall) -> LocalNode:
    plan = NodePlan(
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        default_image="default",
        default_shape=SHAPE,
        accel="tcg",
        limits=NodeLimits(spares=0),
    )
    (tmp_path / "state").mkdir(exist_ok=True)
    return await make_node(plan, qemu=qemu, images=OneImage(image), clock=SystemClock(), progress=print)


def spec() -> MachineSpec:
    return MachineSpec(sandbox_id=SandboxId(new_id()), image="default", shape=SHAPE, hostname="box")


async def said(node: LocalNode, sandbox: MachineSpec, script: str) -> str:
    command = Command(argv=("bash", "-c", script))
    done = await node.guest(sandbox.sandbox_id).processes.capture(ProcessId(new_id()), command, keep_bytes=65536)
    return (done.stdout + done.stderr).decode().strip()


async def paused(node: LocalNode, sandbox: MachineSpec) -> Stored:
    settled: asyncio.Queue[Stored | None] = asyncio.Queue()

    async def told(sandbox_id: SandboxId, stored: Stored | None, why: str) -> None:
        settled.put_nowait(stored)

    node.on_paused(told)
    await node.pause(sandbox.sandbox_id)
    async with asyncio.timeout(60):
        stored = await settled.get()
    assert stored is not None
    return stored


async def test_sn_21_a_template_that_does_not_answer_is_rebuilt(node: LocalNode, tmp_path: Path) -> None:
    await node.prepare()
    (template,) = (d for d in (tmp_path / "cache" / "templates").iterdir() if not d.name.startswith("."))
    memory = template / "memory"
    os.chmod(memory, 0o600)
    with memory.open("r+b") as file:
        for at in range(0, SHAPE.memory_mib << 20, 4096):
            file.seek(at)
            file.write(b"\xff" * 64)
    os.chmod(memory, 0o444)

    sandbox = spec()
    await node.start(sandbox)

    assert await said(node, sandbox, "echo works") == "works"


async def test_what_runs_is_adopted_and_what_was_paused_stays_paused(
    node: LocalNode, tmp_path: Path, default_image: ImageFiles, qemu: QemuInstall
) -> None:
    running, sleeping = spec(), spec()
    for sandbox in (running, sleeping):
        await node.start(sandbox)
        await said(node, sandbox, "echo here > /dev/shm/x")
    await paused(node, sleeping)
    await node.close(end_machines=False)

    second = await make(tmp_path, default_image, qemu)
    try:
        assert await second.adopt() == {running.sandbox_id}
        assert await said(second, running, "cat /dev/shm/x") == "here"
        assert (await second.wake(sleeping)).how == "wake"
        assert await said(second, sleeping, "cat /dev/shm/x") == "here"
    finally:
        await second.close()


async def test_sn_27_memory_never_meets_a_disk_that_went_on_without_it(node: LocalNode) -> None:
    sandbox = spec()
    await node.start(sandbox)
    await said(node, sandbox, "echo one > /workspace/f; echo memory > /dev/shm/x")
    await paused(node, sandbox)
    await node.wake(sandbox)
    await said(node, sandbox, "echo two > /workspace/f; sync")
    gone = asyncio.Event()

    async def told(sandbox_id: SandboxId, why: str) -> None:
        gone.set()

    node.on_ended(told)
    os.kill(node.vmm_pid(sandbox.sandbox_id) or 0, 9)
    async with asyncio.timeout(30):
        await gone.wait()

    stored = node.stored(sandbox.sandbox_id)
    assert stored is not None and stored.mode == "disk"
    assert (await node.wake(sandbox)).how == "cold"
    assert await said(node, sandbox, "cat /workspace/f; ls /dev/shm") == "two"


async def test_sn_03_a_wake_right_after_the_pause_calls_the_write_off_and_there_is_one_machine(
    node: LocalNode, tmp_path: Path
) -> None:
    sandbox = spec()
    await node.start(sandbox)
    await said(node, sandbox, "head -c 50M /dev/urandom > /dev/shm/x; md5sum < /dev/shm/x > /workspace/sum")

    await node.pause(sandbox.sandbox_id)
    await node.wake(sandbox)

    assert await said(node, sandbox, "md5sum < /dev/shm/x | cmp - /workspace/sum && echo same") == "same"
    assert len(list((tmp_path / "state" / "machines").iterdir())) == 1


async def test_a_start_of_an_image_that_is_not_there_leaves_nothing(node: LocalNode, tmp_path: Path) -> None:
    wrong = MachineSpec(sandbox_id=SandboxId(new_id()), image="none", shape=SHAPE, hostname="box")

    with pytest.raises(ImageNotFound):
        await node.start(wrong)

    assert node.running() == frozenset()
    assert list((tmp_path / "state" / "machines").iterdir()) == []
