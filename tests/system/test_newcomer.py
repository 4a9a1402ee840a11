"""What a newcomer tries first, through the command line and the SDK, on real microVMs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from withruntime import Sandbox
from withruntime.tools import sandbox_tools

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("as_client")]

RUNTIME = str(Path(sys.executable).with_name("runtime"))
PROGRAMS = ("gcc", "g++", "make", "git", "curl", "jq", "sqlite3", "rg", "zip", "xz", "pip", "sudo")
CLOCK_WITHIN_S = 0.5


def runtime(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUNTIME, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_the_first_command_prints_42_and_nothing_else() -> None:
    done = runtime("sandbox", "run", "--trial", "--", "python3", "-c", "print(6 * 7)")

    assert (done.returncode, done.stdout) == (0, "42\n")


def test_a_sandbox_has_a_kernel_of_its_own() -> None:
    done = runtime("sandbox", "run", "--trial", "--", "uname", "-r")

    assert done.returncode == 0
    assert done.stdout.strip() not in ("", platform.release())


def test_a_sandbox_has_no_network_card() -> None:
    done = runtime("sandbox", "run", "--", "ip", "-json", "-details", "link")

    links = {link["ifname"]: link.get("linkinfo", {}).get("info_kind") for link in json.loads(done.stdout)}
    assert "lo" in links
    assert {kind for name, kind in links.items() if name != "lo"} <= {"dummy"}


@pytest.mark.parametrize("code", [0, 7, 255])
def test_the_exit_code_of_the_command_is_that_of_run(code: int) -> None:
    assert runtime("sandbox", "run", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_command_past_its_time_ends_with_124() -> None:
    with Sandbox.create(timeout_seconds=300, on_lease_end="stop") as sbx:
        begun = time.monotonic()
        done = runtime("sandbox", "exec", "--timeout", "1", sbx.id, "--", "sleep", "60")

        assert done.returncode == 124
        assert time.monotonic() - begun < 20
        assert sbx.exec("pgrep sleep").stdout == ""


def test_the_four_tools_answer_what_a_model_can_read() -> None:
    program = 'print("words")\n'
    with Sandbox.create(timeout_seconds=300, on_lease_end="stop") as sbx:
        run, read, write, listing = sandbox_tools(sbx)

        assert write("words.py", program) == f"Wrote {len(program)} bytes to /workspace/words.py"
        assert run("python3 words.py") == {"exit_code": 0, "stdout": "words\n", "stderr": "", "timed_out": False}
        assert run("exit 3")["exit_code"] == 3
        assert read("words.py") == program
        assert {entry["path"] for entry in listing()} >= {"/workspace/words.py"}


def test_the_default_image_holds_what_an_agent_takes_for_granted() -> None:
    with Sandbox.create(timeout_seconds=300, on_lease_end="stop") as sbx:
        asked = sbx.exec(
            ["sh", "-c", 'for name; do command -v "$name" >/dev/null || echo "$name"; done', "sh", *PROGRAMS]
        )
        libraries = sbx.exec(
            ["python3", "-c", "import numpy, pandas, matplotlib, venv, sys; print(sys.version_info.major)"],
            timeout_ms=60_000,
        )
        old = sbx.exec(["python3", "-c", "import distutils.version; print(distutils.__file__)"], timeout_ms=60_000)
        release = sbx.exec("cat /etc/os-release").stdout
        of_recipe = sbx.exec(["printenv", "MPLBACKEND", "MPLCONFIGDIR"]).stdout

    assert of_recipe == "Agg\n/var/cache/matplotlib\n"
    assert asked.stdout == ""
    assert (libraries.exit_code, libraries.stdout) == (0, "3\n")
    assert "_distutils" in old.stdout, old.stderr
    assert release.startswith("PRETTY_NAME=")


def test_the_disk_is_as_large_as_was_asked_for() -> None:
    with Sandbox.create(disk_mib=5120, timeout_seconds=300, on_lease_end="stop") as sbx:
        blocks = int(sbx.exec("stat --file-system --format=%b /").stdout)
        size = int(sbx.exec("stat --file-system --format=%S /").stdout)

    assert 0.9 * 5120 <= blocks * size / 2**20 <= 5120


def test_two_sandboxes_share_no_identity_and_know_the_time() -> None:
    ask = "cat /proc/sys/kernel/random/uuid /etc/machine-id; hostname; date +%s.%N"
    told = []
    for _ in range(2):
        with Sandbox.create(timeout_seconds=300, on_lease_end="stop") as sbx:
            before = time.time()
            answer = sbx.exec(ask).stdout.split()
            after = time.time()
        told.append(answer[:-1])
        assert before - CLOCK_WITHIN_S <= float(answer[-1]) <= after + CLOCK_WITHIN_S

    assert all(first != second for first, second in zip(*told, strict=True))


def test_a_name_of_nothing_is_one_sentence() -> None:
    done = runtime("sandbox", "exec", "no-such-sandbox", "--", "true")

    assert done.returncode == 1
    assert "no-such-sandbox" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.linesep not in done.stdout
