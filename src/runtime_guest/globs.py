"""Decides whether a path matches a pattern: `*`, `?`, `[...]` within a name, `**` for any number of folders."""

from __future__ import annotations

import re
from fnmatch import translate


class Glob:
    """A pattern for paths relative to a folder."""

    def __init__(self, pattern: str) -> None:
        self._parts = [
            None if part == "**" else re.compile(translate(part))
            for part in pattern.split("/")
            if part not in ("", ".")
        ]

    def matches(self, names: tuple[str, ...]) -> bool:
        """Whether the whole path, given as its names, matches."""
        reachable = {0}  # Positions in the pattern that the names so far can have led to.
        for name in names:
            step = set()
            for at in self._with_skips(reachable):
                if at == len(self._parts):
                    continue
                part = self._parts[at]
                if part is None:
                    step.add(at)
                elif part.match(name):
                    step.add(at + 1)
            reachable = step
        return len(self._parts) in self._with_skips(reachable)

    def _with_skips(self, positions: set[int]) -> set[int]:
        """`**` may stand for no folder at all."""
        found = set(positions)
        for at in positions:
            while at < len(self._parts) and self._parts[at] is None:
                at += 1
                found.add(at)
        return found


class Exclusions:
    """Patterns of what an archive leaves out: with a slash for the path from its top, without for any name."""

    def __init__(self, patterns: list[str]) -> None:
        self._globs = [
            Glob(pattern if "/" in pattern.strip("/") or pattern.startswith("/") else f"**/{pattern}")
            for pattern in patterns
        ]

    def excludes(self, names: tuple[str, ...]) -> bool:
        return any(glob.matches(names) for glob in self._globs)
