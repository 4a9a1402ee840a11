"""What all tests of this room share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole host's dirty pages need not reach the disk for each of some hundred little builds."""
    monkeypatch.setattr(os, "sync", lambda: None)
