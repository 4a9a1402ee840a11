"""Says what a template does before it is saved: what every clone would otherwise do again, slowly, after its start."""

from __future__ import annotations

import logging
import uuid

from runtimed.core.commands import Command
from runtimed.core.errors import RuntimedError
from runtimed.core.ids import ProcessId
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient

_log = logging.getLogger(__name__)

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("bash", "-c", "true; cat /etc/os-release | wc -l; ls -la / /workspace; env | sort | head -1; sudo -n true"),
    ("sh", "-c", "true"),
    ("python3", "-c", "import json, os, re, sys, subprocess, pathlib; print(6 * 7)"),
    ("find", "/workspace", "-maxdepth", "1"),
    ("tar", "--version"),
    ("true",),
)
"""Programs that agents run first: after this their pages are in the guest's page cache, which the template keeps.

An image without one of them is fine."""


async def warm(channel: Channel) -> None:
    """Grow the disk to its size, run each command once as the sandbox user, then leave no trace of it."""
    guest = GuestClient(channel)
    await guest.grow()
    for argv in COMMANDS:
        try:
            command = Command(argv=argv, timeout_ms=60_000)
            await guest.processes.capture(ProcessId(str(uuid.uuid4())), command, keep_bytes=4096)
        except RuntimedError as failure:
            _log.info("warming with %s: %s", argv[0], failure)
    await guest.settle()
