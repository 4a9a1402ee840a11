"""A distribution that fits on a page: what apt, dpkg and mmdebstrap would do, done by a runner that starts nothing.

It stands behind the whole builders, so that a test can end any of their steps in any way and look at what is left.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runtimed.images.apt_sources import SourceEntry

KERNEL = "6.12.1-cloud-amd64"
ENTRIES = [
    SourceEntry(uri="http://mirror.example/debian", suite="bookworm", components=("main",), signed_by="/keys.gpg"),
    SourceEntry(uri="http://mirror.example/security", suite="bookworm-security", components=("main",), signed_by=None),
]
PACKAGES = {
    f"linux-image-{KERNEL}": "6.12.1-1",
    "linux-image-cloud-amd64": "6.12.1-1",
    "busybox-static": "1:1.37-1",
    "python3": "3.13.5-1",
    "qemu-system-x86": "1:10.0.2+ds-1",
}


class Stopped(BaseException):
    """What Ctrl-C is to a build: no Exception, and it comes in the middle of anything."""


class FakeDistribution:
    """A Runner. `break_at` ends the call with that number by raising `error`, after half of its work is done."""

    def __init__(self, *, break_at: int | None = None, error: BaseException | None = None) -> None:
        self.calls: list[list[str]] = []
        self._break_at = break_at
        self._error = error

    def run(
        self,
        argv: Sequence[str],
        *,
        within_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        self.calls.append(list(argv))
        words = _without_container(argv)
        output = self._act(words, env or {})
        if on_line is not None:
            on_line("I: working")
        if len(self.calls) == self._break_at:
            assert self._error is not None
            raise self._error
        return output

    def _act(self, words: list[str], env: Mapping[str, str]) -> str:
        program = Path(words[0]).name
        match program:
            case "apt-config":
                return 'Acquire::http::Proxy "http://proxy.example:3128";\nDPkg::Post-Invoke "rm -rf /";\n'
            case "apt-get":
                return self._apt_get(words, Path(env["APT_CONFIG"]).parent)
            case "sh":
                return self._shell(words)
            case "mmdebstrap":
                (Path(words[-2]) / "etc").mkdir(parents=True)
                return "I: success\n"
            case "mke2fs":
                assert Path(words[-1]).stat().st_size > 0
                return ""
            case _ if "--list" in words:
                return "\tlinux-vdso.so.1 (0x1)\n"
            case _ if words[-1] == "--version":
                return "QEMU emulator version 10.0.2 (Debian)\n"
            case _:
                return ""

    def _apt_get(self, words: list[str], state: Path) -> str:
        if "--print-uris" in words:
            return "".join(
                f"'http://mirror.example/{name}.deb' {name}_{version.replace(':', '%3a')}_amd64.deb 1 SHA256:0\n"
                for name, version in PACKAGES.items()
            )
        if "--download-only" in words:
            for name in words[words.index("install") + 1 :]:
                (state / "archives" / f"{name}_1_amd64.deb").write_bytes(b"deb")
        return ""

    def _shell(self, words: list[str]) -> str:
        script, arguments = words[2], words[4:]
        if "apt-get download" in script:
            for wanted in arguments[1:]:
                name, _, version = wanted.partition("=")
                (Path(arguments[0]) / f"{name}_{version}_amd64.deb").write_bytes(b"deb")
            return ""
        if "dpkg-deb" in script:
            unpack_package(Path(arguments[0]).name.partition("_")[0], Path(arguments[1]))
            return ""
        if "du -s" in script:
            return "1024\n300\n"
        raise AssertionError(f"unknown script {script}")


def unpack_package(name: str, root: Path) -> None:
    """What the real package of that name has, as far as anybody looks at it."""
    if name == f"linux-image-{KERNEL}":
        _put(root / f"boot/vmlinuz-{KERNEL}", bzimage(gzip.compress(b"\x7fELF kernel")))
        modules = root / "usr/lib/modules" / KERNEL
        _put(modules / "modules.builtin", b"kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio.ko\n")
        for module in ("virtio_ring", "virtio_mmio", "virtio_blk", "virtio_console", "dummy", "nf_tables", "nf_nat"):
            _put(modules / f"kernel/{module}.ko", kernel_module(depends=""))
        for module in ("nf_conntrack", "nft_chain_nat", "nft_redir", "nft_ct", "nft_reject_inet"):
            _put(modules / f"kernel/{module}.ko", kernel_module(depends="nf_tables"))
    elif name == "busybox-static":
        _put(root / "usr/bin/busybox", b"busybox")
    elif name == "python3":
        _put(root / "usr/bin/python3.13", b"python")
        _put(root / "usr/lib/python3.13/os.py", b"")
        _put(root / "usr/lib/python3.13/test/big.py", b"")
        for path in ("usr/sbin/nft", "usr/sbin/resize2fs", "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"):
            _put(root / path, b"program")
    elif name == "qemu-system-x86":
        for path in ("usr/bin/qemu-system-x86_64", "usr/bin/qemu-img", "usr/bin/mount", "usr/sbin/useradd"):
            _put(root / path, b"program")
        _put(root / "usr/share/qemu/pvh.bin", b"rom")


def bzimage(payload: bytes) -> bytes:
    """A kernel image as the boot protocol lays it out: one setup sector, then the payload."""
    image = bytearray(1024)
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 0, len(payload))
    return bytes(image) + payload


def kernel_module(*, depends: str) -> bytes:
    """An ELF file with the one section that says what a module depends on."""
    info = b"license=GPL\0depends=" + depends.encode() + b"\0"
    names = b"\0.modinfo\0.shstrtab\0"
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    sections = (
        bytes(64)
        + struct.pack("<IIQQQQ", 1, 1, 0, 0, 64, len(info)).ljust(64, b"\0")
        + struct.pack("<IIQQQQ", 10, 3, 0, 0, 64 + len(info), len(names)).ljust(64, b"\0")
    )
    struct.pack_into("<Q", header, 0x28, 64 + len(info) + len(names))
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)
    return bytes(header) + info + names + sections


def _without_container(argv: Sequence[str]) -> list[str]:
    words = list(argv)
    return words[words.index("--mount-proc") + 1 :] if words[0] == "setpriv" else words


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
