"""Says what this host can do and what is left over on it, one line each; with `fix`, ends what is left over.

Looks and never prepares: nothing is fetched, built or booted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtimed.core import file_lock
from runtimed.core.limits import MEMORY_DEFAULT_MIB
from runtimed.core.run import run
from runtimed.core.wording import counted
from runtimed.images.cache import Cache
from runtimed.images.qemu import find_host_qemu
from runtimed.images.run import HostRunner
from runtimed.images.store import ImageStore
from runtimed.node.build import machines_dir
from runtimed.node.leftovers import Leftover, disks_waiting, left_over, waiting
from runtimed.node.vmm.jail import probe_argv
from runtimed.settings import Settings
from runtimed.state_folder import StateFolder

DISK_LOW_MIB = 4096
"""An image, its kernel, a template and a few sandboxes' own blocks."""

Verdict = Literal["ok", "note", "wrong", "left"]
"""`note` is worth knowing and hinders nothing; `wrong` keeps sandboxes from running; `left` nobody owns any more."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    name: str
    verdict: Verdict
    line: str

    @property
    def bad(self) -> bool:
        return self.verdict in ("wrong", "left")


async def examine(settings: Settings, *, fix: bool) -> list[Finding]:
    """Everything, in the order in which it matters. With `fix`, what was left over is ended, and said so."""
    findings = [
        await asyncio.to_thread(_qemu, settings),
        _accelerator(settings),
        await _jail(settings),
        _disk("state", settings.state_dir),
        _disk("cache", settings.cache_dir),
        _memory(settings),
        await asyncio.to_thread(_image, settings),
        _service(settings),
    ]
    return findings + await asyncio.to_thread(_left_over, settings, fix)


def _qemu(settings: Settings) -> Finding:
    if found := find_host_qemu(HostRunner()):
        version = ".".join(map(str, found.version))
        return Finding(name="qemu", verdict="ok", line=f"QEMU {version} of this host ({found.argv[0]})")
    if kept := Cache(settings.cache_dir).keys("qemu"):
        return Finding(name="qemu", verdict="ok", line=f"a private QEMU in {settings.cache_dir / 'qemu' / kept[-1]}")
    return Finding(
        name="qemu", verdict="note", line="no QEMU of 8.2 or later yet; the first start fetches one from the host's apt"
    )


def _accelerator(settings: Settings) -> Finding:
    if settings.accel != "auto":
        return Finding(name="accelerator", verdict="ok", line=f"{settings.accel}, because the settings say so")
    device = Path("/dev/kvm")
    if not device.exists():
        line = "emulation (TCG): there is no /dev/kvm"
    elif not os.access(device, os.R_OK | os.W_OK):
        line = "emulation (TCG): /dev/kvm may not be opened by this user; add them to the group that owns it"
    elif verdicts := sorted((settings.cache_dir / "accel").glob("*.json"), key=lambda path: path.stat().st_mtime):
        line = str(json.loads(verdicts[-1].read_text())["reason"])
    else:
        line = "/dev/kvm is there; the first start finds out whether it works"
    return Finding(name="accelerator", verdict="note" if "TCG" in line else "ok", line=line)


async def _jail(settings: Settings) -> Finding:
    if not settings.jail:
        return Finding(
            name="jail", verdict="note", line="off, because the settings say so: QEMU sees this user's files"
        )
    if shutil.which("bwrap") is None:
        return Finding(name="jail", verdict="wrong", line="there is no bwrap: apt-get install bubblewrap")
    try:
        tried = await run(probe_argv(as_root=os.getuid() == 0), within_s=10)
    except TimeoutError as error:
        return Finding(name="jail", verdict="wrong", line=str(error))
    if tried.code == 0:
        return Finding(name="jail", verdict="ok", line="bubblewrap with namespaces of its own")
    why = tried.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
    return Finding(name="jail", verdict="wrong", line=f"bubblewrap cannot make a jail here: {why[0]}{_namespaces()}")


def _namespaces() -> str:
    """What usually stands in the way of an ordinary user's namespaces."""
    for path, bad, say in (
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns)",
        ),
    ):
        file = Path(path)
        if file.exists() and file.read_text().strip() == bad:
            return f"; {say}"
    return ""


def _disk(name: str, folder: Path) -> Finding:
    there = folder
    while not there.exists():
        there = there.parent
    free_mib = shutil.disk_usage(there).free >> 20
    low = free_mib < DISK_LOW_MIB
    advice = f"; {DISK_LOW_MIB} MiB are wanted" if low else ""
    return Finding(
        name=f"{name} disk", verdict="wrong" if low else "ok", line=f"{free_mib} MiB free for {folder}{advice}"
    )


def _memory(settings: Settings) -> Finding:
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_mib = int(meminfo["MemAvailable"].split()[0]) >> 10
    total_mib = int(meminfo["MemTotal"].split()[0]) >> 10
    low = free_mib < settings.memory_keep_free_mib
    line = f"{free_mib} of {total_mib} MiB available; {settings.memory_keep_free_mib} MiB stay the host's own"
    if total_mib * settings.memory_overcommit < MEMORY_DEFAULT_MIB:
        low, line = True, f"{line}; the default sandbox of {MEMORY_DEFAULT_MIB} MiB cannot fit"
    return Finding(name="memory", verdict="wrong" if low else "ok", line=line)


def _image(settings: Settings) -> Finding:
    found = ImageStore(settings.cache_dir).find(settings.image)
    if found is None:
        line = f"the image {settings.image!r} is not built yet; the first start builds it, or: runtime image build"
        return Finding(name="image", verdict="note", line=line)
    line = f"{found.name}: {found.distribution} {found.release} ({found.image_id})"
    return Finding(name="image", verdict="ok", line=line)


def _service(settings: Settings) -> Finding:
    running = StateFolder(settings.state_dir).running_service()
    if running is None:
        return Finding(name="service", verdict="note", line=f"none runs on {settings.state_dir}")
    line = f"runtimed {running['version']} answers on {running['url']} (pid {running['pid']})"
    return Finding(name="service", verdict="ok", line=line)


def _left_over(settings: Settings, fix: bool) -> list[Finding]:
    """What a killed service or build left. Whatever belongs to one that lives is not touched."""
    templates = settings.cache_dir / "templates"
    things = left_over(machines=machines_dir(settings.state_dir), templates=templates)
    folder = StateFolder(settings.state_dir)
    if folder.service_file.exists() and folder.running_service() is None:
        things.append(Leftover(line=f"the {folder.service_file.name} of a service that is gone", end=folder.withdraw))
    images = ImageStore(settings.cache_dir)
    for path in sorted(settings.cache_dir.glob(".building-*")):
        if path.exists() and not file_lock.is_held(path):  # the lock goes with its maker
            line = f"an unfinished image build ({path.name})"
            things.append(Leftover(line=line, end=lambda: _remove_builds(images)))
    if fix:
        for thing in things:
            thing.end()
    verdict: Verdict = "note" if fix else "left"
    how = "ended" if fix else "runtime doctor --fix ends it"
    found = [Finding(name="left over", verdict=verdict, line=f"{thing.line}: {how}") for thing in things]
    if count := waiting(machines_dir(settings.state_dir)):
        line = f"{counted(count, 'sandbox')} without a service: runtime server start finds them, their leases end them"
        found.append(Finding(name="sandboxes", verdict="note", line=line))
    if count := disks_waiting(machines_dir(settings.state_dir)):
        line = f"{counted(count, 'disk')} of machines that ended: kept as soon as a service runs and the host has room"
        found.append(Finding(name="disks", verdict="note", line=line))
    return found or [Finding(name="left over", verdict="ok", line="nothing")]


def _remove_builds(images: ImageStore) -> None:
    images.remove_leftovers()
