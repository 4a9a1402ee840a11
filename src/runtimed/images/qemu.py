"""Finds a QEMU that is new enough on the host, or unpacks the distribution's newest into the cache.

8.2 or newer is required: an older one opens the memory file of a template for writing even for a private clone, so
one compromised machine could poison all later ones.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from runtimed.core.boot import QemuInstall
from runtimed.images.apt_sources import Archive, SourceEntry, host_archive, host_entries, host_release_name
from runtimed.images.cache import Artifact, Cache, Workplace
from runtimed.images.errors import CommandFailed, ImageBuildFailed, ToolMissing
from runtimed.images.private_apt import Package, PrivateApt, unpack
from runtimed.images.run import HostRunner, Progress, Runner, silent

KIND = "qemu"
"""Its folder of the cache."""
FORMAT = 1
"""Part of the address: raise it when what is kept of the same packages changes."""
NEEDS_MIB = 768

OLDEST = (8, 2, 0)
_PACKAGES = ("qemu-system-x86", "qemu-utils", "util-linux")
_BINARY, _IMG = "usr/bin/qemu-system-x86_64", "usr/bin/qemu-img"
_KEPT_PROGRAMS = ("qemu-system-x86_64", "qemu-img", "setpriv")
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DATA = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")
_MOUNT_POINTS = ("dev", "proc", "sys", "run", "tmp")
_VERSION_WITHIN_S = 30


def ensure_qemu(
    cache_dir: Path,
    progress: Progress = silent,
    *,
    runner: Runner | None = None,
    sources: Callable[[], list[SourceEntry]] = host_entries,
) -> QemuInstall:
    """The host's QEMU if it is new enough, else the cache's, fetched now if it is missing. Idempotent; blocks.

    Raises ImageBuildFailed with the way out.
    """
    runner = runner or HostRunner()
    if install := find_host_qemu(runner):
        return install
    archive = host_archive(sources(), host_release_name())

    def make(place: Workplace) -> None:
        build_qemu(archive, place, runner, progress)

    artifact = Artifact(kind=KIND, key=qemu_address(archive), needs_mib=NEEDS_MIB, make=make)
    return read_install(Cache(cache_dir).ensure(artifact, progress))


def find_host_qemu(runner: Runner) -> QemuInstall | None:
    """The host's own QEMU, if it has both programs and is new enough."""
    system, img = shutil.which("qemu-system-x86_64"), shutil.which("qemu-img")
    if system is None or img is None:
        return None
    try:
        version = _version_of((system,), runner)
        machines = runner.run([system, "-M", "help"], within_s=_VERSION_WITHIN_S)
    except (CommandFailed, ToolMissing):
        return None
    if version < OLDEST or not re.search(r"^microvm\s", machines, re.MULTILINE):
        return None
    return QemuInstall(root=None, argv=(system,), img_argv=(img,), jail_argv=(system,), version=version)


def current_key(sources: Callable[[], list[SourceEntry]] = host_entries) -> str:
    """The private QEMU that a start on this host would fetch. Raises ImageBuildFailed."""
    return qemu_address(host_archive(sources(), host_release_name()))


def qemu_address(archive: Archive) -> str:
    recipe = [FORMAT, archive.distribution, archive.host_release, _PACKAGES, _KEPT_PROGRAMS, OLDEST]
    return "qemu_" + hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:20]


def build_qemu(archive: Archive, place: Workplace, runner: Runner, progress: Progress) -> None:
    """Makes `root/` from the host release's own packages, or from its backports where those are too old.

    Of the host's release and not of a newer one: its keys and its mirror are the ones that the host has for sure.
    """
    progress(f"fetching QEMU for {archive.host_release}", None)
    apt, suite = _apt_with_new_qemu(archive, place.work, runner)
    root = unpack(apt.download_closure(_PACKAGES, suite=suite), place.result / "root", runner)
    _keep_only_what_runs(root)
    install = installed_at(root, (0, 0, 0))
    version = _version_of(install.argv, runner)
    if version < OLDEST:
        raise ImageBuildFailed(_too_old(version))
    (place.result / "qemu.json").write_text(json.dumps({"version": version}) + "\n")


def read_install(folder: Path) -> QemuInstall:
    """The QEMU in a finished artifact."""
    first, second, third = json.loads((folder / "qemu.json").read_text())["version"]
    return installed_at(folder / "root", (first, second, third))


def installed_at(root: Path, version: tuple[int, int, int]) -> QemuInstall:
    """How to start the programs of an unpacked root; outside a jail through its own loader, whatever the host has."""
    start = (str(root / _LOADER), "--library-path", str(root / _LIBRARIES))
    data = tuple(word for folder in _DATA if (root / folder).is_dir() for word in ("-L", str(root / folder)))
    return QemuInstall(
        root=root,
        argv=(*start, str(root / _BINARY), *data),
        img_argv=(*start, str(root / _IMG)),
        jail_argv=(f"/{_BINARY}",),
        version=version,
    )


def _apt_with_new_qemu(archive: Archive, work: Path, runner: Runner) -> tuple[PrivateApt, str | None]:
    release = archive.host_release
    apt = PrivateApt(work / "apt", archive.entries(release), runner)
    apt.update()
    found = qemu_version(apt.closure(_PACKAGES))
    if found >= OLDEST:
        return apt, None
    apt = PrivateApt(work / "backports", archive.entries(release, backports=True), runner)
    apt.update()
    suite = f"{release}-backports"
    found = qemu_version(apt.closure(_PACKAGES, suite=suite))
    if found < OLDEST:
        raise ImageBuildFailed(_too_old(found))
    return apt, suite


def _too_old(found: tuple[int, int, int]) -> str:
    shown, oldest = ".".join(map(str, found)), ".".join(map(str, OLDEST))
    return f"The newest QEMU of this release is {shown} and {oldest} is needed: install one as qemu-system-x86_64."


def qemu_version(packages: Iterable[Package]) -> tuple[int, int, int]:
    """The upstream version of qemu-system-x86 among the packages; all zero if it is not there."""
    for package in packages:
        if package.name == "qemu-system-x86":
            return parse_version(package.version)
    return (0, 0, 0)


def parse_version(text: str) -> tuple[int, int, int]:
    """The first version number in a text: "QEMU emulator version 10.0.2 (...)", "1:8.2.2+ds-0ubuntu1"."""
    found = re.search(r"(?:^|:|version |\s)(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _version_of(argv: Iterable[str], runner: Runner) -> tuple[int, int, int]:
    return parse_version(runner.run([*argv, "--version"], within_s=_VERSION_WITHIN_S))


def _keep_only_what_runs(root: Path) -> None:
    """Less to read for who looks after the jail, and no program that a broken-out guest could find useful."""
    for folder in ("usr/bin", "usr/sbin"):
        for program in (root / folder).iterdir():
            if program.name not in _KEPT_PROGRAMS:
                program.unlink()
    shutil.rmtree(root / "var", ignore_errors=True)
    shutil.rmtree(root / "etc", ignore_errors=True)
    for shared in (root / "usr/share").iterdir():
        if shared.name not in ("qemu", "seabios"):
            shutil.rmtree(shared)
    for folder in ("usr/libexec", "usr/lib/systemd", "usr/lib/udev", "usr/lib/init", "usr/include", "usr/games"):
        shutil.rmtree(root / folder, ignore_errors=True)
    loader = root / _LOADER
    if loader.is_symlink():
        # The package's link is absolute: outside a jail it would lead to the host's loader.
        loader.unlink()
        loader.symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for name in _MOUNT_POINTS:
        (root / name).mkdir(exist_ok=True)
