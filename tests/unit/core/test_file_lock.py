"""A lock is its holder's alone, goes with it, and asking for it disturbs nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimed.core import file_lock

HOLD = """
import sys
from pathlib import Path
from runtimed.core import file_lock
with file_lock.held(Path(sys.argv[1]), shared=sys.argv[2] == "shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_holds(path: Path, *, shared: bool = False) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLD, str(path), "shared" if shared else "alone"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["file", "folder"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / "lock" if request.param == "file" else tmp_path


def test_a_lock_that_another_process_holds_is_not_taken(path: Path) -> None:
    with another_holds(path):
        assert file_lock.is_held(path)
        assert file_lock.take(path) is None
        assert file_lock.take(path, shared=True) is None
        with file_lock.held_for_life(path) as handle:
            assert handle is None


def test_the_lock_of_a_killed_process_is_free(path: Path) -> None:
    with another_holds(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not file_lock.is_held(path)
        with file_lock.held_for_life(path) as handle:
            assert handle is not None
            assert file_lock.is_held(path)
    assert not file_lock.is_held(path)


def test_a_shared_lock_is_shared_with_those_who_share(path: Path) -> None:
    with another_holds(path, shared=True), file_lock.held(path, shared=True, on_wait=_never):
        assert file_lock.take(path) is None


def test_whoever_waits_says_so_and_gets_it_when_it_is_free(path: Path) -> None:
    said = threading.Event()
    with another_holds(path) as process:
        with contextlib.ExitStack() as later:
            later.callback(process.wait)
            ender = threading.Thread(target=lambda: (said.wait(10), process.kill()))
            ender.start()
            later.callback(ender.join)
            with file_lock.held(path, on_wait=said.set):
                assert said.is_set()


def test_a_service_starts_while_others_only_ask_whether_one_lives(tmp_path: Path) -> None:
    """The guard and the SDK ask each second; a start that met one of them said that a service ran already."""
    lock = tmp_path / "lock"
    probe = file_lock.take(lock, shared=True)
    assert probe is not None
    asking = threading.Timer(file_lock.PROBE_S / 4, os.close, [probe])
    asking.start()
    with file_lock.held_for_life(lock) as handle:
        assert handle is not None
    asking.join()


def test_nothing_is_not_held(tmp_path: Path) -> None:
    assert not file_lock.is_held(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def _never() -> None:
    raise AssertionError("it had to wait")
