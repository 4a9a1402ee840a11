"""The main job as a user does it: the command line, real microVMs, and nothing left over at the end."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.system.conftest import Service


pytestmark = pytest.mark.system

RUNTIME = str(Path(sys.executable).parent / "runtime")


def runtime(service: Service, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([RUNTIME, *words], env=service.env, input=stdin, capture_output=True, timeout=120)


def sandboxes(service: Service) -> list[str]:
    listed = runtime(service, "sandbox", "ls", "--json")
    return [box["id"] for box in json.loads(listed.stdout)]


def test_a_program_runs_and_only_what_it_says_is_on_stdout(service: Service) -> None:
    done = runtime(service, "sandbox", "run", "--trial", "--", "python3", "-c", "print(6 * 7)")

    assert (done.stdout, done.returncode) == (b"42\n", 0)


def test_the_kernel_is_not_the_hosts(service: Service) -> None:
    done = runtime(service, "sandbox", "run", "--", "uname", "-r")

    assert done.returncode == 0
    assert done.stdout.decode().strip() not in ("", platform.release())


def test_there_is_no_network_card_but_loopback_and_dummies(service: Service) -> None:
    done = runtime(service, "sandbox", "run", "--", "sh", "-c", "ip -o link; cat /etc/os-release")
    lines = done.stdout.decode().splitlines()

    cards = [line.split(":")[1].strip() for line in lines if line[:1].isdigit() and ":" in line]
    assert all(card == "lo" or card.startswith("dummy") for card in cards)
    assert any(line.startswith("PRETTY_NAME=") for line in lines)


def test_the_exit_code_is_the_commands(service: Service) -> None:
    assert runtime(service, "sandbox", "run", "--", "sh", "-c", "exit 7").returncode == 7
    assert runtime(service, "sandbox", "run", "--timeout", "1", "--", "sleep", "60").returncode == 124


def test_bytes_go_in_and_out_unchanged(service: Service) -> None:
    data = bytes(range(256)) * 4096

    assert runtime(service, "sandbox", "run", "--", "cat", stdin=data).stdout == data


@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.8, 2.0])
def test_ctrl_c_at_any_moment_of_a_run_leaves_no_sandbox(service: Service, after_s: float) -> None:
    before = set(sandboxes(service))
    process = subprocess.Popen(
        [RUNTIME, "sandbox", "run", "--", "sleep", "60"],
        env=service.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(after_s)  # the moment is what is tried, no state is waited for

    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)

    assert set(sandboxes(service)) <= before


def test_an_image_without_python_runs_too(service: Service) -> None:
    built = subprocess.run(
        [RUNTIME, "image", "build", "minimal"], env=service.env, capture_output=True, timeout=600, check=False
    )
    assert built.returncode == 0, built.stderr.decode()

    done = runtime(service, "sandbox", "run", "--image", "minimal", "--", "sh", "-c", "command -v python3 || echo none")

    assert (done.stdout, done.returncode) == (b"none\n", 0)


def test_the_doctor_finds_nothing_left_over_while_the_service_runs(service: Service) -> None:
    asked = subprocess.run(
        [RUNTIME, "doctor", "--json"],
        env={**service.env, "RUNTIME_STATE_DIR": str(service.state_dir)},
        capture_output=True,
        timeout=120,
    )

    assert asked.returncode == 0, asked.stdout.decode() + asked.stderr.decode()
