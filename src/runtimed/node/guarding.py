"""Sees to it that a lease guard lives for as long as the service does: starts one, and another when it has died."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from runtimed.core.file_lock import is_held
from runtimed.core.tasks import spawn
from runtimed.node.guard import GUARD_LOCK, is_needed

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Leases are a minute or longer, and the guard matters only once the service is dead too."""


async def start_guard(state_dir: Path) -> None:
    """Start a lease guard, which lives longer than this service if it must. A second one ends at once.

    Raises OSError when the host cannot start a process.
    """
    guard = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runtimed.node.guard",
        str(state_dir),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    spawn(guard.wait(), name="lease guard")


async def keep_guard(state_dir: Path) -> None:
    """Look at the guard's lock until cancelled: it may be of an earlier service, and nobody's child."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if is_held(state_dir / GUARD_LOCK) or not is_needed(state_dir):
            continue
        _log.warning("no lease guard lives: starting one")
        try:
            await start_guard(state_dir)
        except OSError as failure:
            _log.error("the lease guard did not start: %s", failure)
