"""Puts a node together from an operator's numbers: probes the accelerator, makes driver, templates and pool."""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runtimed.core.boot import QemuInstall
from runtimed.core.clock import Clock
from runtimed.core.errors import HostUnavailable, StartFailed
from runtimed.core.specs import Shape
from runtimed.core.tasks import spawn
from runtimed.node import accel
from runtimed.node.accel import AccelSetting, Verdict
from runtimed.node.coldboot import boot_watched
from runtimed.node.guarding import keep_guard, start_guard
from runtimed.node.kept import KeptRoom
from runtimed.node.node import ImageSource, LocalNode, NodeLimits, NodeParts, WayOut
from runtimed.node.templates import TemplateMaker, Templates
from runtimed.node.vmm.argv import kernel_line
from runtimed.node.vmm.base import MachinePlan
from runtimed.node.vmm.launch import JailPolicy
from runtimed.node.vmm.qemu import QemuDriver
from runtimed.node.warm import rehearse, warm

_log = logging.getLogger(__name__)

QEMU_MIN = (8, 2, 0)
"""From here on a template's memory file is opened read-only by every clone; before, one could poison all others."""
KVM_PROBE_S = 30.0
_PROBE_SHAPE = Shape(vcpu=1, memory_mib=512, disk_mib=3072)


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """What the operator chose."""

    state_dir: Path
    cache_dir: Path
    default_image: str
    default_shape: Shape
    accel: AccelSetting = "auto"
    jailed: bool = True
    limits: NodeLimits = field(default_factory=NodeLimits)
    way_out: WayOut | None = None


def machines_dir(state_dir: Path) -> Path:
    """Where every machine has its folder."""
    return state_dir / "machines"


async def make_node(
    plan: NodePlan, *, qemu: QemuInstall, images: ImageSource, clock: Clock, progress: Callable[[str], None]
) -> LocalNode:
    """A node that is ready for `adopt` and `prepare`, with the guard of its leases running.

    Raises:
        HostUnavailable: QEMU is too old, or there is no jail.
    """
    _check(plan, qemu)
    policy = JailPolicy(qemu=qemu, jailed=plan.jailed)
    verdict = await accel.judge(
        setting=plan.accel,
        qemu=qemu,
        cache=plan.cache_dir,
        boots_with_kvm=lambda: _boots_with_kvm(plan, policy, images, progress),
    )
    progress(f"accelerator: {verdict.reason}")
    emulator = accel.emulator(qemu, verdict, jailed=plan.jailed)
    maker = TemplateMaker(
        make_driver=lambda root: QemuDriver(root, emulator, policy),
        warm=partial(warm, ca_pem=plan.way_out.ca_pem if plan.way_out else None),
        host_key=f"{accel.host_key(qemu)} {verdict.accel} {kernel_line(emulator)}",
    )
    templates = Templates(plan.cache_dir / "templates", maker, progress=progress)
    for line in templates.sweep():
        progress(f"ended {line}")
    machines = machines_dir(plan.state_dir)
    driver = QemuDriver(machines, emulator, policy)
    await start_guard(plan.state_dir)
    parts = NodeParts(
        driver=driver,
        memory=driver,
        machines=machines,
        room=KeptRoom(plan.state_dir, machines),
        templates=templates,
        images=images,
        clock=clock,
        limits=plan.limits,
        default_image=plan.default_image,
        default_shape=plan.default_shape,
        rehearse=rehearse,
        way_out=plan.way_out,
        guard=spawn(keep_guard(plan.state_dir), name="keep the lease guard"),
    )
    return LocalNode(parts)


def _check(plan: NodePlan, qemu: QemuInstall) -> None:
    if qemu.version < QEMU_MIN:
        have = ".".join(map(str, qemu.version))
        raise HostUnavailable(
            f"QEMU {have} is too old: it opens a template's memory for writing in every clone",
            hint="Use QEMU 8.2 or later.",
        )
    if plan.jailed and shutil.which("bwrap") is None:
        raise HostUnavailable(
            "machines are jailed with bubblewrap, and there is no bwrap on this host",
            hint="Install it: apt-get install bubblewrap",
        )


async def _boots_with_kvm(
    plan: NodePlan, policy: JailPolicy, images: ImageSource, progress: Callable[[str], None]
) -> bool:
    """Boot the real kernel with KVM once, for at most KVM_PROBE_S."""
    progress("trying KVM with a real boot (once for this host)")
    image = await images.files(plan.default_image)
    verdict = Verdict(accel="kvm", reason="probe")
    root = plan.state_dir / "probe"
    driver = QemuDriver(root, accel.emulator(policy.qemu, verdict, jailed=plan.jailed), policy)
    machine_id = str(uuid.uuid4())
    machine = MachinePlan(machine_id=machine_id, directory=root / machine_id, image=image, shape=_PROBE_SHAPE)
    try:
        async with asyncio.timeout(KVM_PROBE_S):
            channel = await boot_watched(driver, machine, attempts=1)
        await channel.close()
        return True
    except (StartFailed, HostUnavailable, TimeoutError) as failure:
        _log.info("no KVM: %s", failure)
        return False
    finally:
        await driver.kill(machine_id)
        shutil.rmtree(root, ignore_errors=True)
