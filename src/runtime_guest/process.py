"""One command from its start to long after its end: feeds it, keeps what it writes, ends it whole.

(started) --main process ends--> draining --pipes at their end, or 250 ms--> over
    '------deadline: killed with everything it started------^
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from runtime_guest import launch as launching
from runtime_guest.cgroups import Group, ProcessTree, memory_mib
from runtime_guest.errors import GuestError
from runtime_guest.output import STDERR, STDOUT, HeadTail, Ring

DRAIN_S = 0.25
"""How long output of a command that has ended is waited for: a killed child may hold the pipe for a moment."""
PIPE_BYTES = 64 * 1024
TURN_BYTES, SMALL_BYTES = 256 * 1024, 4096
LAG_BYTES = 512 * 1024
"""A live reader that is this far behind stops the command; half of what is kept, so that nothing is lost to it."""
READER_GONE_S = 10.0
"""A reader that took nothing for this long no longer stops the command."""
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
