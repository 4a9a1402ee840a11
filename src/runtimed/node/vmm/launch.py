"""Starts one machine's process, jailed or (by an operator's explicit setting) not, and knows it by its mark."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtimed.core.boot import QemuInstall
from runtimed.core.errors import HostUnavailable
from runtimed.node.vmm.argv import DEVICE_STATE, DISK, MEMORY, Accel, Places
from runtimed.node.vmm.base import MachinePlan, Template
from runtimed.node.vmm.jail import Jail, jail_argv, jail_uid
from runtimed.node.vmm.processes import ProcessMark, mark

START_S = 15.0
"""A jailed QEMU process exists and has opened its sockets long before this, or it never will."""
LOG = "vmm.log"

_KVM = Path("/dev/kvm")
_JAIL_HINT = (
    "`runtime doctor` says what this host refuses. Where AppArmor restricts user namespaces (Ubuntu 24.04), allow them "
    "for bwrap, or run the service as root."
)


@dataclass(frozen=True, kw_only=True)
class JailPolicy:
    """How machines are confined on this host."""

    qemu: QemuInstall
    jailed: bool = True
    """False only by an operator's explicit setting."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    process: asyncio.subprocess.Process
    jail: ProcessMark
    vmm: ProcessMark


@dataclass(frozen=True, kw_only=True)
class Order:
    """One machine's process to be."""

    plan: MachinePlan
    template: Template | None
    state: Path | None
    """Device state to load that is not the template's."""
    accel: Accel
    command: Sequence[str]


def places(policy: JailPolicy, plan: MachinePlan, template: Template | None, state: Path | None) -> Places:
    """Where the process will find its files."""
    if policy.jailed:
        inside = Places(layers=tuple(f"/l/{number}" for number in range(len(plan.layers))))
        return inside if state is None else replace(inside, state=f"/k/{DEVICE_STATE}")
    image = plan.image
    own_state = template.directory / DEVICE_STATE if template else None
    return Places(
        machine=".",
        template=str(template.directory) if template else "",
        state=str(state or own_state or ""),
        kernel=str(image.kernel),
        initrd=str(image.initrd),
        rootfs=str(image.rootfs),
        agent_disk=str(image.agent_disk),
        layers=tuple(str(layer) for layer in plan.layers),
    )


async def launch(policy: JailPolicy, order: Order) -> Launched:
    """Start the process and return once it is known.

    Raises:
        HostUnavailable: it ended at once, or there is no bwrap; the message says why.
    """
    return await (_jailed(policy, order) if policy.jailed else _open(order))


async def _jailed(policy: JailPolicy, order: Order) -> Launched:
    read, write = os.pipe()
    try:
        line = _jail_line(policy, order, info_fd=write)
        process = await _spawn(line, order.plan, pass_fds=(write,))
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        said = await asyncio.wait_for(asyncio.to_thread(_read_all, read), START_S)
    finally:
        os.close(read)
    jail = mark(process.pid)
    vmm = mark(int(json.loads(said)["child-pid"])) if said else None
    if vmm is None or jail is None:
        code = await process.wait()
        raise HostUnavailable(f"the machine ended with status {code}{last_words(order.plan)}", hint=_JAIL_HINT)
    return Launched(process=process, jail=jail, vmm=vmm)


async def _open(order: Order) -> Launched:
    """Without a jail: in the machine's own folder, so that socket paths stay short."""
    process = await _spawn(order.command, order.plan, pass_fds=())
    vmm = mark(process.pid)
    if vmm is None:
        code = await process.wait()
        raise HostUnavailable(f"QEMU ended with status {code}{last_words(order.plan)}")
    return Launched(process=process, jail=vmm, vmm=vmm)


async def _spawn(line: Sequence[str], plan: MachinePlan, *, pass_fds: Sequence[int]) -> asyncio.subprocess.Process:
    log = os.open(plan.directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=plan.own,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except FileNotFoundError as failure:
        raise HostUnavailable(f"there is no {line[0]} on this host", hint="Install bubblewrap.") from failure
    finally:
        os.close(log)


def _jail_line(policy: JailPolicy, order: Order, *, info_fd: int) -> Sequence[str]:
    plan = order.plan
    uid = jail_uid(plan.machine_id) if os.getuid() == 0 else None
    if uid is not None:
        for entry in (plan.own, *plan.own.iterdir()):
            os.chown(entry, uid, uid)
    inside, image = places(policy, plan, order.template, order.state), plan.image
    shown = [
        (image.kernel, inside.kernel),
        (image.initrd, inside.initrd),
        (image.rootfs, inside.rootfs),
        (image.agent_disk, inside.agent_disk),
        *zip(plan.layers, inside.layers, strict=True),
    ]
    if order.template is not None:
        below = [order.template.directory / name for name in (MEMORY, DEVICE_STATE, DISK)]
        shown += [(path, f"{inside.template}/{path.name}") for path in below if path.exists()]
    if order.state is not None:
        shown.append((order.state, inside.state))
    jail = Jail(
        root=policy.qemu.root,
        read_only=shown,
        writable=[(plan.own, inside.machine)],
        devices=_devices(plan, uid) if order.accel == "kvm" else (),
        uid=uid,
    )
    return jail_argv(jail, info_fd=info_fd, command=order.command)


def _devices(plan: MachinePlan, uid: int | None) -> Sequence[tuple[Path, str]]:
    if uid is None:
        return [(_KVM, str(_KVM))]
    # The machine's own user may not open the host's node, whose owner and group are root's: it gets one of its own.
    node = plan.own / "kvm"
    os.mknod(node, 0o600 | stat.S_IFCHR, _KVM.stat().st_rdev)
    os.chown(node, uid, uid)
    return [(node, str(_KVM))]


def last_words(plan: MachinePlan) -> str:
    """`: ` and the last line that QEMU or the jail wrote, if any."""
    with contextlib.suppress(OSError):
        lines = (plan.directory / LOG).read_text(errors="replace").strip().splitlines()
        if lines:
            return f": {lines[-1]}"
    return ""


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 4096):
        chunks.append(chunk)
        if b"}" in chunk:  # the jail keeps its end open for as long as the machine lives
            break
    return b"".join(chunks)
