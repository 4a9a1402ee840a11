"""Both LlamaIndex examples run as a newcomer runs them, on real microVMs, and answer with what was computed there."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest

from withruntime import Sandbox

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WITHIN_S = 400
FIRST_QUARTER = ("02", "03", "04")


def run_example(name: str, *options: str) -> str:
    """What the example printed. It must end well."""
    command = [sys.executable, str(EXAMPLES / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def net_revenue() -> Decimal:
    """The figure by the handbook's rules, without pandas: gross prices less 19 percent tax, returns taken off."""
    total = Decimal(0)
    with (EXAMPLES / "sales.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["date"].split("-")[1] in FIRST_QUARTER:
                sign = -1 if row["kind"] == "return" else 1
                total += sign * int(row["units"]) * Decimal(row["gross_price"])
    return (total / Decimal("1.19")).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN)


def sandbox_ids() -> set[str]:
    return {sandbox.id for sandbox in Sandbox.list() if sandbox.state != "stopped"}


@pytest.mark.usefixtures("as_client")
def test_the_first_agent_writes_a_program_runs_it_and_answers_with_its_figure() -> None:
    before = sandbox_ids()
    printed = run_example("llamaindex_agent.py")
    with Sandbox.create(timeout_seconds=300, on_lease_end="stop") as sbx:
        words = sbx.exec(["cat", "/etc/os-release"]).stdout.split()
        guest_kernel = sbx.exec(["uname", "-r"]).stdout.strip()

    assert "-> Wrote 139 bytes to /workspace/words.py" in printed
    assert f"'stdout': '/etc/os-release has {len(words)} words\\n'" in printed
    assert f"answer: I counted: /etc/os-release has {len(words)} words." in printed
    assert f"Linux {guest_kernel} (this host" in printed
    assert sandbox_ids() <= before


@pytest.mark.usefixtures("as_client")
def test_the_second_agent_looks_the_rules_up_and_computes_by_them(tmp_path: Path) -> None:
    before = sandbox_ids()
    chart = tmp_path / "chart.png"
    printed = run_example("retrieval_and_compute.py", "--chart", str(chart))

    assert re.findall(r"^\[\d\] (\w+)\(", printed, re.MULTILINE) == ["handbook", "runtime_write_file", "runtime_exec"]
    assert f"was {net_revenue()} euros." in printed
    assert chart.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sandbox_ids() <= before


@pytest.mark.parametrize("name", ["llamaindex_agent.py", "retrieval_and_compute.py"])
def test_a_real_model_without_a_key_is_one_sentence(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), "--model", "gpt-4.1-mini"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env={"PATH": ""})

    assert done.returncode == 1
    assert done.stderr.startswith("--model asks a real model: set OPENAI_API_KEY")
    assert done.stdout == ""
