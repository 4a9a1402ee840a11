"""A program that a build starts never outlives the build."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from runtimed.images.errors import BuildStopped, CommandFailed, ToolMissing
from runtimed.images.run import HostRunner, contained

WAIT_S = 20
STARTS_A_CHILD = 'sleep 600 & echo "$!" > "$1"; echo started; wait'


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def child_ends(tmp_path: Path) -> bool:
    """The child was killed before the call returned; the kernel may take a moment to take it away."""
    pid = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + WAIT_S
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_what_a_program_says_is_answered_and_told_along() -> None:
    told: list[str] = []
    output = HostRunner().run(["sh", "-c", "echo one; echo two >&2"], within_s=WAIT_S, on_line=told.append)

    assert output == "one\ntwo\n"
    assert told == ["one", "two"]


def test_a_program_that_says_no_is_an_error_with_its_last_lines() -> None:
    with pytest.raises(CommandFailed, match=r"sh ended with code 3: .*the reason") as caught:
        HostRunner().run(["sh", "-c", "echo the reason; exit 3"], within_s=WAIT_S)

    assert caught.value.details["code"] == 3


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(ToolMissing, match="apt-get install mmdebstrap"):
        HostRunner().run(["mmdebstrap"], within_s=WAIT_S, env={"PATH": "/nonexistent"})


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="did not end in time"):
        HostRunner().run(["sh", "-c", STARTS_A_CHILD, "sh", str(tmp_path / "child")], within_s=0.5)

    assert child_ends(tmp_path)


def test_an_exception_in_the_middle_ends_the_program_with_its_children(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HostRunner().run(
            ["sh", "-c", STARTS_A_CHILD, "sh", str(tmp_path / "child")], within_s=WAIT_S, on_line=interrupt
        )

    assert child_ends(tmp_path)


def test_stopping_from_another_thread_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    runner = HostRunner()
    stopper = threading.Thread(target=runner.stop)

    with pytest.raises(BuildStopped):
        runner.run(
            ["sh", "-c", STARTS_A_CHILD, "sh", str(tmp_path / "child")],
            within_s=WAIT_S,
            on_line=lambda line: stopper.start(),
        )
    stopper.join(WAIT_S)

    assert child_ends(tmp_path)
    with pytest.raises(BuildStopped):
        runner.run(["true"], within_s=WAIT_S)


@pytest.fixture
def may_contain() -> None:
    try:
        HostRunner().run(contained(["true"]), within_s=WAIT_S)
    except CommandFailed as error:
        pytest.skip(f"no namespaces here: {error.message}")


@pytest.mark.usefixtures("may_contain")
def test_a_contained_program_is_root_and_alone_and_gone_when_the_call_ends(tmp_path: Path) -> None:
    escaped = 'id -u; echo $$; setsid sleep 600 > /dev/null 2>&1 & sleep 0; echo "${!}" > /dev/null'
    output = HostRunner().run(contained(["sh", "-c", f"{escaped}; ps -e | wc -l || true"]), within_s=WAIT_S)

    assert output.split()[:2] == ["0", "1"]
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs(pid, ["sleep", "600"])]


def _runs(pid: str, argv: list[str]) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] == [word.encode() for word in argv]
    except OSError:
        return False
