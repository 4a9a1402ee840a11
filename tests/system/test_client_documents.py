"""Every example of the client's documents runs against real machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall((ROOT / "docs" / "sdk.md").read_text())


class RunsSomewhere(Protocol):
    @property
    def env(self) -> dict[str, str]: ...


@pytest.mark.system
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_client_s_document_runs(number: int, service: RunsSomewhere, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXAMPLES[number]]
    done = subprocess.run(command, env=service.env, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
