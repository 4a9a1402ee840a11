"""Compares the documents with what they describe: links, commands, the table of rooms, the settings."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest
import typer.main

from .sources import ROOT, project_files
from .test_imports import ROOMS

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?runtime ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
MAKE = re.compile(r"`make (\w+)`")
ROOM_ROW = re.compile(r"^\| `(\w+)/` \| .* \| ([^|]*) \|$", re.MULTILINE)


def documents() -> list[str]:
    return [name for name in project_files() if name.endswith(".md")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", documents())
def test_every_link_leads_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    broken = [target for target in LINK.findall(read(name)) if not (folder / target).exists()]

    assert broken == []


@pytest.mark.parametrize("name", documents())
def test_every_make_target_exists(name: str) -> None:
    targets = set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))

    assert set(MAKE.findall(read(name))) <= targets


@pytest.mark.parametrize("name", documents())
def test_every_command_that_a_document_shows_exists(name: str) -> None:
    from withruntime.cli.app import app

    unknown = [
        words for words in COMMAND.findall(read(name)) if not resolves(typer.main.get_command(app), words.split())
    ]

    assert unknown == []


def resolves(command: click.Command, words: list[str]) -> bool:
    """Whether these words name a command or a group of them: what follows a command's name are its arguments."""
    while isinstance(command, click.Group) and words:
        found = command.commands.get(words[0])
        if found is None:
            return False
        command, words = found, words[1:]
    return True


def test_the_table_of_rooms_is_the_one_that_is_tested() -> None:
    drawn = {}
    for room, arrows in ROOM_ROW.findall(read("ARCHITECTURE.md")):
        drawn[room] = set() if arrows == "nothing of ours" else set(re.findall(r"\w+", arrows))

    assert drawn == ROOMS


def test_every_setting_is_documented() -> None:
    from runtimed.settings import Settings

    text = read("docs/operations.md")

    assert [field.name for field in fields(Settings) if f"`{field.name}`" not in text] == []


def test_every_top_document_is_there() -> None:
    names = ("README", "ARCHITECTURE", "SECURITY", "SPECIFICATION", "CHANGELOG", "CONTRIBUTING")

    assert [name for name in names if not Path(ROOT / f"{name}.md").is_file()] == []
