"""Holds SPECIFICATION.md to its word: each promise names a test or benchmark that exists, or says there is none."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass

from .sources import ROOT, modules

OPEN = ("[test pending]", "not reached", "later issue")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
BENCH = re.compile(r"`bench:(\w+)`")
NUMBER = re.compile(r"\d")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One row of a table: what is promised, and where that is proven."""

    line: int
    text: str
    proof: str


@functools.cache
def specification() -> list[str]:
    return (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8").splitlines()


def promises() -> list[Promise]:
    """The rows of every table; the last cell is the proof. Heads and the rules under them are none."""
    lines = specification()
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.startswith("|") or set(line) <= set("|- "):
            continue
        if number < len(lines) and lines[number].startswith("|") and set(lines[number]) <= set("|- "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        found.append(Promise(line=number, text=" ".join(cells[:-1]), proof=cells[-1].strip(" |")))
    return found


@functools.cache
def written_tests() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module in modules("tests"):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        names = {node.name for node in ast.walk(module.tree) if isinstance(node, kinds)}
        found[module.place] = {name for name in names if name.startswith("test_")}
    return found


@functools.cache
def bench_words() -> set[str]:
    """Every string that the benchmarks' sources hold: a key that is written there is measured there."""
    nodes = [node for module in modules("bench") for node in ast.walk(module.tree)]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_specification_makes_promises() -> None:
    assert len(promises()) > 30


def test_every_promise_names_its_proof() -> None:
    bare = [
        f"{p.line}: {p.text}"
        for p in promises()
        if not (TEST.search(p.proof) or BENCH.search(p.proof) or any(word in p.proof for word in OPEN))
    ]

    assert not bare, "\n".join(bare)


def test_every_named_test_exists() -> None:
    missing = [
        f"{p.line}: {place}{'::' + name if name else ''}"
        for p in promises()
        for place, name in TEST.findall(p.proof)
        if place not in written_tests() or (name and name not in written_tests()[place])
    ]

    assert not missing, "\n".join(missing)


def test_every_named_benchmark_is_measured() -> None:
    missing = [f"{p.line}: {key}" for p in promises() for key in BENCH.findall(p.proof) if key not in bench_words()]

    assert not missing, "\n".join(missing)


def test_no_number_stands_outside_the_tables() -> None:
    """A figure in running text is a promise that nothing holds."""
    loose = [
        f"{number}: {line}"
        for number, line in enumerate(specification(), start=1)
        if NUMBER.search(line) and not line.startswith(("|", "#"))
    ]

    assert not loose, "\n".join(loose)


def test_every_figure_of_the_bench_has_its_row() -> None:
    """By the calls that make figures: `of("key", ...)`, `ratio("key", ...)`, `Figure(key="key")`."""
    made = set()
    for module in modules("bench"):
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            named = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
            first = node.args[:1] if node.func.id in ("of", "ratio") else named if node.func.id == "Figure" else []
            made |= {word.value for word in first if isinstance(word, ast.Constant) and word.value}

    assert made == {key for promise in promises() for key in re.findall(r"^`(\w+)` ", promise.text)} & made
