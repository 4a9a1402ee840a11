"""Finds which kernel modules a wish list needs, in the order in which they can be inserted."""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtimed.images.errors import ImageBuildFailed
from runtimed.images.unpacking import unpack_zstd, zstd_size

MODULE_MAX_BYTES = 64 << 20
"""The largest modules of a distribution have a few MiB."""


@dataclass(frozen=True, kw_only=True)
class KernelModule:
    """One module, decompressed: `content` is what insmod reads."""

    name: str
    content: bytes


class ModuleTree:
    """The modules of one unpacked kernel package, `ROOT/lib/modules/RELEASE`."""

    def __init__(self, folder: Path) -> None:
        self._files = {_module_name(path.name): path for path in sorted(folder.rglob("*.ko*"))}
        self._builtin = {
            _module_name(Path(line).name)
            for line in (folder / "modules.builtin").read_text(encoding="ascii").splitlines()
        }

    def in_order(self, wanted: Iterable[str]) -> list[KernelModule]:
        """The wanted modules and all that they depend on, dependencies first; what is built in is left out.

        Raises ImageBuildFailed for a name which this kernel does not have at all.
        """
        done: dict[str, KernelModule] = {}
        for name in wanted:
            self._visit(name, done)
        return list(done.values())

    def _visit(self, name: str, done: dict[str, KernelModule]) -> None:
        if name in done or name in self._builtin:
            return
        path = self._files.get(name)
        if path is None:
            raise ImageBuildFailed(
                f"The kernel package has no module {name}; choose another kernel release in the recipe."
            )
        content = _read(path)
        for dependency in _depends(content):
            self._visit(dependency, done)
        done[name] = KernelModule(name=name, content=content)


def _read(path: Path) -> bytes:
    """The module as insmod wants it. Raises ImageBuildFailed if it is packed in a way that we do not know."""
    content = path.read_bytes()
    if path.suffix == ".xz":
        content = lzma.decompress(content)
    elif path.suffix == ".gz":
        content = gzip.decompress(content)
    elif path.suffix == ".zst":
        size = zstd_size(content)
        content = unpack_zstd(content, size) if size is not None and size <= MODULE_MAX_BYTES else b""
    if content[:4] != b"\x7fELF":
        raise ImageBuildFailed(f"The kernel module {path.name} cannot be unpacked; choose another kernel release.")
    return content


def _module_name(file_name: str) -> str:
    return file_name.split(".ko")[0].replace("-", "_")


def _depends(module: bytes) -> list[str]:
    for item in _section(module, b".modinfo").split(b"\0"):
        key, _, value = item.partition(b"=")
        if key == b"depends":
            return [name.replace("-", "_") for name in value.decode("ascii").split(",") if name]
    return []


def _section(elf: bytes, wanted: bytes) -> bytes:
    """The bytes of one section of a 64-bit little-endian ELF file; empty if it has none of that name."""
    (table_offset,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table_offset + index * entry_size) for index in range(count)]
    names_offset = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names_offset + name
        if elf[start : elf.index(b"\0", start)] == wanted:
            return elf[offset : offset + size]
    return b""
