"""The lease guard is one process for a state folder, and a service whose guard has died gets another."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimed.core.file_lock import is_held
from runtimed.core.tasks import spawn
from runtimed.core.wait import wait_for
from runtimed.node import guarding
from runtimed.node.guard import GUARD_LOCK, SERVICE_LOCK


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose service lives: without one, and without leases, a guard ends by itself."""
    (tmp_path / "leases").mkdir()
    lock = os.open(tmp_path / SERVICE_LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield tmp_path
    os.close(lock)


async def guard_of(state: Path, *, but: int = 0) -> int:
    async def lives() -> int | None:
        if not is_held(state / GUARD_LOCK):
            return None
        pid = int((state / GUARD_LOCK).read_text() or 0)
        return pid if pid not in (0, but) else None

    return await wait_for("a guard", lives, within_s=20, every_s=0.05)


async def test_a_guard_that_died_is_followed_by_another(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "LOOK_EVERY_S", 0.05)
    await guarding.start_guard(serving)
    first = await guard_of(serving)
    keeping = spawn(guarding.keep_guard(serving), name="keep")
    try:
        os.kill(first, signal.SIGKILL)
        second = await guard_of(serving, but=first)
    finally:
        keeping.cancel()
    os.kill(second, signal.SIGKILL)

    assert second != first


async def test_a_second_guard_ends_at_once_and_the_first_stays(serving: Path) -> None:
    await guarding.start_guard(serving)
    first = await guard_of(serving)
    try:
        await guarding.start_guard(serving)
        assert await guard_of(serving) == first
    finally:
        os.kill(first, signal.SIGKILL)


async def test_none_is_started_where_no_service_and_no_lease_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "LOOK_EVERY_S", 0.0)
    started = []

    async def start(state: Path) -> None:
        started.append(state)

    monkeypatch.setattr(guarding, "start_guard", start)
    keeping = spawn(guarding.keep_guard(tmp_path), name="keep")
    for _ in range(100):
        await asyncio.sleep(0)
    keeping.cancel()

    assert started == []
