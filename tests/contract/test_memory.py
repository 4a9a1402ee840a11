"""The promises of `MemoryDriver`: what a running machine has in memory and on disk can be kept and goes on. On QEMU."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.errors import HostUnavailable
from runtimed.core.files import WriteOptions
from runtimed.core.ids import ProcessId
from runtimed.core.specs import Shape
from runtimed.node.accel import Verdict, emulator
from runtimed.node.channel import Channel
from runtimed.node.coldboot import boot_watched
from runtimed.node.guest import GuestClient, Identity
from runtimed.node.vmm.base import Kept, MachinePlan, Template
from runtimed.node.vmm.launch import JailPolicy
from runtimed.node.vmm.merging import merged_base
from runtimed.node.vmm.processes import end, mark
from runtimed.node.vmm.qemu import QemuDriver

pytestmark = pytest.mark.system

SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)


@dataclass(kw_only=True)
class Lab:
    """A driver, a template, and machines that are all ended after the test."""

    driver: QemuDriver
    root: Path
    template: Template
    image: ImageFiles

    def plan(self, *layers: Path) -> MachinePlan:
        machine_id = str(uuid.uuid4())
        directory = self.root / "machines" / machine_id
        return MachinePlan(machine_id=machine_id, directory=directory, image=self.image, shape=SHAPE, layers=layers)

    async def clone(self) -> tuple[MachinePlan, GuestClient]:
        plan = self.plan()
        await self.driver.restore(plan, self.template)
        return plan, await self.guest(plan)

    async def guest(self, plan: MachinePlan, *, within_s: float = 30) -> GuestClient:
        guest = GuestClient(await Channel.open(plan.socket, within_s=within_s))
        identity = Identity(hostname="lab", machine_id=uuid.uuid4().hex, entropy=os.urandom(64))
        await guest.identify(identity, SystemClock())
        return guest


async def said(guest: GuestClient, script: str) -> str:
    command = Command(argv=("bash", "-c", script))
    done = await guest.processes.capture(ProcessId(str(uuid.uuid4())), command, keep_bytes=65536)
    return (done.stdout + done.stderr).decode().strip()


@pytest.fixture
async def lab(tmp_path: Path, default_image: ImageFiles, qemu: QemuInstall) -> AsyncIterator[Lab]:
    machines = tmp_path / "machines"
    verdict = Verdict(accel="tcg", reason="the promises are the same under both")
    driver = QemuDriver(machines, emulator(qemu, verdict, jailed=True), JailPolicy(qemu=qemu))
    template = Template(key="t", directory=tmp_path / "template")
    made = Lab(driver=driver, root=tmp_path, template=template, image=default_image)
    first = made.plan()
    channel = await boot_watched(driver, first)
    await channel.close()
    await driver.save(first, template.directory)
    try:
        yield made
    finally:
        for directory in machines.iterdir():
            await driver.kill(directory.name)
    assert list(machines.iterdir()) == []


async def test_memory_processes_and_files_go_on_after_a_pause_and_again(lab: Lab, tmp_path: Path) -> None:
    plan, guest = await lab.clone()
    before = await said(
        guest, "head -c 20000000 /dev/urandom > /dev/shm/x; md5sum < /dev/shm/x; echo v1 > /workspace/f"
    )
    await guest.processes.spawn(ProcessId(str(uuid.uuid4())), Command(argv=("sleep", "3600"), timeout_ms=3_600_000))

    for number in (1, 2):
        kept = tmp_path / f"kept{number}"
        await lab.driver.freeze(plan)
        await lab.driver.keep(plan, lab.template, kept)
        await lab.driver.release(plan, kept / "disk.qcow2")
        assert await lab.driver.list() == frozenset()
        plan = lab.plan()
        await lab.driver.wake(plan, lab.template, Kept(directory=kept, disk=kept / "disk.qcow2"))
        guest = await lab.guest(plan)

        assert await said(guest, "md5sum < /dev/shm/x; cat /workspace/f; pgrep -c sleep") == f"{before}\nv1\n1"


async def test_a_fork_has_the_memory_and_the_disk_of_its_moment_and_the_source_goes_on(
    lab: Lab, tmp_path: Path
) -> None:
    plan, source = await lab.clone()
    await said(source, "echo memory > /dev/shm/x; echo before > /workspace/f; sync")
    layer, captured = tmp_path / "layer.qcow2", tmp_path / "captured"
    await lab.driver.freeze(plan)
    await lab.driver.keep(plan, lab.template, captured)
    await lab.driver.split_disk(plan, layer)
    await lab.driver.thaw(plan)

    await said(source, "echo after > /workspace/f; sync")
    child = lab.plan(layer)
    await lab.driver.wake(child, lab.template, Kept(directory=captured))
    copy = await lab.guest(child)
    await said(copy, "echo mine > /workspace/g; sync")

    assert await said(copy, "cat /dev/shm/x /workspace/f") == "memory\nbefore"
    assert await said(source, "cat /dev/shm/x /workspace/f; ls /workspace/g 2>&1 | grep -c 'No such'") == (
        "memory\nafter\n1"
    )


async def test_copies_that_share_one_merged_memory_have_the_captured_pages(lab: Lab, tmp_path: Path) -> None:
    plan, source = await lab.clone()
    before = await said(source, "head -c 30000000 /dev/urandom > /dev/shm/x; md5sum < /dev/shm/x")
    layer, captured = tmp_path / "layer.qcow2", tmp_path / "captured"
    await lab.driver.freeze(plan)
    await lab.driver.keep(plan, lab.template, captured)
    await lab.driver.split_disk(plan, layer)
    await lab.driver.thaw(plan)
    base = merged_base(tmp_path / "base", lab.template, captured)

    answers = []
    for _ in range(2):
        child = lab.plan(layer)
        await lab.driver.wake(child, base, Kept(directory=captured))
        answers.append(await said(await lab.guest(child), "md5sum < /dev/shm/x"))

    assert answers == [before, before]


async def test_the_disk_of_a_machine_boots_cold_with_what_was_flushed(lab: Lab, tmp_path: Path) -> None:
    plan, guest = await lab.clone()
    await said(guest, "echo v1 > /workspace/f; echo gone > /dev/shm/x")
    await guest.flush()
    await lab.driver.freeze(plan)
    await lab.driver.release(plan, tmp_path / "disk.qcow2")

    booted = lab.plan()
    await lab.driver.boot_disk(booted, lab.template, tmp_path / "disk.qcow2")
    guest = await lab.guest(booted, within_s=120)

    assert await said(guest, "cat /workspace/f; ls /dev/shm") == "v1"


async def test_fi_05_a_file_written_durably_survives_the_power_cut_of_its_machine(lab: Lab, tmp_path: Path) -> None:
    plan, guest = await lab.clone()

    async def content() -> AsyncIterator[bytes]:
        yield b"acknowledged"

    await guest.files.write("/workspace/f", content(), WriteOptions(user="sandbox", durable=True))
    seen = mark(lab.driver.vmm_pid(plan.machine_id) or 0)
    assert seen is not None
    end(seen)  # no flush, no warning
    await lab.driver.release(plan, tmp_path / "disk.qcow2")

    booted = lab.plan()
    await lab.driver.boot_disk(booted, lab.template, tmp_path / "disk.qcow2")
    guest = await lab.guest(booted, within_s=120)

    assert await said(guest, "cat /workspace/f") == "acknowledged"


async def test_fi_17_a_memory_file_that_is_cut_short_ends_its_own_machines_only(lab: Lab, tmp_path: Path) -> None:
    other = Template(key="other", directory=tmp_path / "other")
    shutil.copytree(lab.template.directory, other.directory)
    plan = lab.plan()
    await lab.driver.restore(plan, other)
    await lab.guest(plan)
    _, healthy = await lab.clone()

    os.chmod(other.directory / "memory", 0o600)
    os.truncate(other.directory / "memory", 0)
    async with asyncio.timeout(60):
        why = await lab.driver.wait_exit(plan.machine_id)

    assert why
    assert await said(healthy, "echo alive") == "alive"


async def test_a_wake_that_fails_gives_the_disk_back(lab: Lab, tmp_path: Path) -> None:
    plan, _ = await lab.clone()
    kept = tmp_path / "kept"
    await lab.driver.freeze(plan)
    await lab.driver.keep(plan, lab.template, kept)
    await lab.driver.release(plan, kept / "disk.qcow2")
    os.chmod(kept / "state", 0o600)
    (kept / "state").write_bytes(b"not a state")
    os.chmod(kept / "state", 0o444)

    with pytest.raises(HostUnavailable):
        await lab.driver.wake(lab.plan(), lab.template, Kept(directory=kept, disk=kept / "disk.qcow2"))

    assert (kept / "disk.qcow2").exists()
    assert await lab.driver.list() == frozenset()


async def test_a_link_in_a_machines_own_folder_is_never_followed(lab: Lab, tmp_path: Path) -> None:
    plan, _ = await lab.clone()
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o600)
    await lab.driver.freeze(plan)
    (plan.own / "disk.qcow2").unlink()
    (plan.own / "disk.qcow2").symlink_to(secret)

    with pytest.raises(HostUnavailable, match="not the file that it should be"):
        await lab.driver.release(plan, tmp_path / "disk.qcow2")

    assert secret.stat().st_mode & 0o777 == 0o600
