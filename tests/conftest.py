"""What tests of every kind share: the host's image and QEMU, made once and cached."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.settings import default_cache_dir


def said(line: str, fraction: float | None = None) -> None:
    print(line, flush=True)


for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    # Whoever starts the tests in the background of a shell has these ignored, and every child would inherit that.
    if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)

NAMESPACES = ("egress", "test_no_way_around.py")
"""Tests that make network namespaces and routes, of which a host has one set."""


@pytest.hookimpl(tryfirst=True)  # before the plugin that reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes: the tests of a file stay in one, so do those of the network, and long ones go first.

    The sweeps share nothing, and one file of them would keep one process busy long after the others.
    """
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        group = "network" if any(name in place.parts for name in NAMESPACES) and "system" in place.parts else str(place)
        item.add_marker(pytest.mark.xdist_group(item.nodeid if place.parts[0] == "sim" else group))
    items.sort(key=lambda item: [room not in item.path.parts for room in ("system", "sim")])


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The user's own cache: images are made once per recipe, not once per test run."""
    return default_cache_dir()


@pytest.fixture(scope="session")
def qemu(cache_dir: Path) -> QemuInstall:
    from runtimed.images.qemu import ensure_qemu

    return ensure_qemu(cache_dir, said)


@pytest.fixture(scope="session")
def default_image(cache_dir: Path) -> ImageFiles:
    from runtimed.images.store import ImageStore

    return ImageStore(cache_dir).ensure("default", said)
