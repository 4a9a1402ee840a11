"""What every sweep has in common."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from .emulator import install
from .host import Host


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A sweep makes a service fail thousands of times; what it says of each time would be kept, gigabytes of it."""
    caplog.set_level(logging.CRITICAL, logger="runtimed")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A state folder with nothing in it, and no service yet."""
    made = Host(state=tmp_path / "state")
    made.state.mkdir()
    install(made.emulator, monkeypatch)
    return made
