"""Words what every sentence for people needs: a count with its noun, and the name of the command that speaks."""

from __future__ import annotations

import os


def program() -> str:
    """The command that the operator has typed: `runtime` passes some of its own on to `runtimed`."""
    return os.environ.get("RUNTIME_PROGRAM") or "runtimed"


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 sandbox`, `2 sandboxes`: the plural by rule, or as given."""
    if number == 1:
        return f"1 {one}"
    return f"{number} {many or (one + ('es' if one.endswith(('s', 'x', 'ch', 'sh')) else 's'))}"


def are(number: int) -> str:
    """The verb that follows `counted`."""
    return "is" if number == 1 else "are"
