"""What the host can ask about the machine as a whole: identity, size of the disk, its end."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

from runtime_guest import identity, network, residents, system
from runtime_guest.cgroups import Cgroups
from runtime_guest.command_methods import CommandMethods
from runtime_guest.errors import GuestError
from runtime_guest.processes import Processes
from runtime_guest.streams import Stream

HELD_MAX_S = 10.0
"""On the machine's own clock, which stands while its processors do. Then its programs go on, whatever was planned."""
RESIZE_TOOL = "/run/runtime/guest/bin/resize2fs"


class MachineMethods:
    """`machine` is False where the agent is no machine's PID 1 (tests): nothing outside the agent is changed then."""

    def __init__(self, commands: CommandMethods, processes: Processes, cgroups: Cgroups, *, machine: bool) -> None:
        self._commands, self._processes, self._machine = commands, processes, machine
        self._cgroups = cgroups
        self._held: asyncio.TimerHandle | None = None

    async def ping(self, stream: Stream, params: dict[str, Any]) -> None:
        await stream.send_message({}, last=True)

    async def hold(self, stream: Stream, params: dict[str, Any]) -> None:
        """Stop what commands have started until `identify`: no copy of it runs before it has its own identity.

        Nobody waits for them to be still: the kernel lets none of them return to its program from here on.
        """
        self._release()
        self._cgroups.hold()
        self._held = asyncio.get_running_loop().call_later(HELD_MAX_S, self._release)
        await stream.send_message({}, last=True)

    def _release(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
            self._cgroups.release()

    async def identify(self, stream: Stream, params: dict[str, Any]) -> None:
        """Not off the loop: nothing else may run before it is done. What was held goes on then."""
        try:
            done = self._identify(params)
        finally:
            self._release()
        await stream.send_message(done, last=True)

    def _identify(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._machine and isinstance(params.get("ca_pem"), str):
            system.attempt("certificates", lambda: network.trust(params["ca_pem"]))
        done = identity.become(params, machine=self._machine)
        if params.get("env") is not None:  # a machine that goes on after a pause has its own already
            self._commands.set_defaults(params["env"], params.get("user", "sandbox"))
        if params.get("copy"):
            residents.tell(self._cgroups.members())
        return done

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
        """Before the machine is saved as a template: no trace of what ran, and nothing left to be done.

        What the kernel still does behind a command that has ended (freeing its cgroup, writing) every clone would do
        again, first of all and without translated code; in `quiet_s` seconds it is over.
        """
        self._processes.forget_ended()
        if self._machine:
            os.sync()
            await asyncio.sleep(float(params.get("quiet_s", 0)))
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
