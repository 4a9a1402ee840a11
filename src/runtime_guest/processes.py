"""Runs commands: starts them, feeds them, keeps what they write, ends them whole, and remembers how they ended.

(started) --main process ends--> draining --pipes at their end, or 250 ms--> over
    '------deadline: killed with everything it started------^
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from runtime_guest import launch as launching
from runtime_guest.cgroups import Cgroups, Group, ProcessTree, memory_mib
from runtime_guest.errors import GuestError
from runtime_guest.output import KEPT_BYTES, STDERR, STDOUT, HeadTail, Ring
from runtime_guest.users import User

DRAIN_S = 0.25
"""How long output of a command that has ended is waited for: a killed child may hold the pipe for a moment."""
PIPE_BYTES = 64 * 1024
TURN_BYTES, SMALL_BYTES = 256 * 1024, 4096
LAG_BYTES = 512 * 1024
"""A live reader that is this far behind stops the command; half of what is kept, so that nothing is lost to it."""
READER_GONE_S = 10.0
"""A reader that took nothing for this long no longer stops the command."""
RUNNING_MAX = 256
LAUNCHING_MAX = 4
LAUNCH_WITHIN_S = 30.0
ENDED_MAX = 16
RUNNING_SHARE, ENDED_SHARE, ENDED_MAX_BYTES = 8, 16, 24 << 20
"""Output kept in all of running processes, and of ended ones, as shares of the machine's memory."""
STDIN_BUFFER_BYTES = 256 * 1024

RUNNING, EXITED, KILLED, TIMED_OUT = "running", "exited", "killed", "timed_out"


class Spec(NamedTuple):
    """A command as the host sent it, checked."""

    program: launching.Program
    shown_argv: list[str]
    stdin_pipe: bool
    timeout_s: float
    output_base64: bool


class Reader:
    """Somebody who follows a process. `cursor` is the position of the next byte that it will take."""

    def __init__(self, cursor: int, live: bool) -> None:
        self.cursor = cursor
        self.live = live
        self.moved_at = time.monotonic()
        self.left = False
        self._event = asyncio.Event()

    def leave(self) -> None:
        """Nobody is there any more."""
        self.left = True
        self._event.set()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class Process:
    """One command from its start to long after its end."""

    def __init__(self, process_id: str, spec: Spec, group: Group, *, ended: Callable[[Process], None]) -> None:
        self.id, self.spec, self.group = process_id, spec, group
        self.pid: int | None = None
        self.started_at_s = time.time()
        self.ended_at_s: float | None = None
        self.state = RUNNING
        self.exit: dict[str, Any] | None = None
        self.ring = Ring()
        self.captured: tuple[HeadTail, HeadTail] | None = None
        self.stdin_taken = 0
        self.over = asyncio.Event()
        self._ended = ended
        self._started = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._fds: dict[int, int] = {}  # Read end -> stream.
        self._stdin_fd = -1
        self._stdin = bytearray()
        self._stdin_eof = False
        self._stdin_watched = False
        self._status: int | None = None
        self._timed_out = False
        self._counts_as: int | None = None
        self._oom_kills = 0
        self.gone = False
        """Whether nothing of it is left, its cgroup included."""
        self._readers: set[Reader] = set()
        self._held = False
        self._check: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._drain: asyncio.TimerHandle | None = None

    # Starting.

    def begin(self, launched: launching.Launched) -> None:
        """Watch a child that has just been forked."""
        self.pid = launched.pid
        if isinstance(self.group, ProcessTree):
            self.group.started(launched.pid)
        self._stdin_fd = launched.stdin_fd
        self._fds[launched.stdout_fd] = STDOUT
        if launched.stderr_fd >= 0:
            self._fds[launched.stderr_fd] = STDERR
        for fd in self._fds:
            self._loop.add_reader(fd, self._readable, fd)
        self._counts_as = launched.exit_code
        left_s = self.spec.timeout_s - (time.monotonic() - self._started)
        self._deadline = self._loop.call_later(max(left_s, 0), self._deadline_passed)

    # Input.

    @property
    def stdin_open(self) -> bool:
        return self._stdin_fd >= 0 and not self._stdin_eof and self._status is None

    def feed(self, data: bytes, *, eof: bool) -> int:
        """Take as much as there is room for; the rest is the caller's to send again. Answers how much was taken."""
        room = max(0, STDIN_BUFFER_BYTES - len(self._stdin))
        taken = data[:room]
        self._stdin += taken
        self.stdin_taken += len(taken)
        if eof and len(taken) == len(data):
            self._stdin_eof = True
        self._writable()
        return len(taken)

    def feed_all(self, data: bytes) -> None:
        """The whole input, then its end."""
        self._stdin += data
        self.stdin_taken += len(data)
        self._stdin_eof = True
        self._writable()

    def _writable(self) -> None:
        while self._stdin and self._stdin_fd >= 0:
            try:
                size = os.write(self._stdin_fd, memoryview(self._stdin)[:PIPE_BYTES])
            except BlockingIOError:
                break
            except OSError:  # Nobody reads any more: what is left has no reader and that is no fault.
                self._stdin.clear()
                self._close_stdin()
                return
            del self._stdin[:size]
        wanted = bool(self._stdin) and self._stdin_fd >= 0
        if wanted != self._stdin_watched:
            self._stdin_watched = wanted
            if wanted:
                self._loop.add_writer(self._stdin_fd, self._writable)
            else:
                self._loop.remove_writer(self._stdin_fd)
        if not self._stdin and self._stdin_eof:
            self._finish_stdin()

    def _finish_stdin(self) -> None:
        if self._stdin_fd in self._fds:  # A terminal has no half close: its end of input is a character.
            try:
                os.write(self._stdin_fd, b"\x04")
            except OSError:
                pass
            self._stdin_eof = False
        else:
            self._close_stdin()

    def _close_stdin(self) -> None:
        fd, self._stdin_fd = self._stdin_fd, -1
        if fd < 0:
            return
        if self._stdin_watched:
            self._stdin_watched = False
            self._loop.remove_writer(fd)
        if fd not in self._fds:
            os.close(fd)

    # Output.

    def _readable(self, fd: int) -> None:
        data, ended = _read_some(fd)
        if data:
            stream = self._fds[fd]
            self.ring.append(stream, data)
            if self.captured is not None:
                self.captured[stream].append(data)
            for reader in self._readers:
                reader.wake()
        if ended:
            self._close_output(fd)
        elif self._readers:
            self._hold_or_go_on()

    def _close_output(self, fd: int) -> None:
        if not self._held:
            self._loop.remove_reader(fd)
        del self._fds[fd]
        if fd == self._stdin_fd:
            self._close_stdin_of_terminal()
        os.close(fd)
        if not self._fds and self._status is not None:
            self._finish()

    def _close_stdin_of_terminal(self) -> None:
        if self._stdin_watched:
            self._stdin_watched = False
            self._loop.remove_writer(self._stdin_fd)
        self._stdin_fd = -1
        self._stdin.clear()

    # Readers.

    def attach(self, cursor: int, *, live: bool) -> Reader:
        reader = Reader(cursor, live)
        self._readers.add(reader)
        return reader

    def detach(self, reader: Reader) -> None:
        self._readers.discard(reader)
        self._hold_or_go_on()

    def advanced(self, reader: Reader, cursor: int) -> None:
        """The reader has taken everything before `cursor`."""
        reader.cursor = cursor
        reader.moved_at = time.monotonic()
        if self._held:
            self._hold_or_go_on()

    def _hold_or_go_on(self) -> None:
        now = time.monotonic()
        slow = [
            reader
            for reader in self._readers
            if reader.live and self.ring.end - reader.cursor >= LAG_BYTES and now - reader.moved_at < READER_GONE_S
        ]
        hold = bool(slow) and self._status is None
        if hold and self._check is None:
            soonest = min(reader.moved_at for reader in slow) + READER_GONE_S - now
            self._check = self._loop.call_later(soonest + 0.01, self._check_readers)
        if hold == self._held:
            return
        self._held = hold
        for fd in self._fds:
            if hold:
                self._loop.remove_reader(fd)
            else:
                self._loop.add_reader(fd, self._readable, fd)

    def _check_readers(self) -> None:
        self._check = None
        self._hold_or_go_on()

    # Ending.

    def reaped(self, status: int) -> None:
        """The main process has ended: so does everything that it started."""
        self._status = status if self._counts_as is None else self._counts_as << 8
        if self._deadline is not None:
            self._deadline.cancel()
        if status:
            self._oom_kills = self.group.oom_kills()
        self.gone = self.group.remove()
        if not self.gone:
            self.group.kill()
        self._hold_or_go_on()
        if self._fds:
            self._drain = self._loop.call_later(DRAIN_S, self._finish)
        else:
            self._finish()

    def _deadline_passed(self) -> None:
        if self._status is None:
            self._timed_out = True
            self.kill()

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self.group.kill()
        if self._status is None and self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _finish(self) -> None:
        if self.exit is not None:
            return
        if self._drain is not None:
            self._drain.cancel()
        status = self._status or 0
        self.exit = self._exit_of(status)
        self.state = TIMED_OUT if self._timed_out else KILLED if os.WIFSIGNALED(status) else EXITED
        self.ended_at_s = time.time()
        for fd in list(self._fds):
            self._close_output(fd)
        self._close_stdin()
        self._stdin.clear()
        self.over.set()
        for reader in self._readers:
            reader.wake()
        self._ended(self)

    def _exit_of(self, status: int) -> dict[str, Any]:
        signaled = os.WIFSIGNALED(status)
        exit_: dict[str, Any] = {
            "exit_code": None if signaled else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if signaled else None,
            "timed_out": self._timed_out,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
            "out_of_memory": None,
        }
        if self._oom_kills:
            exit_["out_of_memory"] = {"processes_killed": self._oom_kills, "memory_mib": memory_mib()}
        return exit_

    def send_signal(self, signum: int) -> None:
        """To the main process and its process group. Raises GuestError when it has ended."""
        if self._status is not None or self.pid is None:
            raise GuestError("process_ended", "the process has ended")
        if signum == signal.SIGKILL:
            self.kill()
            return
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            os.kill(self.pid, signum)

    def resize(self, cols: int, rows: int) -> None:
        if self.spec.program.pty is None:
            raise GuestError("invalid_request", "the process has no terminal", field="pty")
        if self._stdin_fd >= 0:
            launching.resize(self._stdin_fd, cols, rows)
            self.spec = self.spec._replace(program=self.spec.program._replace(pty=(cols, rows)))

    def kept_bytes(self) -> int:
        captured = sum(min(part.total, 1 << 20) for part in self.captured) if self.captured else 0
        return self.ring.end - self.ring.first + captured

    def info(self) -> dict[str, Any]:
        program = self.spec.program
        return {
            "id": self.id,
            "state": self.state,
            "argv": self.spec.shown_argv,
            "cwd": program.cwd.decode("utf-8", "surrogateescape"),
            "user": program.user.name,
            "pid": self.pid,
            "pty": list(program.pty) if program.pty else None,
            "stdin_open": self.stdin_open,
            "stdin_offset": self.stdin_taken,
            "output_base64": self.spec.output_base64,
            "started_at_s": self.started_at_s,
            "ended_at_s": self.ended_at_s,
            "timeout_ms": round(self.spec.timeout_s * 1000),
            "output_bytes": self.ring.end,
            "first_offset": self.ring.first,
            "exit": self.exit,
        }


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


def _read_some(fd: int) -> tuple[bytes, bool]:
    """What is there, up to TURN_BYTES, and whether it was the end. A program that writes much costs few turns."""
    found: list[bytes] = []
    size = 0
    while size < TURN_BYTES:
        try:
            data = os.read(fd, PIPE_BYTES)
        except BlockingIOError:
            break
        except OSError:  # A terminal whose programs are gone.
            data = b""
        if not data:
            return b"".join(found), True
        found.append(data)
        size += len(data)
        if len(data) < SMALL_BYTES:  # Most likely all there is: asking again costs more than it brings.
            break
    return found[0] if len(found) == 1 else b"".join(found), False


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
