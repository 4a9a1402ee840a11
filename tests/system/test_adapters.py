"""The published framework adapters, unmodified and over the published client, do their whole day on real microVMs.

Those of smolagents and Google ADK are left out: the first needs the code interpreter, which is not built, and the
second brings 145 MB of packages for calls that the others make too.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.published import FETCH_S, python_with

STORIES = Path(__file__).with_name("adapters")
STORY_S = 200

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(FETCH_S + STORY_S + 60)]


class RunsSomewhere(Protocol):
    @property
    def env(self) -> dict[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter, with what it is tried with: the versions are pinned, so that a red test is about us."""

    story: str
    pins: tuple[str, ...]


PYDANTIC_AI = Adapter(story="pydantic_ai", pins=("pydantic-ai-withruntime==0.1.0", "pydantic-ai-slim==2.68.0"))
DEEP_AGENTS = Adapter(
    story="deep_agents", pins=("langchain-withruntime==0.1.0", "deepagents==0.7.32", "langchain-core==1.8.3")
)
OPENAI_AGENTS = Adapter(story="openai_agents", pins=("openai-agents-withruntime==0.1.0", "openai-agents==0.24.0"))


def told(adapter: Adapter, service: RunsSomewhere, cwd: Path) -> dict[str, Any]:
    """What the adapter's story saw: its last line, which is JSON."""
    env = {name: value for name, value in service.env.items() if name != "PYTHONPATH"}
    command = [str(python_with(adapter.story, *adapter.pins)), "-I", str(STORIES / f"{adapter.story}.py")]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=STORY_S)

    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_the_pydantic_ai_toolset_gives_an_agent_a_sandbox_for_each_run(service: RunsSomewhere, tmp_path: Path) -> None:
    seen = told(PYDANTIC_AI, service, tmp_path)

    assert seen["client"] == "0.35.0"
    assert seen["tools"] == ["runtime_exec", "runtime_read_file", "runtime_write_file", "runtime_list_files"]
    assert seen["answers"] == {
        "failed": {"exit_code": 7, "stdout": "out\n", "stderr": "err\n", "timed_out": False},
        "killed": {"exit_code": -9, "stdout": "", "stderr": "", "timed_out": False},
        "late": {"exit_code": -9, "stdout": "part\n", "stderr": "", "timed_out": True},
        "long": [0, "[568895 earlier characters omitted]", "100000"],
        "wrote": "Wrote 4 bytes to /workspace/a b/é'.txt",
        "read": "hé\n",
        "wrote nothing": "Wrote 0 bytes to /workspace/empty",
        "read nothing": "",
        "wrote 3 MiB": "Wrote 3145728 bytes to /workspace/large",
        "3 MiB": "the same",
        "binary": "\x00�",
        "missing": "No such file: /workspace/none",
        "missing elsewhere": "cat: /tmp/none: No such file or directory\n",
        "wrote elsewhere": "Wrote 6 bytes to /tmp/x/y",
        "read elsewhere": "there\n",
        "not allowed": "Could not write /etc/no: sh: 1: cannot create /etc/no: Permission denied",
        "listed": [
            {"path": "/workspace/a b", "type": "directory", "size": 4096},
            {"path": "/workspace/bin", "type": "file", "size": 2},
            {"path": "/workspace/empty", "type": "file", "size": 0},
        ],
    }
    assert seen["of the runs"] == [["stopped", "requested", 1800, "stop"]] * 2
    assert seen["given"] == {"after two runs": "running", "after a pause": "running", "its file": "kept\n"}
    assert seen["refused"] == "[invalid_request 400] vcpu: must be at most 16"


def test_deep_agents_run_write_edit_and_search_in_a_sandbox(service: RunsSomewhere, tmp_path: Path) -> None:
    seen = told(DEEP_AGENTS, service, tmp_path)

    assert seen["client"] == "0.35.0"
    assert seen["said"] == [
        "Updated file /workspace/w.py",
        "é 42\n\n[Command succeeded with exit code 0]",
        "@@ lines 1-1 of 1 @@\nprint('é', 6*7)",
        "Successfully replaced 1 instance(s) of the string in '/workspace/w.py'",
        "é 56\nls: cannot access '/none': No such file or directory\n\n[Command failed with exit code 2]",
        "['/workspace/w.py']",
        "['/workspace/w.py']",
        "/workspace/w.py",
    ]
    assert seen["up and down"] == {"small": True, "empty": True, "odd name": True, "large": True, "elsewhere": True}
    assert seen["errors up"] == ["permission_denied", "invalid_path", "is_directory", "permission_denied"]
    assert seen["errors down"] == [
        "file_not_found",
        "file_not_found",
        "is_directory",
        "is_directory",
        "permission_denied",
    ]
    assert seen["long output"] == [697789, 0, False]
    assert seen["late"] == ["part\n\n[Runtime: the command ran past 1 seconds and was stopped]", -9]
    assert seen["left behind"] == ""
    assert seen["found again"] == "same\n"
    assert seen["unknown"] == "KeyError"
    assert seen["deleted"] == "stopped"


def test_the_openai_agents_sandbox_runs_keeps_and_resumes_its_work(service: RunsSomewhere, tmp_path: Path) -> None:
    seen = told(OPENAI_AGENTS, service, tmp_path)

    assert seen["client"] == "0.35.0"
    assert seen["agent"] == {
        "first": ["Process exited with code 4", "Output:", "hi", "/workspace"],
        "patched": ["Created w.py", "Updated w.py"],
        "terminal": "n? 6\r\n48\r\n",
        "final": "done",
        "afterwards": ["stopped"],
    }
    assert seen["commands"] == {
        "failed": [3, "out\nbar\n/app\n", "err\n"],
        "late": "ExecTimeoutError",
        "of root": [0, "0\nbar\n", ""],
    }
    assert seen["files"] == {
        "made": "hello\n",
        "large": True,
        "missing": "WorkspaceReadNotFoundError",
        "a folder": "WorkspaceArchiveReadError",
        "of root": "x",
    }
    assert seen["processes"] == {"printed": ["a", "b"], "exit code": 5, "left": "0\n"}
    assert seen["port"] == ["ExposedPortUnavailableError", "unavailable", 501]
    # The state of the sandbox that was left, the file in the one that went on, whether that is the same one.
    assert seen["as an archive"] == ["stopped", "kept\n", False]
    assert seen["as a snapshot"] == ["stopped", "kept\n", False]
    assert seen["paused"] == ["paused", "kept\n", True]
