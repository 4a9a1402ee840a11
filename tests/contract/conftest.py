"""A connected guest for the contract suite: the real agent, in each kind of machine."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.core.clock import SystemClock
from runtimed.core.commands import Captured, Command
from runtimed.core.ids import ProcessId
from runtimed.core.specs import Shape
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient, Identity
from runtimed.node.vmm.base import MachinePlan, Template, VmmDriver

KEEP_BYTES = 64 * 1024


def new_process_id() -> ProcessId:
    return ProcessId(str(uuid.uuid4()))


@dataclass(kw_only=True)
class GuestMachine:
    """A running machine; `connect` opens one more channel to it, which the fixture closes."""

    socket: Path
    kill: Callable[[], Awaitable[None]]
    real: bool
    """A machine with its own kernel; the fake has only a jail."""
    opened: list[Channel] = field(default_factory=list)

    async def connect(self) -> GuestClient:
        channel = await Channel.open(self.socket, within_s=60)
        self.opened.append(channel)
        return GuestClient(channel)


@pytest.fixture(params=["fake", pytest.param("qemu", marks=pytest.mark.system)])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GuestMachine]:
    """One machine of each kind, fresh for each test. A new kind is one more parameter and one more branch here."""
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            made = await fake_machine(tmp_path, stack)
        else:
            made = await real_machine(request.getfixturevalue("saved_guest"), tmp_path, stack)
        try:
            yield made
        finally:
            for channel in made.opened:
                await channel.close()


async def fake_machine(tmp_path: Path, stack: AsyncExitStack) -> GuestMachine:
    from runtimed.node.vmm.fake import FakeDriver

    image = ImageFiles(
        image_id="fake", name="fake", release="", rootfs=tmp_path, rootfs_bytes=0, kernel_id="", kernel=tmp_path,
        initrd=tmp_path, agent_id="", agent_disk=tmp_path,
    )  # fmt: skip
    driver: VmmDriver = FakeDriver(tmp_path / "machines")
    machine_id = str(uuid.uuid4())
    plan = MachinePlan(
        machine_id=machine_id, directory=tmp_path / "machines" / machine_id, image=image,
        shape=Shape(vcpu=1, memory_mib=512, disk_mib=3072),
    )  # fmt: skip
    await driver.boot(plan)
    stack.push_async_callback(driver.kill, machine_id)
    return GuestMachine(socket=plan.socket, kill=lambda: driver.kill(machine_id), real=False)


@dataclass(frozen=True, kw_only=True)
class SavedGuest:
    """A real machine, booted once for all tests and saved; each test restores a clone of it."""

    image: ImageFiles
    driver_for: Callable[[Path], VmmDriver]
    template: Template


SHAPE = Shape(vcpu=2, memory_mib=1024, disk_mib=3072)


@pytest.fixture(scope="session")
def saved_guest(qemu: QemuInstall, default_image: ImageFiles, tmp_path_factory: pytest.TempPathFactory) -> SavedGuest:
    from runtimed.node.accel import Verdict, emulator
    from runtimed.node.coldboot import boot_watched
    from runtimed.node.vmm.launch import JailPolicy
    from runtimed.node.vmm.qemu import QemuDriver

    emulated = emulator(qemu, Verdict(accel="tcg", reason="the contract is the same under both"), jailed=True)
    root = tmp_path_factory.mktemp("guest")

    async def save() -> Template:
        driver = QemuDriver(root / "machines", emulated, JailPolicy(qemu=qemu))
        machine_id = str(uuid.uuid4())
        plan = MachinePlan(
            machine_id=machine_id, directory=root / "machines" / machine_id, image=default_image, shape=SHAPE
        )
        channel = await boot_watched(driver, plan)
        await GuestClient(channel).grow()
        await GuestClient(channel).settle()
        await channel.close()
        await driver.save(plan, root / "template")
        return Template(key="guest", directory=root / "template")

    with ThreadPoolExecutor(1) as other:  # The fixture is asked for from inside a running loop.
        template = other.submit(lambda: asyncio.run(save())).result()
    return SavedGuest(
        image=default_image,
        driver_for=lambda folder: QemuDriver(folder, emulated, JailPolicy(qemu=qemu)),
        template=template,
    )


async def real_machine(saved: SavedGuest, tmp_path: Path, stack: AsyncExitStack) -> GuestMachine:
    driver = saved.driver_for(tmp_path / "machines")
    machine_id = str(uuid.uuid4())
    plan = MachinePlan(
        machine_id=machine_id, directory=tmp_path / "machines" / machine_id, image=saved.image, shape=SHAPE
    )
    await driver.restore(plan, saved.template)
    stack.push_async_callback(driver.kill, machine_id)
    return GuestMachine(socket=plan.socket, kill=lambda: driver.kill(machine_id), real=True)


@pytest.fixture
async def guest(machine: GuestMachine) -> GuestClient:
    """A guest that has its identity, as the node gives it before a user's first command."""
    client = await machine.connect()
    identity = Identity(entropy=os.urandom(64), hostname="box", machine_id=uuid.uuid4().hex, env={"SANDBOX": "yes"})
    await client.identify(identity, SystemClock())
    return client


Run = Callable[..., Awaitable[Captured]]


@pytest.fixture
def run(guest: GuestClient) -> Run:
    """Run a program, or a script under bash, to its end."""

    async def run_it(*argv: str, **options: object) -> Captured:
        words = ("bash", "-c", argv[0]) if len(argv) == 1 and " " in argv[0] else argv
        command = Command(argv=words, **options)  # type: ignore[arg-type]
        return await guest.processes.capture(new_process_id(), command, keep_bytes=KEEP_BYTES)

    return run_it


@pytest.fixture
def programs(run: Run) -> Callable[[], Awaitable[list[str]]]:
    """Names of everything that runs in the machine now, but for the agent and the question."""

    async def now() -> list[str]:
        asked = await run("cat /proc/[0-9]*/stat 2>/dev/null; true")
        found = []
        for line in asked.stdout.decode(errors="replace").splitlines():
            name, state = line[line.index("(") + 1 : line.rindex(")")], line[line.rindex(")") + 2]
            if line.split()[2][0] != "K" and name not in ("cat", "bash") and not name.startswith("python"):
                found.append(name if state != "Z" else f"{name} (zombie)")
        return [name for name in found if not name.startswith(("kworker", "kthread", "bwrap"))]

    return now
