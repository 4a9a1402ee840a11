"""The command line on real microVMs: bytes, interruptions, an image without Python, and nothing left over."""

from __future__ import annotations

import json
import os
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
