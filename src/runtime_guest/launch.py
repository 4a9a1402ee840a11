"""Starts one program: fork, then in the child session, cgroup, terminal, user, folder, and exec as a shell would do it.

What a user would see in a shell (no such command, not executable) is the command's own exit code 127 or 126 with a
line on its stderr. What the caller must learn as an error (no such folder) comes back through a pipe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import sys
import termios
from typing import NamedTuple, NoReturn

from runtime_guest.errors import GuestError
from runtime_guest.users import User

_FAILED = struct.Struct("Bi")
_STAGES = ("join its cgroup", "take its terminal", "become its user", "enter its folder")
_CGROUP, _TERMINAL, _USER, _CWD = range(4)
_RESET = tuple(
    getattr(signal, name)
    for name in ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD")
)
"""Signals that Python or the agent ignores; the ignoring would be inherited."""


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
    failure_fd: int
    """Says why the child gave up before exec, or just ends."""
    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    """-1 with a terminal, whose one descriptor is both stdin_fd and stdout_fd."""


def launch(program: Program, procs_fd: int) -> Launched:
    """Fork and return at once. Raises OSError when there is no room for a process or a descriptor."""
    opened: list[int] = []
    try:
        failure_read, failure_write = _pipe(opened)
        if program.pty is not None:
            ours, theirs = _terminal(program, opened)
            ends = (theirs, theirs, theirs)
            mine = (ours, ours, -1)
        else:
            if program.stdin:
                stdin_read, stdin_write = _pipe(opened)
            else:
                stdin_read, stdin_write = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1
                opened.append(stdin_read)
            stdout_read, stdout_write = _pipe(opened)
            stderr_read, stderr_write = _pipe(opened)
            ends = (stdin_read, stdout_write, stderr_write)
            mine = (stdin_write, stdout_read, stderr_read)
        pid = os.fork()
        if pid == 0:
            _child(program, procs_fd, ends, failure_write)
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    for fd in {failure_write, *ends}:
        os.close(fd)
    for fd in {failure_read, *mine} - {-1}:
        os.set_blocking(fd, False)
    return Launched(pid, failure_read, *mine)


def _pipe(opened: list[int]) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    opened.extend(ends)
    return ends


def _terminal(program: Program, opened: list[int]) -> tuple[int, int]:
    ours, theirs = os.openpty()
    opened.extend((ours, theirs))
    resize(ours, *(program.pty or (80, 24)))
    try:
        os.fchown(theirs, program.user.uid, -1)
    except OSError:
        pass  # Without root every terminal is ours already.
    return ours, theirs


def resize(terminal: int, cols: int, rows: int) -> None:
    """Tell a terminal its size; its foreground programs get SIGWINCH. Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def failure_of(data: bytes, program: Program) -> GuestError | None:
    """The error that the child's last words stand for, if it left any."""
    if len(data) < _FAILED.size:
        return None
    stage, number = _FAILED.unpack_from(data)
    cwd = program.cwd.decode("utf-8", "surrogateescape")
    if stage == _CWD:
        if number in (errno.ENOENT, errno.ENOTDIR):
            return GuestError("cwd_not_found", f"{cwd}: there is no such folder", cwd=cwd)
        return GuestError("permission_denied", f"{cwd}: {os.strerror(number)}", path=cwd)
    return GuestError("guest_busy", f"the command could not {_STAGES[stage]}: {os.strerror(number)}")


def _child(program: Program, procs_fd: int, ends: tuple[int, int, int], failure_fd: int) -> NoReturn:
    """Everything between fork and exec. Only system calls: another thread may have held any lock."""
    stage = _CGROUP
    try:
        os.setsid()
        if procs_fd >= 0:
            os.write(procs_fd, b"0")
        _default_oom_score()
        stage = _TERMINAL
        for number, end in enumerate(ends):
            os.dup2(end, number, True)
        if program.pty is not None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        stage = _USER
        user = program.user
        if os.getuid() == 0 and (user.uid != 0 or user.groups != (0,)):
            os.setgroups(user.groups)
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
        for signum in _RESET:
            signal.signal(signum, signal.SIG_DFL)
        os.umask(0o022)
        stage = _CWD
        os.chdir(program.cwd)
        _exec(program)
    except OSError as failure:
        os.write(failure_fd, _FAILED.pack(stage, failure.errno or 0))
    finally:
        os._exit(127)


def _default_oom_score() -> None:
    """The agent is the last to be killed for memory; what it starts is not."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"0")
        os.close(fd)
    except OSError:
        pass  # A host that does not allow it has not lowered ours either.


def _exec(program: Program) -> NoReturn:
    """Exec along PATH; a refusal is told on stderr and as exit code, as shells do."""
    name = program.argv[0]
    paths = [name] if b"/" in name else [
        (folder or b".") + b"/" + name for folder in program.env.get(b"PATH", b"/usr/bin:/bin").split(b":")
    ]  # fmt: skip
    worst = errno.ENOENT
    for path in paths:
        try:
            os.execve(path, program.argv, program.env)
        except OSError as failure:
            number = failure.errno or errno.ENOENT
            if number == errno.ENOEXEC:  # A script without a first line that says what runs it: the shell does.
                try:
                    os.execve(b"/bin/sh", [b"sh", path, *program.argv[1:]], program.env)
                except OSError as no_shell:
                    number = no_shell.errno or errno.ENOENT
            if number not in (errno.ENOENT, errno.ENOTDIR):
                worst = number
                if number != errno.EACCES:
                    break
    missing = worst == errno.ENOENT
    why = b"command not found" if missing and b"/" not in name else os.strerror(worst).encode()
    os.write(2, name + b": " + why + b"\n")
    os._exit(127 if missing else 126)
    sys.exit()  # For the type checker.
