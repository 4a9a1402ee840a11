"""What the default image's Python does in a copy of its machine: generators that nobody gave a seed start anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime_guest import residents
from runtimed.images.recipe import load_recipe

PATH = "/usr/lib/runtime/sitecustomize.py"
BEFORE = f"""
import os, random, signal, ssl, sys
exec(open(sys.argv[1]).read())
import numpy as n
a, given, legacy, stream = n.random.default_rng(), n.random.default_rng(5), n.random.RandomState(5), n.random.Philox()
n.random.randn(); ssl.RAND_bytes(4); legacy.randn()
def copied():  # a process has its parent's memory, as a copied machine has its source's
    if os.fork() == 0:
        os.kill(os.getpid(), {residents.SIGNAL})
        return True
    os.wait()
    return False
def tell():
    print(a.integers(1 << 62), n.random.randn(), stream.random_raw(), given.integers(1 << 62), legacy.randn())
    sys.stdout.flush()
"""


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    (file,) = (file for file in load_recipe("default").files if file.path == PATH)
    (tmp_path / "hook.py").write_text(file.content)
    return tmp_path / "hook.py"


def ran(hook: Path, program: str) -> list[list[str]]:
    done = subprocess.run([sys.executable, "-c", BEFORE + program, hook], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_numpys_generators_start_anew_and_those_that_were_given_a_seed_go_on(hook: Path) -> None:
    child, parent = ran(hook, "copied() and (tell(), os._exit(0))\ntell()")

    assert [mine != theirs for mine, theirs in zip(child, parent, strict=True)] == [True, True, True, False, False]


def test_without_the_signal_they_would_be_the_same(hook: Path) -> None:
    child, parent = ran(hook, "if os.fork() == 0: tell(); os._exit(0)\nos.wait(); tell()")

    assert child == parent


def test_a_process_with_the_hook_asks_to_be_told_and_what_it_starts_does_not(hook: Path) -> None:
    say = "print(residents.wants(open('/proc/self/status').read()))"
    here = ran(hook, f"from runtime_guest import residents; {say}")
    there = ran(
        hook,
        "import subprocess; from runtime_guest import residents\n"
        "print(residents.wants(subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout))",
    )

    assert (here, there) == ([["True"]], [["False"]])
