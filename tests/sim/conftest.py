"""What every sweep has in common."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A sweep makes a service fail thousands of times; what it says of each time would be kept, gigabytes of it."""
    caplog.set_level(logging.CRITICAL, logger="runtimed")
