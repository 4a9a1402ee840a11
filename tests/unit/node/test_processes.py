"""A process is known by more than its pid."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from runtimed.node.vmm import journal
from runtimed.node.vmm.processes import end, mark, same


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_a_marked_process_is_ended_and_then_no_longer_the_same() -> None:
    process = sleeper()
    seen = mark(process.pid)
    assert seen is not None and same(seen)

    end(seen)

    assert process.wait(timeout=10) == -9
    assert not same(seen)


def test_a_pid_that_changed_hands_is_never_signalled() -> None:
    process = sleeper()
    seen = mark(process.pid)
    assert seen is not None

    end(replace(seen, start_ticks=seen.start_ticks - 1))

    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_zombie_counts_as_gone() -> None:
    process = sleeper()
    seen = mark(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert seen is not None and not same(seen)
    process.wait()


def test_a_machine_is_left_over_exactly_when_its_service_is_gone(tmp_path: Path) -> None:
    ours, other = mark(os.getpid()), sleeper()
    theirs = mark(other.pid)
    for name, owner in (("kept", ours), ("left", theirs)):
        (tmp_path / name).mkdir()
        journal.write(tmp_path / name, journal.MachineRecord(machine_id=name, owner=owner, jail=None, vmm=None))
    (tmp_path / "without-record").mkdir()
    other.kill()
    other.wait()

    assert [d.name for d in journal.left_over(tmp_path)] == ["left", "without-record"]


def test_ending_a_machine_of_the_journal_kills_its_processes_and_removes_its_folder(tmp_path: Path) -> None:
    vmm = sleeper()
    directory = tmp_path / "m"
    directory.mkdir()
    record = journal.MachineRecord(machine_id="m", owner=None, jail=None, vmm=mark(vmm.pid))
    journal.write(directory, record)

    journal.end_machine(directory)

    assert vmm.wait(timeout=10) == -9
    assert not directory.exists()
