"""What tests of every kind share: the host's image and QEMU, made once and cached."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.settings import default_cache_dir


def said(line: str, fraction: float | None = None) -> None:
    print(line, flush=True)


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
