"""Makes one file of a template's memory and captured pages, for many copies to share without writing it into each."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from runtimed.node.vmm import difference
from runtimed.node.vmm.argv import DISK, MEMORY
from runtimed.node.vmm.base import Template
from runtimed.node.vmm.blank import EMPTY
from runtimed.node.vmm.linking import link_or_copy
from runtimed.node.vmm.qemu import PAGES, TABLE

COPY_BYTES = 4 << 20


def merged_base(directory: Path, template: Template, captured: Path) -> Template:
    """A template whose memory already has the captured pages; `captured` then has none of its own.

    Raises:
        OSError: no room; nothing of `directory` may be used.
    """
    directory.mkdir(mode=0o700)
    memory = directory / MEMORY
    _copy_sparse(template.directory / MEMORY, memory)
    _write_pages(memory, captured)
    memory.chmod(0o444)
    for name in (DISK, EMPTY):
        link_or_copy(template.directory / name, directory / name)
    for name, nothing in ((TABLE, b"[]"), (PAGES, b"")):
        (captured / name).unlink()  # a snapshot may have the same file
        (captured / name).write_bytes(nothing)
    return Template(key=directory.name, directory=directory)


def _copy_sparse(source: Path, target: Path) -> None:
    """Only what is there: a template's memory is mostly holes."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as failure:
                if failure.errno == errno.ENXIO:  # nothing but a hole is left
                    return
                raise
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < end:
                piece = os.pread(old.fileno(), min(COPY_BYTES, end - at), at)
                os.pwrite(new.fileno(), piece, at)
                at += len(piece)


def _write_pages(memory: Path, captured: Path) -> None:
    with memory.open("r+b") as target, (captured / PAGES).open("rb") as pages:
        for run in difference.read_table(captured / TABLE):
            target.seek(run.offset)
            left = run.length
            while left:
                piece = pages.read(min(COPY_BYTES, left))
                if not piece:
                    raise EOFError("the file of saved pages is shorter than its table")
                target.write(piece)
                left -= len(piece)
