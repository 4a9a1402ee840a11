"""Holds the import table: a room imports only the rooms that ARCHITECTURE.md allows it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from .sources import Module, modules

ROOMS = {
    "core": set[str](),
    "wire": {"core"},
    "store": {"core"},
    "api": {"core", "wire", "store"},
    "scheduler": {"core"},
    "control": {"core", "wire", "store", "scheduler", "billing"},
    "node": {"core", "wire"},
    "egress": {"core", "wire"},
    "meter": {"core", "wire", "store"},
    "billing": {"core"},
    "images": {"core"},
    "console": set[str](),  # talks to the public API like anyone else
}
EVERYWHERE = {"sim"}
"""Rooms that put a whole fleet together."""

NO_ROOM = {"VERSION"}
"""What the package itself says; every room may say it too."""

CLIENT_LIBRARIES = {"httpx", "websockets", "typer", "rich", "click"}
"""What an application must install to use the SDK; `click` is the ground that typer stands on."""

OLDEST_GUEST_PYTHON = (3, 9)


def imported(module: Module) -> Iterator[tuple[int, str]]:
    """Every module that the file names, absolute, with its line; `from a import b` counts as `a.b`."""
    package = module.place.removeprefix("src/").split("/")[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def room_of(module: Module) -> str | None:
    """The room that a file of runtimed is in; None for what stands above the rooms and wires them up."""
    parts = module.place.removeprefix("src/runtimed/").split("/")
    return parts[0] if len(parts) > 1 else None


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(module) for module in modules("src/runtimed")} - {None}

    assert rooms <= ROOMS.keys() | EVERYWHERE


def test_a_room_imports_only_what_the_table_allows() -> None:
    wrong = []
    for module in modules("src/runtimed"):
        room = room_of(module)
        if room is None or room in EVERYWHERE:
            continue
        for line, name in imported(module):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top == "runtimed" and target and target not in ROOMS[room] | {room} | NO_ROOM:
                wrong.append(f"{module.place}:{line}: {room}/ may not import {name}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("src/runtimed", {"withruntime", "runtime_guest"}),
        ("src/withruntime", {"runtimed", "runtime_guest"}),
        ("src/runtime_guest", {"runtimed", "withruntime"}),
    ],
)
def test_the_three_packages_do_not_import_each_other(package: str, others: set[str]) -> None:
    wrong = [
        f"{module.place}:{line}: {name}"
        for module in modules(package)
        for line, name in imported(module)
        if name.split(".")[0] in others
    ]

    assert not wrong, "\n".join(wrong)


def test_the_sdk_needs_no_library_of_the_server() -> None:
    allowed = CLIENT_LIBRARIES | sys.stdlib_module_names | {"withruntime"}
    wrong = [
        f"{module.place}:{line}: {name}"
        for module in modules("src/withruntime")
        for line, name in imported(module)
        if name.split(".")[0] not in allowed
    ]

    assert not wrong, "\n".join(wrong)


def test_the_guest_needs_only_an_old_python() -> None:
    allowed = sys.stdlib_module_names | {"runtime_guest"}
    wrong = [
        f"{module.place}:{line}: {name}"
        for module in modules("src/runtime_guest")
        for line, name in imported(module)
        if name.split(".")[0] not in allowed
    ]
    for module in modules("src/runtime_guest"):
        ast.parse(module.text, filename=module.place, feature_version=OLDEST_GUEST_PYTHON)

    assert not wrong, "\n".join(wrong)
