"""Makes the kernel, the first root filesystem and the network modules of a distribution release.

The kernel comes from the distribution's own package, is unpacked and never installed on the host.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from runtimed.images.apt_sources import Archive
from runtimed.images.cache import Workplace
from runtimed.images.cpio import CpioEntry, character_device, directory, regular_file, symlink, write_cpio
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.kernel_modules import KernelModule, ModuleTree
from runtimed.images.private_apt import open_apt, unpack
from runtimed.images.recipe import boot_file
from runtimed.images.run import Progress, Runner
from runtimed.images.vmlinux import extract_vmlinux

FORMAT = 2
"""Part of every kernel's address: raise it when what is made of the same package changes."""

INITRD_MULTIPLE_BYTES = 4096
"""QEMU loads the initrd to the very end of low memory, where a microvm's firmware has put the ACPI tables just before.

Its start is rounded down to a page, so its end lies anywhere in the last page and, for some sizes, destroys the tables:
the kernel hangs at "ACPI: Core revision". A whole number of pages leaves the last page alone.
"""
NEEDS_MIB = 768

KERNEL_PACKAGES = {"debian": "linux-image-cloud-amd64", "ubuntu": "linux-image-virtual"}
BOOT_MODULES = ("virtio", "virtio_ring", "virtio_mmio", "virtio_blk", "virtio_console", "ext4")
"""What must be there before the root filesystem is; a distribution has some of them built in."""
NETWORK_MODULES = (
    "dummy",
    "nf_tables",
    "nf_conntrack",
    "nf_nat",
    "nft_chain_nat",
    "nft_redir",
    "nft_ct",
    "nft_reject_inet",
)
"""For the guest without a network card. On the agent's disk, because a boot does not need them."""

_BUSYBOX_COMMANDS = ("[", "cat", "echo", "insmod", "mkdir", "mount", "reboot", "sh", "sleep", "switch_root")
_INIT = "initramfs-init.sh"


def kernel_address(distribution: str, release: str) -> str:
    """Names the kernel of a release as we make it now."""
    recipe = [
        FORMAT,
        distribution,
        release,
        KERNEL_PACKAGES[distribution],
        BOOT_MODULES,
        NETWORK_MODULES,
        boot_file(_INIT),
    ]
    return "krn_" + hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:20]


def build_kernel(archive: Archive, release: str, place: Workplace, runner: Runner, progress: Progress) -> None:
    """Makes `vmlinux`, `initrd.cpio`, `busybox`, `modules/*.ko` with `modules/network.order`, and `kernel.json`."""
    progress(f"fetching the kernel of {release}", None)
    apt, _ = open_apt(place.work, archive, release, runner)
    wanted = apt.closure([KERNEL_PACKAGES[archive.distribution], "busybox-static"])
    ours = [package for package in wanted if re.match(r"linux-(image|modules)-\d|busybox-static$", package.name)]
    root = unpack(apt.download(ours), place.work / "root", runner)
    progress("unpacking the kernel", None)
    (place.result / "vmlinux").write_bytes(extract_vmlinux(_only(root.glob("boot/vmlinuz-*"), "kernel").read_bytes()))
    busybox = _only(root.glob("usr/bin/busybox"), "busybox").read_bytes()
    (place.result / "busybox").write_bytes(busybox)
    (place.result / "busybox").chmod(0o755)
    folder = _only(root.glob("usr/lib/modules/*"), "folder of modules")
    tree = ModuleTree(folder)
    first = write_cpio(initramfs(busybox, tree.in_order(BOOT_MODULES)))
    first += b"\0" * (-len(first) % INITRD_MULTIPLE_BYTES)
    (place.result / "initrd.cpio").write_bytes(first)
    _write_modules(place.result / "modules", tree.in_order(NETWORK_MODULES))
    (place.result / "kernel.json").write_text(json.dumps({"version": folder.name, "release": release}, indent=2) + "\n")


def initramfs(busybox: bytes, modules: Sequence[KernelModule]) -> list[CpioEntry]:
    """The members of the first root filesystem; `modules` in the order in which they are inserted."""
    return [
        *(directory(name) for name in ("bin", "dev", "proc", "sys", "newroot", "modules")),
        character_device("dev/console", 5, 1),  # before devtmpfs is mounted, the first program's output goes here
        regular_file("bin/busybox", busybox, 0o755),
        *(symlink(f"bin/{name}", "busybox") for name in _BUSYBOX_COMMANDS),
        *(regular_file(f"modules/{module.name}.ko", module.content) for module in modules),
        regular_file("modules/order", _order(modules).encode()),
        regular_file("init", boot_file(_INIT).encode(), 0o755),
    ]


def _write_modules(folder: Path, modules: Sequence[KernelModule]) -> None:
    folder.mkdir()
    for module in modules:
        (folder / f"{module.name}.ko").write_bytes(module.content)
    (folder / "network.order").write_text(_order(modules))


def _order(modules: Sequence[KernelModule]) -> str:
    return "".join(module.name + "\n" for module in modules)


def _only(paths: Iterable[Path], what: str) -> Path:
    found = sorted(paths)
    if len(found) != 1:
        raise ImageBuildFailed(f"The packages hold {len(found)} {what} where one was expected; choose another release.")
    return found[0]
