"""The client for threads is the client for asyncio without the waiting."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "unasync.py"


@pytest.fixture(scope="module")
def unasync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unasync", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("async def f():\n    return await g()\n", "def f():\n    return g()\n"),
        ("x = [y async for y in z]  # await nothing\n", "x = [y for y in z]  # nothing\n"),
        ("async with await a() as b:\n    pass\n", "with a() as b:\n    pass\n"),
        ('"""Use `async with AsyncSandbox`."""\n', '"""Use `with Sandbox`."""\n'),
        ("f: Callable[[], Awaitable[list[int]]]\n", "f: Callable[[], list[int]]\n"),
        ("from collections.abc import Awaitable, Callable\n", "from collections.abc import Callable\n"),
        ("if x:\n\n    # kept\n    y = (1,\n         2)\n", "if x:\n\n    # kept\n    y = (1,\n         2)\n"),
        ("awaited = my_async = 1\n", "awaited = my_async = 1\n"),
    ],
)
def test_each_token_is_renamed_or_kept_with_its_layout(unasync: ModuleType, before: str, after: str):
    assert unasync.generate(before, set()) == after


def test_the_generated_files_are_fresh():
    done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout) == (0, "")
