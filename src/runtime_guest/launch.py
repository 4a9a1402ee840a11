"""Starts one program: session, cgroup, terminal, user, folder, and exec as a shell would do it.

What a user would see in a shell (no such command, not executable) is the command's own exit code 127 or 126 with a
line on its stderr. What the caller must learn as an error (no such folder) is raised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
from typing import NamedTuple

from runtime_guest.errors import GuestError
from runtime_guest.newborn import AT_FDCWD, Calls, Failed, Midwife
from runtime_guest.users import User

_SIG_SETMASK = 2
_SIGNAL_SET_BYTES = 8
_CONSTANTS = Calls()
_OOM_SCORE, _ZERO = _CONSTANTS.text(b"/proc/self/oom_score_adj"), _CONSTANTS.text(b"0")
_NOTHING = _CONSTANTS.text(bytes(32))
"""A signal action of nothing but the default, and a signal set without a signal."""
_TAKEN_AS_SEARCHED = (errno.ENOENT, errno.ENOTDIR)
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class Program(NamedTuple):
    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    user: User
    pty: tuple[int, int] | None
    """Columns and rows."""
    stdin: bool
    """Whether there will be input; without, the program reads the end of file at once."""


class Launched(NamedTuple):
    pid: int
    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    """-1 with a terminal, whose one descriptor is both stdin_fd and stdout_fd."""
    exit_code: int | None
    """Set when there was nothing to run: the child has ended, and this is what it counts as."""


class Launcher:
    """Starts programs. `launch` blocks, so it belongs into a thread, one that has called `prepare_thread`."""

    def __init__(self) -> None:
        self._midwife = Midwife()
        self._ignored = _ignored()

    @staticmethod
    def prepare_thread() -> None:
        """No signal may be handled in the moment when a child is in our memory."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def launch(self, program: Program, cgroup_fd: int) -> Launched:
        """Start it. The caller owns the descriptors and the child.

        Raises:
            OSError: no room for a process or a descriptor.
            GuestError: it cannot be started as asked.
        """
        opened: list[int] = []
        try:
            mine, theirs = _connect(program, opened)
            launched = self._launch(program, cgroup_fd, mine, theirs)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        for fd in set(theirs):
            os.close(fd)
        for fd in set(mine) - {-1}:
            os.set_blocking(fd, False)
        return launched

    def _launch(
        self, program: Program, cgroup_fd: int, mine: tuple[int, int, int], theirs: tuple[int, int, int]
    ) -> Launched:
        paths = _paths(program)
        pid, failures = self._midwife.start(_calls(program, theirs, paths, program.argv, self._ignored), cgroup_fd)
        refused, path = _refused(failures, paths)
        if refused == errno.ENOEXEC:  # A script without a first line that says what runs it: the shell does.
            paths, again = [b"/bin/sh"], [b"sh", path, *program.argv[1:]]
            pid, failures = self._midwife.start(_calls(program, theirs, paths, again, self._ignored), cgroup_fd)
            refused, _ = _refused(failures, paths)
        for failed in failures:
            if failed.name in _REASONS:
                raise _refusal(failed, program)
        if not refused:
            return Launched(pid, *mine, None)
        return Launched(pid, *mine, _tell(program, refused, theirs[2]))


def _connect(program: Program, opened: list[int]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Our ends and the child's ends of its standard input, output and error."""
    if program.pty is not None:
        ours, theirs = os.openpty()
        opened.extend((ours, theirs))
        resize(ours, *program.pty)
        try:
            os.fchown(theirs, program.user.uid, -1)
        except OSError:
            pass  # Without root every terminal is ours already.
        return (ours, ours, -1), (theirs, theirs, theirs)
    if program.stdin:
        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        opened.extend((stdin_read, stdin_write))
    else:
        stdin_read, stdin_write = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1
        opened.append(stdin_read)
    stdout_read, stdout_write = os.pipe2(os.O_CLOEXEC)
    opened.extend((stdout_read, stdout_write))
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC)
    opened.extend((stderr_read, stderr_write))
    return (stdin_write, stdout_read, stderr_read), (stdin_read, stdout_write, stderr_write)


def resize(terminal: int, cols: int, rows: int) -> None:
    """Tell a terminal its size; its foreground programs get SIGWINCH. Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def _ignored() -> list[int]:
    """Signals that this process ignores: a child would inherit that. Those that are handled become default anyway.

    The kernel is asked, not Python: whoever started us may ignore a signal that the C library keeps from programs.
    """
    with open("/proc/self/status", "rb") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith(b"SigIgn:"))
    return [signum for signum in range(1, 65) if mask >> (signum - 1) & 1]


def _calls(
    program: Program, ends: tuple[int, int, int], paths: list[bytes], argv: list[bytes], ignored: list[int]
) -> Calls:
    calls = Calls()
    calls.add("setsid")
    # The agent is the last to be killed for memory; what it starts is not. The file opens as the lowest descriptor, 0.
    calls.add("close", 0, must=False)
    calls.add("openat", AT_FDCWD, _OOM_SCORE, os.O_WRONLY, must=False)
    calls.add("write", 0, _ZERO, 1, must=False)
    for number, end in enumerate(ends):
        calls.add("dup3", end, number, 0)
    if program.pty is not None:
        calls.add("ioctl", 0, termios.TIOCSCTTY, 0)
    user = program.user
    # Who is that user already may lack the right to say so: a namespace of one user denies setgroups to its root.
    if os.getuid() == 0 and (user.uid, user.gid) != (0, os.getgid()):
        calls.add("setgroups", len(user.groups), calls.numbers(user.groups))
        calls.add("setresgid", user.gid, user.gid, user.gid)
        calls.add("setresuid", user.uid, user.uid, user.uid)
    for signum in ignored:
        calls.add("rt_sigaction", signum, _NOTHING, 0, _SIGNAL_SET_BYTES)
    calls.add("rt_sigprocmask", _SIG_SETMASK, _NOTHING, 0, _SIGNAL_SET_BYTES)
    calls.add("umask", 0o022)
    calls.add("chdir", calls.text(program.cwd))
    words = calls.strings(argv)
    env = calls.strings([name + b"=" + value for name, value in program.env.items()])
    for path in paths:
        calls.add("execve", calls.text(path), words, env, must=False)
    calls.add("exit_group", NOT_FOUND)
    return calls


def _paths(program: Program) -> list[bytes]:
    name = program.argv[0]
    if b"/" in name:
        return [name]
    folders = program.env.get(b"PATH", b"/usr/bin:/bin").split(b":")
    return [(folder or b".") + b"/" + name for folder in folders]


def _refused(failures: list[Failed], paths: list[bytes]) -> tuple[int, bytes]:
    """Why none of the paths could be executed, and the one that decided it: the first that was there. 0: one could."""
    tried = [failed.errno for failed in failures if failed.name == "execve"]
    if len(tried) < len(paths):  # One worked, or the child never came to them.
        return 0, b""
    for number, path in zip(tried, paths):  # noqa: B905 - no strict= in Python 3.9
        if number not in _TAKEN_AS_SEARCHED:
            return number, path
    return errno.ENOENT, paths[-1]


_REASONS = {
    "setsid": "get its own session",
    "dup3": "get its input and output",
    "ioctl": "take its terminal",
    "setgroups": "become its user",
    "setresgid": "become its user",
    "setresuid": "become its user",
    "chdir": "enter its folder",
}


def _refusal(failed: Failed, program: Program) -> GuestError:
    cwd = program.cwd.decode("utf-8", "surrogateescape")
    if failed.name == "chdir":
        if failed.errno in (errno.ENOENT, errno.ENOTDIR):
            return GuestError("cwd_not_found", f"{cwd}: there is no such folder", cwd=cwd)
        return GuestError("permission_denied", f"{cwd}: {os.strerror(failed.errno)}", path=cwd)
    return GuestError("guest_busy", f"the command could not {_REASONS[failed.name]}: {os.strerror(failed.errno)}")


def _tell(program: Program, number: int, stderr_fd: int) -> int:
    """Say on the command's stderr what a shell would say; answers the exit code that stands for it."""
    name = program.argv[0]
    missing = number == errno.ENOENT
    why = b"command not found" if missing and b"/" not in name else os.strerror(number).encode()
    os.write(stderr_fd, name[:1024] + b": " + why + b"\n")
    return NOT_FOUND if missing else NOT_EXECUTABLE
