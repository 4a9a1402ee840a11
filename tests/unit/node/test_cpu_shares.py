"""A machine whose CPU was guaranteed goes before others, by a cgroup where there is one to divide, else by nice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimed.node.cpu_shares import HostPaths, guarantee

WAIT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


@pytest.fixture
def machine() -> Iterator[subprocess.Popen[str]]:
    """A process with a child, as a jail has one."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    yield process
    process.communicate("\n", timeout=10)


def host_with(tmp_path: Path, *, controllers: str, group: str = "service") -> HostPaths:
    """A /proc whose service is in a cgroup of version 2, and that group's files."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{group}\n")
    (tmp_path / "cgroup" / group).mkdir(parents=True)
    (tmp_path / "cgroup" / group / "cgroup.subtree_control").write_text(controllers)
    return HostPaths(cgroups=tmp_path / "cgroup", proc=tmp_path / "proc")


def test_where_the_service_may_divide_its_group_a_machine_has_a_weight_of_its_own(tmp_path: Path) -> None:
    paths = host_with(tmp_path, controllers="cpu memory\n")
    (tmp_path / "cgroup/service/runtime-floor-1").mkdir()  # of a machine that is gone

    assert guarantee(4711, 2000, paths=paths) == "cgroup"
    groups = [path.name for path in (tmp_path / "cgroup/service").glob("runtime-floor-*")]
    assert groups == ["runtime-floor-4711"]
    assert (tmp_path / "cgroup/service/runtime-floor-4711/cpu.weight").read_text() == "2000"
    assert (tmp_path / "cgroup/service/runtime-floor-4711/cgroup.procs").read_text() == "4711"


def test_in_a_subgroup_of_a_unit_it_is_the_units_group_that_is_divided(tmp_path: Path) -> None:
    paths = host_with(tmp_path, controllers="", group="system.slice/runtime.service/service")
    unit = tmp_path / "cgroup/system.slice/runtime.service"
    (unit / "cgroup.subtree_control").write_text("")

    assert guarantee(4711, 500, paths=paths) == "cgroup"
    assert (unit / "cgroup.subtree_control").read_text() == "+cpu"
    assert (unit / "runtime-floor-4711/cpu.weight").read_text() == "500"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may let a process go before others")
def test_elsewhere_every_thread_of_it_goes_before_others(tmp_path: Path, machine: subprocess.Popen[str]) -> None:
    assert guarantee(machine.pid, 2000, paths=HostPaths(cgroups=tmp_path)) == "nice"

    (child,) = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
    assert os.getpriority(os.PRIO_PROCESS, machine.pid) == -2
    assert os.getpriority(os.PRIO_PROCESS, int(child)) == -2


def test_who_asked_for_nothing_is_left_as_it_is(machine: subprocess.Popen[str]) -> None:
    assert guarantee(machine.pid, 0) == "nothing"
    assert os.getpriority(os.PRIO_PROCESS, machine.pid) == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_machine_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    assert guarantee(2**22 + 1, 1000, paths=HostPaths(cgroups=tmp_path)) == "nothing"
