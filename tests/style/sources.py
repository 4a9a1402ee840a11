"""Finds and parses what the style tests look at: the files that belong to the project, without what git ignores."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".sh", ".csv", ".json", ".mako", ".svg", ".ini", ".yml"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Python file, parsed. `place` is its path from the root of the project."""

    place: str
    text: str
    tree: ast.Module

    @property
    def generated(self) -> bool:
        return "generated" in self.text[:300].lower() and "do not edit" in self.text[:300].lower()

    @property
    def migration(self) -> bool:
        return "/migrations/" in self.place


@functools.cache
def project_files() -> tuple[str, ...]:
    """Committed files and those about to be, as paths from the root."""
    # A checkout that another user made is as good to read as one of our own.
    asked = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return tuple(sorted(name for name in set(listed.split("\0")) if name and (ROOT / name).is_file()))


@functools.cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file in these folders of the project."""
    found = []
    for place in project_files():
        if place.endswith(".py") and place.startswith(tuple(f"{folder}/" for folder in folders)):
            text = (ROOT / place).read_text(encoding="utf-8")
            found.append(Module(place=place, text=text, tree=ast.parse(text, filename=place)))
    return tuple(found)


def texts() -> list[tuple[str, str]]:
    """Every text file of the project with its content."""
    names = [name for name in project_files() if Path(name).suffix in TEXT_SUFFIXES]
    return [(name, (ROOT / name).read_text(encoding="utf-8", errors="replace")) for name in names]
