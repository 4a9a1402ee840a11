"""The kernel is unpacked, its modules can be inserted in their order, and the first filesystem is well-formed."""

from __future__ import annotations

import ctypes
import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimed.images.apt_sources import choose_archive
from runtimed.images.cache import Workplace
from runtimed.images.cpio import character_device, directory, regular_file, symlink, write_cpio
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.kernel import build_kernel
from runtimed.images.kernel_modules import ModuleTree
from runtimed.images.run import silent
from runtimed.images.vmlinux import extract_vmlinux

from .distribution import ENTRIES, FakeDistribution, bzimage, kernel_module

KERNEL = b"\x7fELF" + bytes(range(256)) * 5000


def _with_size(packed: bytes) -> bytes:
    return packed + struct.pack("<I", len(KERNEL))


def _lz4(data: bytes) -> bytes:
    library = ctypes.CDLL("liblz4.so.1")
    out = ctypes.create_string_buffer(len(data) + 4096)
    size = library.LZ4_compress_default(data, out, len(data), len(out))
    return b"\x02\x21\x4c\x18" + struct.pack("<I", size) + out.raw[:size]


def _zstd(data: bytes) -> bytes:
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compress.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t),
        ctypes.c_int,
    ]
    out = ctypes.create_string_buffer(len(data) + 4096)
    size = library.ZSTD_compress(out, len(out), data, len(data), 3)
    return out.raw[:size]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lambda data: _with_size(lzma.compress(data)),
    "lz4": lambda data: _with_size(_lz4(data)),
    "zstd": lambda data: _with_size(_zstd(data)),
}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS.keys())
def test_a_kernel_is_unpacked_however_it_was_packed(pack: Callable[[bytes], bytes]) -> None:
    assert extract_vmlinux(bzimage(pack(KERNEL))) == KERNEL


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "no x86 bzImage"),
        (bytes(4096), "no x86 bzImage"),
        (bzimage(b"BZh9" + bytes(64)), "unknown way"),
        (bzimage(b"\x28\xb5\x2f\xfd" + bytes(64) + struct.pack("<I", 4096)), "could not be unpacked"),
        (bzimage(b"\x02\x21\x4c\x18" + struct.pack("<I", 8) + bytes(8) + struct.pack("<I", 99)), "could not be"),
        (bzimage(gzip.compress(b"not a program")), "could not be unpacked"),
        (bzimage(b"\x28\xb5\x2f\xfd" + struct.pack("<I", 0xFFFFFFFF)), "absurd"),
    ],
    ids=["empty", "zeros", "another packer", "cut short", "broken lz4", "no program inside", "absurd size"],
)
def test_what_is_no_kernel_is_refused(image: bytes, reason: str) -> None:
    with pytest.raises(ImageBuildFailed, match=reason):
        extract_vmlinux(image)


@pytest.fixture
def tree(tmp_path: Path) -> ModuleTree:
    modules = {"a.ko": "b-c,d", "b-c.ko.xz": "d", "d.ko": "built_in", "lonely.ko": ""}
    for name, depends in modules.items():
        content = kernel_module(depends=depends)
        (tmp_path / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    (tmp_path / "modules.builtin").write_text("kernel/built-in.ko\n")
    return ModuleTree(tmp_path)


def test_modules_come_after_all_that_they_depend_on(tree: ModuleTree) -> None:
    assert [module.name for module in tree.in_order(["a", "lonely", "d"])] == ["d", "b_c", "a", "lonely"]


def test_what_is_built_in_is_not_inserted(tree: ModuleTree) -> None:
    assert tree.in_order(["built_in"]) == []


def test_packed_modules_are_unpacked(tree: ModuleTree) -> None:
    (module,) = (module for module in tree.in_order(["a"]) if module.name == "b_c")

    assert module.content.startswith(b"\x7fELF")


def test_a_module_that_the_kernel_does_not_have_is_named(tree: ModuleTree) -> None:
    with pytest.raises(ImageBuildFailed, match="no module virtio_gpu"):
        tree.in_order(["virtio_gpu"])


def read_cpio(archive: bytes) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    """Mode, content and device of each member, read by the format's own description."""
    members: dict[str, tuple[int, bytes, tuple[int, int]]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        name_at = at + 110
        name = archive[name_at : name_at + fields[11] - 1].decode()
        content_at = (name_at + fields[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            return members
        members[name] = (fields[1], archive[content_at : content_at + fields[6]], (fields[9], fields[10]))
        at = (content_at + fields[6] + 3) // 4 * 4


def test_the_first_filesystem_reads_back_as_it_was_written() -> None:
    archive = write_cpio(
        [
            directory("dev"),
            character_device("dev/console", 5, 1),
            regular_file("init", b"#!/bin/sh\n", 0o755),
            symlink("bin/sh", "busybox"),
            regular_file("odd", b"12345"),
        ]
    )

    assert read_cpio(archive) == {
        "dev": (0o040755, b"", (0, 0)),
        "dev/console": (0o020600, b"", (5, 1)),
        "init": (0o100755, b"#!/bin/sh\n", (0, 0)),
        "bin/sh": (0o120777, b"busybox", (0, 0)),
        "odd": (0o100644, b"12345", (0, 0)),
    }


def test_the_first_filesystem_leaves_the_last_page_of_memory_to_the_firmware(tmp_path: Path) -> None:
    place = Workplace(result=tmp_path / "result", work=tmp_path / "work")
    place.result.mkdir()
    place.work.mkdir()
    archive = choose_archive(ENTRIES, "debian", host_release="bookworm")
    build_kernel(archive, "trixie", place, FakeDistribution(), silent)
    initrd = (place.result / "initrd.cpio").read_bytes()

    assert len(initrd) % 4096 == 0
    assert set(read_cpio(initrd)) > {"init", "bin/busybox", "modules/virtio_blk.ko"}
    assert read_cpio(initrd)["modules/order"][1].split() == [
        *(b"virtio_ring", b"virtio_mmio", b"virtio_blk", b"virtio_console"),
    ]
