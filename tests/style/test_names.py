"""Holds what a file may be called, that it says what it does, and what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .sources import ROOT, modules, texts

SAY_NOTHING = re.compile(r"^_?(manager|helpers?|utils?|common|misc|base)$")
CODE = ("src", "tools", "bench", "examples", "tests")
# Put together here so that this file does not find itself.
LEFT_OPEN = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
PICTURES = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")
URL_HOST = re.compile(r"https?://(?:[^/@\s]*@)?([A-Za-z0-9.-]+\.[A-Za-z]{2,})")


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [m.place for m in modules(*CODE) if SAY_NOTHING.match(Path(m.place).stem)]

    # A driver's interface may be called base.
    assert [place for place in named if not place.endswith("vmm/base.py")] == []


def test_every_module_opens_with_a_sentence() -> None:
    silent = []
    for module in modules(*CODE):
        if not module.tree.body or module.migration:
            continue
        opening = (ast.get_docstring(module.tree) or "").split("\n\n")[0].rstrip()
        if not opening.endswith((".", ":")):
            silent.append(module.place)

    assert not silent, "\n".join(silent)


def test_no_two_classes_share_a_name() -> None:
    """Within one package: the guest's and the service's copies of a frame are the same thing twice on purpose."""
    twice = []
    for package in ("src/withruntime", "src/runtimed", "src/runtime_guest"):
        seen: dict[str, str] = {}
        for module in modules(package):
            if "/_sync/" in module.place or module.migration:
                continue
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    if node.name in seen:
                        twice.append(f"{node.name}: {seen[node.name]} and {module.place}")
                    seen[node.name] = module.place

    assert not twice, "\n".join(twice)


def test_nothing_is_left_open() -> None:
    left = [
        f"{place}:{number}: {line.strip()}"
        for place, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if LEFT_OPEN.search(line)
    ]

    assert not left, "\n".join(left)


def test_no_pictures_in_text() -> None:
    """Tests may hold any character: they prove that it survives."""
    found = [place for place, text in texts() if not place.startswith("tests/") and PICTURES.search(text)]

    assert found == []


def registry_hosts() -> set[str]:
    """Hosts of this machine's own package sources: a checkout that names one works on this machine only."""
    sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt").glob("sources.list.d/*")]
    settings = [path.read_text(errors="replace") for path in sources if path.is_file()]
    for asked in ([sys.executable, "-m", "pip", "config", "list"], ["npm", "config", "get", "registry"]):
        try:
            settings.append(subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout)
        except FileNotFoundError:
            continue  # a machine without npm has no npm registry to name
    hosts = {host.lower() for text in settings for host in URL_HOST.findall(text)}
    return {host for host in hosts if not host.endswith(("example.org", "example.com"))}


def test_no_package_registry_is_named() -> None:
    hosts = registry_hosts()
    if not hosts:
        pytest.skip("this machine's package sources name no host")

    named = [f"{place}: {host}" for place, text in texts() for host in hosts if host in text.lower()]

    assert not named, "\n".join(named)


def test_no_file_knows_where_this_checkout_stands() -> None:
    found = [place for place, text in texts() if str(ROOT) in text]

    assert found == []
