"""Shapes what the tools tell a model: short enough for its context, the newest kept. No I/O."""

from dataclasses import dataclass
from typing import Any

from withruntime._errors import RuntimeError
from withruntime._values import CommandResult, Json

ENTRIES_MAX = 1000
"""More entries than this help no model, and cost it its context."""
_ENTRY_CHARS = 40
_CALLERS_STATUSES = frozenset({400, 403, 404, 409, 413, 422})
_OF_THE_SANDBOX = frozenset({"not_found", "sandbox_paused", "sandbox_stopped", "not_running"})
"""No other path and no other command helps there: the application has to know."""


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """Where the tools work and how much they say."""

    root: str = "/workspace"
    timeout_seconds: int = 300
    max_output_chars: int = 20_000


def newest(text: str, max_chars: int) -> str:
    """The end of a text, with a first line that says how much was left out."""
    left_out = len(text) - max_chars
    return text if left_out <= 0 else f"[{left_out} earlier characters left out]\n{text[left_out:]}"


def exec_answer(result: CommandResult, max_chars: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "exit_code": result.exit_code,
        "stdout": newest(result.stdout, max_chars),
        "stderr": newest(result.stderr, max_chars),
        "timed_out": result.timed_out,
    }
    if result.out_of_memory:
        answer["out_of_memory"] = str(result.out_of_memory.get("message", "The sandbox ran out of memory."))
    return answer


def never_run(why: str) -> dict[str, Any]:
    """The answer for a command that was refused: a model that named a wrong folder goes on with another."""
    return {"exit_code": None, "stdout": "", "stderr": why, "timed_out": False}


def entries_answer(entries: list[Json], max_chars: int) -> list[dict[str, Any]]:
    """Path, type and size of each entry, by path, as many as fit."""
    told: list[dict[str, Any]] = []
    used_chars = 0
    ordered = sorted(entries, key=lambda entry: str(entry.get("path", "")))
    for entry in ordered:
        path = str(entry.get("path", ""))
        used_chars += len(path) + _ENTRY_CHARS
        if len(told) >= ENTRIES_MAX or used_chars > max_chars:
            told.append({"path": f"[{len(ordered) - len(told)} more entries left out]", "type": "other", "size": 0})
            break
        told.append({"path": path, "type": entry.get("type", "other"), "size": entry.get("size", 0)})
    return told


def is_callers_fault(error: RuntimeError) -> bool:
    """Whether the model can mend it by asking for something else; all other failures are raised."""
    return error.status in _CALLERS_STATUSES and error.code not in _OF_THE_SANDBOX


def failure(path: str, error: RuntimeError) -> str:
    """One sentence for the model, which has no use for request ids."""
    text = error.message if path in error.message else f"{path}: {error.message}"
    return f"Error ({error.code}): {text}" + (f" {error.hint}" if error.hint else "")
