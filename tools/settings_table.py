"""Writes the table of settings in docs/operations.md from their definition in the code; `--check` only compares."""

from __future__ import annotations

import dataclasses
import sys
import typing
from pathlib import Path

from runtimed.settings import ABOUT, HINTS, Settings

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
BEGIN, END = "<!-- settings: written by tools/settings_table.py -->\n", "<!-- end of settings -->\n"
FOLDERS = {"state_dir": "`$XDG_STATE_HOME/withruntime`", "cache_dir": "`$XDG_CACHE_HOME/withruntime`"}
"""Defaults that depend on who asks."""


def row(field: dataclasses.Field[object]) -> str:
    about = ABOUT[field.name]
    default = FOLDERS.get(field.name) or f"`{literal(field.default)}`"
    return f"| `{field.name}` | {default} | {values(field.name)} | {about.reason} |\n"


def literal(value: object) -> str:
    """As it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def values(name: str) -> str:
    """What the setting may be, with its unit."""
    about, hint = ABOUT[name], HINTS[name]
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{option}`" for option in typing.get_args(hint))
    if about.low is not None:
        return f"{about.low} to {about.high} {about.unit}".strip()
    return "true, false" if hint is bool else about.unit or "text"


def wanted(document: str) -> str:
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = "| setting | default | values | why |\n| --- | --- | --- | --- |\n"
    table = "".join(row(field) for field in dataclasses.fields(Settings))
    return f"{before}{BEGIN}{head}{table}{END}{after}"


def main() -> int:
    """0 when the table is fresh (or has been made so), 1 when `--check` finds it stale."""
    document = DOCUMENT.read_text(encoding="utf-8")
    if document == wanted(document):
        return 0
    if "--check" in sys.argv:
        print("the table of settings in docs/operations.md is stale; run tools/settings_table.py")
        return 1
    DOCUMENT.write_text(wanted(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
