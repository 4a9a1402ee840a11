"""Says what a machine does before it is handed out, so that its user does not wait for it.

A template runs what agents run first, which leaves the pages in memory that every clone shares. A spare rehearses its
own first steps: under emulation a clone starts without translated code, and the first run of anything is slow.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace

from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.errors import CallerError
from runtimed.core.ids import ProcessId
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient, Identity

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


QUIET_S = 3.0
"""The kernel's own work behind commands that have ended, and its statistics every two seconds."""
REHEARSED: tuple[tuple[str, ...], ...] = (("true",), ("bash", "-c", "true"), ("python3", "-c", "pass"))


async def warm(channel: Channel, *, ca_pem: str | None = None) -> None:
    """Grow the disk to its size, run each command once as the sandbox user, then leave no trace of it.

    A clone that is to trust `ca_pem` has nothing to do for it; one that is to trust another forgets this one.
    """
    guest = GuestClient(channel)
    await guest.grow()
    await _run_each(guest, COMMANDS)
    # What an identity touches is then in memory too. The name of one letter: every later one is longer, and a file
    # that grows is written with less than one that shrinks.
    await guest.identify(replace(_nobody("t"), ca_pem=ca_pem), SystemClock())
    await guest.settle(quiet_s=QUIET_S)


async def rehearse(channel: Channel) -> None:
    """Go through an identity and a few commands, then leave no trace of it."""
    guest = GuestClient(channel)
    await guest.identify(_nobody("spare"), SystemClock())
    await _run_each(guest, REHEARSED)
    await guest.settle()


def _nobody(name: str) -> Identity:
    return Identity(hostname=name, machine_id=uuid.uuid4().hex, entropy=os.urandom(64))


async def _run_each(guest: GuestClient, commands: Sequence[tuple[str, ...]]) -> None:
    for argv in commands:
        try:
            command = Command(argv=argv, timeout_ms=60_000)
            await guest.processes.capture(ProcessId(str(uuid.uuid4())), command, keep_bytes=4096)
        except CallerError as failure:  # an image without bash or Python is fine
            _log.info("warming with %s: %s", argv[0], failure)
