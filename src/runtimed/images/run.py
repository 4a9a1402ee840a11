"""Starts the programs that a build needs, and ends them with all their children when the build ends early.

It has its own door beside core/run.py because a build blocks a thread, streams its output for minutes, and must
take a whole tree of processes (and their mounts) with it when it is stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from runtimed.images.errors import BuildStopped, CommandFailed, ToolMissing

_log = logging.getLogger(__name__)

OUTPUT_KEPT_CHARS = 1 << 20
"""Of a program's output this much is kept for the caller; the oldest lines go first."""

ENDS_WITHIN_S = 10
"""A killed process ends at once unless it waits for a disk; then its whole group is killed and we go on."""

ADMIN_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where mke2fs and its kind live; an ordinary user's PATH leaves these folders out."""

_CONTAINER = "setpriv"
"""First word of every `contained` command."""

Progress = Callable[[str, float | None], None]
"""Told what is going on: one line, and the share that is done (0 to 1) where it is known."""


def silent(line: str, share: float | None = None) -> None:
    """A Progress for callers who do not want any."""


class Runner(Protocol):
    """The only thing in this room that starts processes; tests put a failing one in its place."""

    def run(
        self,
        argv: Sequence[str],
        *,
        within_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run to the end and answer stdout and stderr as one text. `env` is added to the environment.

        Raises ToolMissing, CommandFailed (an exit code that is not 0, or longer than `within_s` seconds) and
        BuildStopped. However it ends, no process of it is left.
        """


class HostRunner:
    """Runs on this host. One at a time and in one thread; `stop` may be called from any other."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._current: subprocess.Popen[str] | None = None

    def stop(self) -> None:
        """End the program that runs now; from then on nothing starts. Calling it again does nothing."""
        self._stopped.set()
        process = self._current
        if process is not None:
            _end(process)

    def run(
        self,
        argv: Sequence[str],
        *,
        within_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        self._check_not_stopped()
        _log.debug("run %s", shlex.join(argv))
        process = _start(argv, env)
        self._current = process
        late = threading.Event()

        def end_late() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(within_s, end_late)
        timer.daemon = True
        timer.start()
        try:
            if self._stopped.is_set():  # stop() may have come between the check and the start
                _end(process)
            output = _read(process, on_line)
            code = process.wait()
        finally:
            timer.cancel()
            _end(process)
            self._current = None
        self._check_not_stopped()
        if late.is_set() or code != 0:
            raise CommandFailed(argv, code=None if late.is_set() else code, output=output)
        return output

    def _check_not_stopped(self) -> None:
        if self._stopped.is_set():
            raise BuildStopped("The build was stopped; start it again when the host is free.")


def contained(argv: Sequence[str]) -> list[str]:
    """The same command where it may change files as root and mount, and where it cannot outlive this process.

    It gets mount and process namespaces of its own, so its mounts are gone when its last process is (nothing can
    delete the host's /dev through a forgotten mount), and its processes are gone when we are, `kill -9` included.
    An ordinary user also gets a user namespace in which the command is root over the user's subordinate ids.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-auto", "--map-root-user"]
    return [
        *(_CONTAINER, "--pdeathsig", "KILL"),
        *("unshare", *user, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *argv,
    ]


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends the program as Ctrl-C does, so that a build cleans up. Main thread only."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _start(argv: Sequence[str], env: Mapping[str, str] | None) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:{ADMIN_PROGRAMS}", "LC_ALL": "C.UTF-8"}
            | dict(env or {}),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolMissing(argv[0]) from None


def _read(process: subprocess.Popen[str], on_line: Callable[[str], None] | None) -> str:
    kept: list[str] = []
    size = 0
    assert process.stdout is not None
    for line in process.stdout:
        kept.append(line)
        size += len(line)
        while size > OUTPUT_KEPT_CHARS:
            size -= len(kept.pop(0))
        if on_line is not None:
            on_line(line.rstrip())
    return "".join(kept)


def _end(process: subprocess.Popen[str]) -> None:
    """The program and all that it started; returns when they are gone. Harmless when they are already."""
    if process.poll() is not None:
        return
    if process.args[0] == _CONTAINER:  # type: ignore[index]
        # Only the first process of the namespace: the kernel ends the others with it, and `unshare` returns when the
        # last one is gone. Were `unshare` killed, a dying program could still write into a folder that we remove.
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDS_WITHIN_S)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
