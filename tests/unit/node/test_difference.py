"""Which memory a clone owns, and how it is put back, on a process with a private mapping like QEMU's."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.node.vmm import difference
from runtimed.node.vmm.difference import PAGE, Run, joined

PAGES = 64
CHILD = """
import mmap, sys
memory = open(sys.argv[1], 'rb')
mine = mmap.mmap(memory.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
for page in map(int, sys.argv[2].split(',')):
    mine[page * 4096 : page * 4096 + 4] = b'mine'
sum(mine[:: 4096])  # every other page is read, which does not make it one's own
print('ready', flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes([7]) * (PAGES * PAGE))
    return path


@pytest.fixture
def clone(memory: Path) -> Iterator[int]:
    """A process that has written pages 3, 4 and 60 of its private mapping."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(memory), "3,4,60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.kill()
    process.communicate()


def spans(pid: int, memory: Path) -> list[difference.Span]:
    return difference.spans(pid, memory.stat().st_ino)


def test_only_written_pages_are_owned(clone: int, memory: Path) -> None:
    assert difference.owned(clone, spans(clone, memory)) == [
        Run(offset=3 * PAGE, length=2 * PAGE),
        Run(offset=60 * PAGE, length=PAGE),
    ]


def test_kernels_without_the_scan_give_the_same_answer(
    clone: int, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_scan = difference.owned(clone, spans(clone, memory))

    def none(handle: int, span: difference.Span) -> Iterator[tuple[int, int]]:
        raise OSError(25, "no such ioctl")
        yield 0, 0

    monkeypatch.setattr(difference, "_scan_in_kernel", none)

    assert difference.owned(clone, spans(clone, memory)) == with_scan


def test_what_is_copied_out_of_one_clone_comes_into_another(clone: int, memory: Path, tmp_path: Path) -> None:
    runs = difference.owned(clone, spans(clone, memory))
    written = difference.copy_to_file(clone, spans(clone, memory), runs, tmp_path / "pages")
    target = mmap.mmap(os.open(memory, os.O_RDONLY), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    difference.copy_from_file(os.getpid(), spans(os.getpid(), memory), runs, tmp_path / "pages")

    assert written == 3 * PAGE
    mine = [page for page in range(PAGES) if target[page * PAGE : page * PAGE + 4] == b"mine"]
    assert mine == [3, 4, 60]


def test_pages_that_are_missing_at_the_end_are_noticed(clone: int, memory: Path, tmp_path: Path) -> None:
    runs = difference.owned(clone, spans(clone, memory))
    difference.copy_to_file(clone, spans(clone, memory), runs, tmp_path / "pages")
    os.truncate(tmp_path / "pages", PAGE)

    with pytest.raises(EOFError):
        difference.copy_from_file(clone, spans(clone, memory), runs, tmp_path / "pages")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=20))
def test_joined_runs_hold_each_byte_once_and_lose_none(pairs: list[tuple[int, int]]) -> None:
    runs = [Run(offset=offset, length=length) for offset, length in pairs]
    found = joined(runs)

    wanted = {byte for run in runs for byte in range(run.offset, run.offset + run.length)}
    held = [byte for run in found for byte in range(run.offset, run.offset + run.length)]
    assert sorted(wanted) == held
