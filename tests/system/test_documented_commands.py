"""Whoever pastes the commands of a document, in their order, into a shell in a clone sees each of them work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(700)]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEMO = "make demo\n"
"""It made the environment that this test runs in, and has tests of its own."""
PROGRAMS = Path(sys.executable).parent


@pytest.mark.parametrize("document", ["README.md", "docs/cli.md", "docs/network.md", "docs/secrets.md"])
def test_the_commands_of_a_document_work_when_they_are_pasted_in_order(document: str, tmp_path: Path) -> None:
    blocks = [block for block in BLOCK.findall((ROOT / document).read_text()) if block != DEMO]
    assert blocks
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "docs", clone / "docs")
    shutil.copy(ROOT / "README.md", clone)
    (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
    # The README makes the path itself, by activating what the demo made.
    elsewhere = [folder for folder in os.environ["PATH"].split(":") if folder != str(PROGRAMS)]
    path = ":".join(elsewhere if document == "README.md" else [str(PROGRAMS), *elsewhere])
    hidden = ("RUNTIME_API_URL", "RUNTIME_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"RUNTIME_STATE_DIR": str(tmp_path / "state"), "PATH": path}

    try:
        pasted = subprocess.run(
            ["bash", "-exc", "".join(blocks)], cwd=clone, env=env, capture_output=True, text=True, timeout=600
        )
    finally:
        end = [PROGRAMS / "runtime", "server", "stop", "--end-sandboxes"]
        ended = subprocess.run(end, env=env, capture_output=True, text=True, timeout=120)

    assert pasted.returncode == 0, f"{pasted.stdout}\n{pasted.stderr}"
    assert ended.returncode == 0, ended.stderr
