"""What the host can ask about the machine as a whole: identity, size of the disk, its end."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

from runtime_guest import identity, network, system
from runtime_guest.command_methods import CommandMethods
from runtime_guest.errors import GuestError
from runtime_guest.processes import Processes
from runtime_guest.streams import Stream

RESIZE_TOOL = "/run/runtime/guest/bin/resize2fs"


class MachineMethods:
    """`machine` is False where the agent is no machine's PID 1 (tests): nothing outside the agent is changed then."""

    def __init__(self, commands: CommandMethods, processes: Processes, *, machine: bool) -> None:
        self._commands, self._processes, self._machine = commands, processes, machine

    async def ping(self, stream: Stream, params: dict[str, Any]) -> None:
        await stream.send_message({}, last=True)

    async def identify(self, stream: Stream, params: dict[str, Any]) -> None:
        """Not off the loop: nothing else may run before it is done."""
        if self._machine and isinstance(params.get("ca_pem"), str):
            system.attempt("certificates", lambda: network.trust(params["ca_pem"]))
        done = identity.become(params, machine=self._machine)
        if params.get("env") is not None:  # a machine that goes on after a pause has its own already
            self._commands.set_defaults(params["env"], params.get("user", "sandbox"))
        await stream.send_message(done, last=True)

    async def grow(self, stream: Stream, params: dict[str, Any]) -> None:
        """Make the root file system as large as its disk, while it is mounted."""
        if self._machine:
            device = _root_device()
            code, said = await self._processes.tool([RESIZE_TOOL, device])
            if code:
                raise GuestError("start_failed", f"{device} did not grow: {said.decode('utf-8', 'replace')[-500:]}")
        stat = os.statvfs("/")
        await stream.send_message(
            {"bytes": stat.f_blocks * stat.f_frsize, "free": stat.f_bavail * stat.f_frsize}, last=True
        )

    async def settle(self, stream: Stream, params: dict[str, Any]) -> None:
        """Before the machine is saved as a template: no trace of what ran, and nothing left to be written."""
        self._processes.forget_ended()
        if self._machine:
            os.sync()
        gc.collect()
        gc.freeze()
        await stream.send_message({}, last=True)

    async def flush(self, stream: Stream, params: dict[str, Any]) -> None:
        """Bring what was written to the disks; commands run on meanwhile."""
        if self._machine:
            await asyncio.get_running_loop().run_in_executor(None, os.sync)
        await stream.send_message({}, last=True)

    async def power_off(self, stream: Stream, params: dict[str, Any]) -> None:
        await stream.send_message({}, last=True)
        stream.link.flush()
        if self._machine:
            system.power_off()


def _root_device() -> str:
    """The block device under `/`, by its number: /proc/mounts may say /dev/root."""
    number = os.stat("/").st_dev
    name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
    return f"/dev/{name}"
