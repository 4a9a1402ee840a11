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
from runtimed.core.errors import ImageNotFound, Interrupted, NoCapacity
from runtimed.core.ids import ProcessId, SandboxId, new_id
from runtimed.core.specs import MachineSpec, Shape, SpareOrder, Stored
from runtimed.core.wait import wait_for
from runtimed.node.build import NodePlan, make_node
from runtimed.node.node import LocalNode, NodeLimits
from runtimed.node.vmm import space
from runtimed.node.vmm.chains import LAYERS_MAX
from runtimed.wire.streams import Stream

pytestmark = pytest.mark.system

SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)
NEW = Shape(vcpu=2, memory_mib=640, disk_mib=3072)
"""Nothing is prepared for it."""
NO_SPARES = NodeLimits(spares=0)


class Door:
    """A way out that lets nothing through, and remembers for whom it was asked."""

    ca_pem = ""

    def __init__(self) -> None:
        self.asked: set[SandboxId] = set()

    def opened(self, sandbox_id: SandboxId, stream: Stream) -> None:
        self.asked.add(sandbox_id)
        stream.reset("forbidden", "nothing goes out of here")


DOOR = Door()


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
    await made.prepare()
    yield made
    await made.close()
    assert list((tmp_path / "state" / "machines").iterdir()) == []


async def make(tmp_path: Path, image: ImageFiles, qemu: QemuInstall, limits: NodeLimits = NO_SPARES) -> LocalNode:
    plan = NodePlan(
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        default_image="default",
        default_shape=SHAPE,
        accel="tcg",
        limits=limits,
        way_out=DOOR,
    )
    (tmp_path / "state").mkdir(exist_ok=True)
    return await make_node(plan, qemu=qemu, images=OneImage(image), clock=SystemClock(), progress=print)


def spec(shape: Shape = SHAPE, **more: str) -> MachineSpec:
    return MachineSpec(sandbox_id=SandboxId(new_id()), image="default", shape=shape, hostname="box", **more)  # type: ignore[arg-type]


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


async def test_the_first_machine_of_a_shape_boots_can_be_kept_and_copied_and_later_ones_are_clones(
    node: LocalNode, tmp_path: Path
) -> None:
    first, copies = spec(NEW), [spec(NEW), spec(NEW), spec(NEW)]
    starting = asyncio.get_running_loop().create_task(node.start(first))

    async def told() -> str | None:
        return node.doing(first.sandbox_id)

    assert "booting the first machine" in await wait_for("a word on the boot", told, within_s=30)
    assert (await starting).how == "cold"
    assert node.doing(first.sandbox_id) is None
    await said(node, first, "curl -s -m 20 http://example.com/")
    assert first.sandbox_id in DOOR.asked  # SN-11: the policy is its own from its first instruction on
    await said(node, first, "echo memory > /dev/shm/x; echo disk > /workspace/f; sync")
    server = Command(argv=("sleep", "3600"), timeout_ms=3_600_000)
    await node.guest(first.sandbox_id).processes.spawn(ProcessId(new_id()), server)

    stored = await paused(node, first)
    assert stored.mode == "memory" and stored.memory_bytes < NEW.memory_mib << 20
    assert (await node.wake(first)).how == "wake"
    forked = await node.fork(first.sandbox_id, copies, keep_as="moment")
    assert [one.how for one in forked.started] == ["fork"] * 3
    for one in (first, *copies):
        assert await said(node, one, "cat /dev/shm/x /workspace/f; pgrep -c sleep") == "memory\ndisk\n1"
        await node.stop(one.sandbox_id)

    later = spec(NEW)

    async def cloned() -> bool | None:
        there = [d for d in (tmp_path / "cache" / "templates").iterdir() if not d.name.startswith(".")]
        return len(there) == 2 or None

    await wait_for("the template of the new shape", cloned, within_s=240, every_s=0.5)
    assert (await node.start(later)).how == "template"
    await node.stop(later.sandbox_id)
    copy = spec(NEW, snapshot_id="moment")
    assert (await node.start(copy)).how == "snapshot"
    assert await said(node, copy, "cat /dev/shm/x /workspace/f") == "memory\ndisk"
    await node.stop(copy.sandbox_id)
    await node.forget_snapshot("moment")
    assert [list((tmp_path / "state" / kind).iterdir()) for kind in ("bases", "layers", "snapshots")] == [[], [], []]


async def test_the_copy_of_a_disk_has_the_size_that_was_asked_and_can_be_paused(node: LocalNode) -> None:
    source = spec()
    await node.start(source)
    await said(node, source, "echo kept > /workspace/f; sync")
    await node.snapshot(source.sandbox_id, "disk", "disk")
    await node.stop(source.sandbox_id)

    copy = spec(Shape(vcpu=2, memory_mib=768, disk_mib=6144), snapshot_id="disk")
    assert (await node.start(copy)).how == "cold"
    await said(node, copy, "curl -s -m 20 http://example.com/")
    assert copy.sandbox_id in DOOR.asked

    size = "df -BM --output=size / | tail -1 | tr -dc 0-9"
    seen = f"cat /workspace/f; nproc; test $({size}) -gt 5500 && echo grown"
    assert await said(node, copy, seen) == "kept\n2\ngrown"
    assert int(await said(node, copy, "awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo")) in range(600, 769)
    await said(node, copy, "echo memory > /dev/shm/x")
    assert (await paused(node, copy)).mode == "memory"
    await node.wake(copy)
    assert await said(node, copy, "cat /dev/shm/x; " + seen) == "memory\nkept\n2\ngrown"


async def test_a_command_that_a_pause_cuts_off_goes_on_and_the_same_id_brings_its_result(node: LocalNode) -> None:
    sandbox, process_id = spec(), ProcessId(new_id())
    await node.start(sandbox)
    command = Command(argv=("bash", "-c", "while ! test -e /workspace/go; do sleep 0.1; done; echo done"))
    waiting = asyncio.get_running_loop().create_task(
        node.guest(sandbox.sandbox_id).processes.capture(process_id, command, keep_bytes=4096)
    )

    async def runs() -> bool | None:
        return len(await node.guest(sandbox.sandbox_id).processes.processes()) == 1 or None

    await wait_for("the command", runs, within_s=30)
    await paused(node, sandbox)
    with pytest.raises(Interrupted) as cut:
        await waiting
    await node.wake(sandbox)
    await said(node, sandbox, "touch /workspace/go")

    again = await node.guest(sandbox.sandbox_id).processes.capture(process_id, command, keep_bytes=4096)

    assert cut.value.details == {"processId": process_id, "cursor": 0}
    assert (again.stdout, again.exit.exit_code) == (b"done\n", 0)


async def test_spares_of_several_shapes_are_handed_out_and_give_their_memory_back(
    tmp_path: Path, default_image: ImageFiles, qemu: QemuInstall
) -> None:
    orders = (SpareOrder(shape=NEW, count=1),)
    node = await make(tmp_path, default_image, qemu, NodeLimits(spares=1, more_spares=orders))
    try:
        await node.prepare()
        spares = node._starter.spares

        async def full() -> bool | None:
            return spares.count() == 2 or None

        await wait_for("both spares", full, within_s=240, every_s=0.2)
        small, new = spec(), spec(NEW)
        assert [(await node.start(one)).how for one in (small, new)] == ["spare", "spare"]
        assert await said(node, new, "nproc") == str(NEW.vcpu)
        await wait_for("both spares again", full, within_s=120, every_s=0.2)
        assert len(list((tmp_path / "state" / "machines").iterdir())) == 4

        assert [await spares.give_back(), await spares.give_back()] == [True, True]
        assert len(await node._parts.driver.list()) == 2
        assert await said(node, small, "echo works") == "works"
    finally:
        await node.close()
    assert list((tmp_path / "state" / "machines").iterdir()) == []


async def test_a_machine_that_is_kept_often_has_a_short_chain_of_disks_and_loses_nothing(
    node: LocalNode, tmp_path: Path
) -> None:
    source = spec()
    await node.start(source)
    cold = "sync; echo 3 | sudo -n tee /proc/sys/vm/drop_caches; sha256sum -c /dev/shm/sums --quiet"
    kept = [f"kept{number}" for number in range(LAYERS_MAX + 3)]
    for name in kept:
        await said(
            node, source, f"head -c 100000 /dev/urandom > /workspace/{name}; sha256sum /workspace/* > /dev/shm/sums"
        )
        await node.snapshot(source.sandbox_id, name, "memory")
    for name in kept[1:-1]:
        await node.forget_snapshot(name)

    assert len(list((tmp_path / "state" / "layers").iterdir())) <= LAYERS_MAX
    assert await said(node, source, cold) == "3"
    await paused(node, source)
    await node.wake(source)
    assert await said(node, source, "sha256sum -c /dev/shm/sums --quiet; ls /workspace | wc -l") == str(len(kept))
    first, last = spec(snapshot_id=kept[0]), spec(snapshot_id=kept[-1])
    for copy, files in ((first, 1), (last, len(kept))):
        await node.start(copy)
        assert await said(node, copy, "sha256sum -c /dev/shm/sums --quiet; ls /workspace | wc -l") == str(files)


async def test_a_pause_that_the_disk_has_no_room_for_is_refused_before_anything_stands_still(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = spec()
    await node.start(sandbox)
    channel = node._held[sandbox.sandbox_id].channel
    monkeypatch.setattr(space, "DISK_KEEP_FREE_BYTES", 1 << 60)

    with pytest.raises(NoCapacity, match="are needed"):
        await node.pause(sandbox.sandbox_id)

    assert not channel.closed.done()
    assert await said(node, sandbox, "echo works") == "works"
    monkeypatch.undo()
    assert (await paused(node, sandbox)).mode == "memory"
