"""A process is known by more than its pid."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from runtimed.core.boot import ImageFiles
from runtimed.core.specs import Shape
from runtimed.node.vmm import journal
from runtimed.node.vmm.base import MachinePlan, Template
from runtimed.node.vmm.processes import ProcessMark, end, mark, same, started_for


def wait_until(probe: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def record_of(directory: Path, *, owner: ProcessMark | None, vmm: ProcessMark | None) -> journal.MachineRecord:
    image = ImageFiles(
        image_id="i", name="n", release="r", rootfs=directory, rootfs_bytes=0, kernel_id="k", kernel=directory,
        initrd=directory, agent_id="a", agent_disk=directory,
    )  # fmt: skip
    shape = Shape(vcpu=1, memory_mib=512, disk_mib=3072)
    plan = MachinePlan(machine_id=directory.name, directory=directory, image=image, shape=shape, layers=(directory,))
    template = Template(key="t", directory=directory)
    return journal.MachineRecord(plan=plan, template=template, owner=owner, jail=None, vmm=vmm)


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    record = record_of(tmp_path, owner=mark(os.getpid()), vmm=None)

    journal.write(record)

    assert journal.read(tmp_path) == record


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
        journal.write(record_of(tmp_path / name, owner=owner, vmm=None))
    (tmp_path / "without-record").mkdir()
    other.kill()
    other.wait()

    assert [d.name for d in journal.left_over(tmp_path)] == ["left", "without-record"]


def test_ending_a_machine_of_the_journal_kills_its_processes_and_removes_its_folder(tmp_path: Path) -> None:
    vmm = sleeper()
    directory = tmp_path / "m"
    directory.mkdir()
    journal.write(record_of(directory, owner=None, vmm=mark(vmm.pid)))

    journal.end_machine(directory)

    assert vmm.wait(timeout=10) == -9
    assert not directory.exists()


def test_a_machine_whose_service_died_before_it_wrote_the_marks_is_ended_all_the_same(tmp_path: Path) -> None:
    """With a jail, which names its folder and has the machine as its child; without, where it stands in the folder."""
    own, elsewhere = tmp_path / "machine" / "own", tmp_path / "other" / "own"
    for folder in (own, elsewhere):
        folder.mkdir(parents=True)
    jail = subprocess.Popen(["sh", "-c", "sleep 60 & read _", "sh", own], stdin=subprocess.PIPE)
    bare = subprocess.Popen(["sleep", "60"], cwd=own)
    other = subprocess.Popen(["sh", "-c", "read _", "sh", f"{own}er"], cwd=elsewhere, stdin=subprocess.PIPE)
    wait_until(lambda: len(started_for(own)) == 3)
    children = [seen for seen in started_for(own) if seen.pid not in (jail.pid, bare.pid)]
    journal.write(record_of(tmp_path / "machine", owner=None, vmm=None))

    journal.end_machine(tmp_path / "machine")

    assert (jail.wait(10), bare.wait(10), other.poll()) == (-9, -9, None)
    wait_until(lambda: not same(children[0]))
    other.kill()
    other.wait()
