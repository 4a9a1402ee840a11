"""Words a count the way people say it; it decides nothing else about a sentence."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 sandbox`, `2 sandboxes`: the plural by rule, or as given."""
    if number == 1:
        return f"1 {one}"
    return f"{number} {many or (one + ('es' if one.endswith(('s', 'x', 'ch', 'sh')) else 's'))}"
