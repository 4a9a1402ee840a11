"""Each artifact is made once, whole or not at all, whoever asks for it and however its maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtimed.images.cache import Artifact, Cache, Workplace
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.run import silent

WAIT_S = 20


def write_one(place: Workplace) -> None:
    (place.work / "scratch").write_text("scratch")
    (place.result / "file").write_text("made")


def artifact(make: object = write_one, *, needs_mib: int = 0) -> Artifact:
    assert callable(make)
    return Artifact(kind="things", key="one", needs_mib=needs_mib, make=make)


def test_the_result_appears_and_the_scratch_does_not(tmp_path: Path) -> None:
    folder = Cache(tmp_path).ensure(artifact(), silent)

    assert [path.name for path in folder.iterdir()] == ["file"]
    assert [path.name for path in tmp_path.iterdir() if path.name != ".locks"] == ["things"]


def test_two_who_ask_at_once_get_one_build(tmp_path: Path) -> None:
    made: list[str] = []
    both = threading.Barrier(2, timeout=WAIT_S)
    first_is_in = threading.Event()
    second_waits = threading.Event()

    def make(place: Workplace) -> None:
        made.append("built")
        first_is_in.set()
        assert second_waits.wait(WAIT_S), "the second never came to wait"
        write_one(place)

    def ask() -> None:
        both.wait()
        Cache(tmp_path).ensure(artifact(make), lambda line, share: second_waits.set())

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert first_is_in.is_set()
    assert made == ["built"]


MAKER = """
import sys, time
from pathlib import Path
from runtimed.images.cache import Artifact, Cache
def make(place):
    (place.result / "half").write_text("half")
    print("in the middle", flush=True)
    sys.stdin.read()
Cache(Path(sys.argv[1])).ensure(Artifact(kind="things", key="one", needs_mib=0, make=make), lambda line, share: None)
"""


@pytest.fixture
def maker_in_the_middle(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"
    return process


def test_what_a_killed_maker_left_is_removed_by_the_next(
    tmp_path: Path, maker_in_the_middle: subprocess.Popen[str]
) -> None:
    os.kill(maker_in_the_middle.pid, signal.SIGKILL)
    maker_in_the_middle.communicate(timeout=WAIT_S)
    assert len(list(tmp_path.glob(".building-*"))) == 1

    folder = Cache(tmp_path).ensure(artifact(), silent)

    assert list(tmp_path.glob(".building-*")) == []
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_maker_at_work_is_left_alone(tmp_path: Path, maker_in_the_middle: subprocess.Popen[str]) -> None:
    assert Cache(tmp_path).remove_leftovers() == []

    maker_in_the_middle.communicate("", timeout=WAIT_S)

    assert maker_in_the_middle.returncode == 0
    assert (Cache(tmp_path).path("things", "one") / "half").exists()


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_may_try(tmp_path: Path) -> None:
    def fail(place: Workplace) -> None:
        write_one(place)
        raise ImageBuildFailed("no")

    with pytest.raises(ImageBuildFailed):
        Cache(tmp_path).ensure(artifact(fail), silent)

    assert [path.name for path in tmp_path.iterdir()] == [".locks"]
    assert Cache(tmp_path).ensure(artifact(), silent).is_dir()


def test_too_little_space_is_said_before_anything_is_made(tmp_path: Path) -> None:
    def never(place: Workplace) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ImageBuildFailed, match=r"needs 1000000000 MiB .* RUNTIME_CACHE_DIR"):
        Cache(tmp_path).ensure(artifact(never, needs_mib=1_000_000_000), silent)


def test_a_cache_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ImageBuildFailed, match="cannot be made"):
        Cache(tmp_path / "file" / "cache").ensure(artifact(), silent)


def test_removing_is_at_once_and_says_whether_there_was_anything(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.ensure(artifact(), silent)

    assert cache.remove("things", "one") is True
    assert cache.find("things", "one") is None
    assert cache.remove("things", "one") is False
    assert list(tmp_path.glob(".building-*")) == []
