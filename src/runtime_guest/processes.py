"""The table of commands: what runs and the newest that ended; it starts them and reaps what the machine orphans."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from runtime_guest import launch as launching
from runtime_guest.cgroups import Cgroups, Group, memory_mib
from runtime_guest.errors import GuestError
from runtime_guest.output import KEPT_BYTES, HeadTail
from runtime_guest.process import Process, Spec
from runtime_guest.users import User

RUNNING_MAX = 256
LAUNCHING_MAX = 4
LAUNCH_WITHIN_S = 30.0
ENDED_MAX = 16
RUNNING_SHARE, ENDED_SHARE, ENDED_MAX_BYTES = 8, 16, 24 << 20
"""Output kept in all of running processes, and of ended ones, as shares of the machine's memory."""


class Processes:
    """The table: everything that runs, and the newest that ended. It also reaps what the machine orphans."""

    def __init__(self, cgroups: Cgroups, root: User) -> None:
        self._cgroups, self._root = cgroups, root
        self._running: dict[str, Process] = {}
        self._ended: OrderedDict[str, Process] = OrderedDict()
        self._children: dict[int, Callable[[int], None]] = {}
        self._starting: dict[str, asyncio.Future[None]] = {}
        memory = memory_mib() << 20
        self._running_bytes = memory // RUNNING_SHARE
        self._ended_bytes = min(memory // ENDED_SHARE, ENDED_MAX_BYTES)
        self._launcher = launching.Launcher()
        self._threads = ThreadPoolExecutor(LAUNCHING_MAX, initializer=launching.Launcher.prepare_thread)
        self._launching = 0
        self._unclaimed: dict[int, int] = {}
        """Ends of children that were born and died while their launch was under way."""
        self._dying: list[Group] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_s = 0.0
        self._loop = asyncio.get_running_loop()

    async def start(self, process_id: str, spec: Spec, stdin: bytes, keep_bytes: int | None = None) -> Process:
        """Start, or answer the process that has this id already. Raises GuestError when nothing ran."""
        starting = self._starting.get(process_id)
        if starting is not None:
            await asyncio.shield(starting)
        known = self.find(process_id)
        if known is not None:
            return known
        if len(self._running) >= RUNNING_MAX:
            raise GuestError("process_limit", f"{RUNNING_MAX} processes of the sandbox run already", limit=RUNNING_MAX)
        done = self._starting[process_id] = self._loop.create_future()
        try:
            return await self._start(process_id, spec, stdin, keep_bytes)
        finally:
            del self._starting[process_id]
            done.set_result(None)

    async def _start(self, process_id: str, spec: Spec, stdin: bytes, keep_bytes: int | None) -> Process:
        if not self._cgroups.real:
            spec.program.env[b"RUNTIME_PROCESS_ID"] = process_id.encode()
        try:
            group = self._cgroups.make(process_id)
        except OSError as failure:
            raise GuestError("guest_busy", f"no room for another command: {failure.strerror}") from failure
        process = Process(process_id, spec, group, ended=self._over)
        if keep_bytes is not None:
            process.captured = (HeadTail(keep_bytes), HeadTail(keep_bytes))
        with self._expecting():
            try:
                launched = await self._launch(spec.program, group)
            except OSError as failure:
                self._bury(group)
                raise GuestError("guest_busy", f"no room for another process: {failure.strerror}") from failure
            except GuestError:
                self._bury(group)
                raise
            self._running[process_id] = process
            self._share_memory()
            process.begin(launched)
            self._claim(launched.pid, process.reaped)
        if stdin and not spec.stdin_pipe:
            process.feed_all(stdin)
        elif stdin:
            process.feed(stdin, eof=False)
        return process

    async def _launch(self, program: launching.Program, group: Group | None) -> launching.Launched:
        """In a thread: a strange file system may keep it waiting for ever. Raises OSError, GuestError."""
        folder_fd = -1 if group is None else group.folder_fd()
        work = self._loop.run_in_executor(self._threads, self._launcher.launch, program, folder_fd)
        work.add_done_callback(lambda _: None if folder_fd < 0 else os.close(folder_fd))
        done, _ = await asyncio.wait({work}, timeout=LAUNCH_WITHIN_S)
        if not done:
            work.add_done_callback(_end_late)
            raise GuestError("guest_busy", f"the command did not start within {LAUNCH_WITHIN_S:g} s")
        return work.result()

    @contextmanager
    def _expecting(self) -> Iterator[None]:
        """While a launch is under way its child may end before its pid is known here: keep every end until it is."""
        self._launching += 1
        try:
            yield
        finally:
            self._launching -= 1
            if not self._launching:
                self._unclaimed.clear()

    def _claim(self, pid: int, reaped: Callable[[int], None]) -> None:
        status = self._unclaimed.pop(pid, None)
        if status is None:
            self._children[pid] = reaped
        else:
            reaped(status)

    def find(self, process_id: str) -> Process | None:
        return self._running.get(process_id) or self._ended.get(process_id)

    def get(self, process_id: str) -> Process:
        process = self.find(process_id)
        if process is None:
            raise GuestError("process_not_found", "there is no such process", processId=process_id)
        return process

    def all(self) -> list[Process]:
        return [*self._ended.values(), *self._running.values()]

    def forget_ended(self) -> None:
        self._ended.clear()

    def reap(self) -> None:
        """Collect every child that has ended: commands, and orphans that became ours. Call on SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            reaped = self._children.pop(pid, None)
            if reaped is not None:
                reaped(status)
            elif self._launching:
                self._unclaimed[pid] = status
        if self._dying:
            self._sweep_dying()

    async def tool(self, argv: list[str]) -> tuple[int, bytes]:
        """Run a program of the agent's own to its end: exit status and what it said. Raises OSError."""
        program = launching.Program([arg.encode() for arg in argv], {}, b"/", self._root, None, False)
        status: asyncio.Future[int] = self._loop.create_future()
        with self._expecting():
            launched = await self._launch(program, None)
            self._claim(launched.pid, status.set_result)
        said = await _read_to_end(launched.stdout_fd) + await _read_to_end(launched.stderr_fd)
        return os.waitstatus_to_exitcode(await status), said

    def _share_memory(self) -> None:
        """Hundreds of processes that all write much keep less each, so that the agent stays small."""
        each = min(KEPT_BYTES, self._running_bytes // len(self._running))
        for process in self._running.values():
            process.ring.kept_bytes = each

    def _over(self, process: Process) -> None:
        del self._running[process.id]
        self._ended[process.id] = process
        kept = sum(old.kept_bytes() for old in self._ended.values())
        while len(self._ended) > ENDED_MAX or (kept > self._ended_bytes and len(self._ended) > 1):
            kept -= self._ended.popitem(last=False)[1].kept_bytes()
        if not process.gone:
            self._bury(process.group)

    # A cgroup can only be removed when the last process in it is dead, and dying takes a moment.

    def _bury(self, group: Group) -> None:
        if not group.remove():
            self._dying.append(group)
            self._sweep_s = 0.05
            self._sweep_later()

    def _sweep_dying(self) -> None:
        for group in self._dying:
            group.kill()
        self._dying = [group for group in self._dying if not group.remove()]
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._dying:
            self._sweep = self._loop.call_later(self._sweep_s, self._sweep_dying)
            self._sweep_s = min(self._sweep_s * 2, 5.0)


async def _read_to_end(fd: int) -> bytes:
    """Everything from a pipe until its other end is closed, then close it."""
    loop = asyncio.get_running_loop()
    found = bytearray()
    readable: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            data = os.read(fd, 4096)
        except BlockingIOError:
            return
        found.extend(data)
        if not data and not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, read)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return bytes(found)


def _end_late(work: asyncio.Future[launching.Launched]) -> None:
    """A launch that nobody waits for any more came through after all."""
    if work.cancelled() or work.exception() is not None:
        return
    launched = work.result()
    for fd in {launched.stdin_fd, launched.stdout_fd, launched.stderr_fd} - {-1}:
        os.close(fd)
    try:
        os.killpg(launched.pid, signal.SIGKILL)
    except OSError:
        pass
