"""Starts the agent: as a machine's PID 1 over its port, or with `--listen-fd` over a Unix socket for tests."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import time
import traceback
import warnings

from runtime_guest import network, port, system
from runtime_guest.agent import Agent, Handler
from runtime_guest.cgroups import Cgroups
from runtime_guest.command_methods import CommandMethods
from runtime_guest.file_methods import FileMethods
from runtime_guest.identity import log
from runtime_guest.machine_methods import MachineMethods
from runtime_guest.processes import Processes
from runtime_guest.relay import Relay
from runtime_guest.rights import Workers
from runtime_guest.users import Users


def _methods(processes: Processes, users: Users, cgroups: Cgroups, *, machine: bool) -> dict[str, Handler]:
    commands = CommandMethods(processes, users)
    files = FileMethods(users, Workers(users))
    whole = MachineMethods(commands, processes, cgroups, machine=machine)
    return {
        "ping": whole.ping,
        "machine.hold": whole.hold,
        "machine.identify": whole.identify,
        "machine.grow": whole.grow,
        "machine.settle": whole.settle,
        "machine.flush": whole.flush,
        "machine.poweroff": whole.power_off,
        "machine.update": commands.update,
        "process.capture": commands.capture,
        "process.spawn": commands.spawn,
        "process.run": commands.run,
        "process.follow": commands.follow,
        "process.list": commands.list,
        "process.get": commands.get,
        "process.stdin": commands.write_stdin,
        "process.signal": commands.signal,
        "process.resize": commands.resize,
        "file.read": files.read,
        "file.write": files.write,
        "file.upload_begin": files.begin_upload,
        "file.upload_chunk": files.put_chunk,
        "file.upload_commit": files.commit_upload,
        "file.upload_abort": files.abort_upload,
        "file.list": files.list,
        "file.stat": files.stat,
        "file.mkdir": files.mkdir,
        "file.remove": files.remove,
        "file.rename": files.rename,
        "file.chmod": files.chmod,
        "file.archive_read": files.read_archive,
        "file.archive_write": files.write_archive,
    }


async def _serve(listen_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: log(f"loop: {context.get('message')} {context.get('exception')!r}"))
    cgroups = Cgroups()
    if listen_fd is None:
        system.attempt("cgroups", cgroups.prepare)
    users = Users()
    processes = Processes(cgroups, users.get("root"))
    loop.add_signal_handler(signal.SIGCHLD, processes.reap)
    agent = Agent(_methods(processes, users, cgroups, machine=listen_fd is None))
    gc.collect()
    gc.freeze()  # A fork copies what is touched: the collector must not touch everything.
    if listen_fd is None:
        await Relay(agent.link).start()
        await port.open_port(agent.wire)
        log("ready")
    else:
        with port.listen(agent.wire, listen_fd):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


def main() -> None:
    """Never returns on a machine: without a PID 1 the kernel panics."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen-fd", type=int, help="listening Unix socket to serve instead of a machine's port")
    listen_fd = parser.parse_args().listen_fd
    warnings.simplefilter("ignore", DeprecationWarning)  # os.fork beside threads: the child only makes system calls.
    os.chdir("/")
    if listen_fd is None:
        system.bring_up()
        network.bring_up()
    while True:
        try:
            asyncio.run(_serve(listen_fd))
        except Exception:  # noqa: BLE001 - the boundary of PID 1
            log(traceback.format_exc())
        if listen_fd is not None:
            return
        time.sleep(1)


if __name__ == "__main__":
    main()
