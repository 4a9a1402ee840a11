"""Starting a program, both ways: a child that borrows the parent's memory, and one that copies it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from runtime_guest.errors import GuestError
from runtime_guest.launch import Launched, Launcher, Program
from runtime_guest.users import User

ME = User("root", "me", os.getuid(), os.getgid(), (os.getgid(),), "/", "/bin/sh")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    stdout: bytes
    stderr: bytes


Run = Callable[..., Outcome]

SIGCANCEL = 32
"""A signal that the C library keeps for itself, and that only a bare system call can ignore."""


def dispose_of(signum: int, disposition: int) -> None:
    action = struct.pack("4Q", disposition, 0, 0, 0)
    failed = ctypes.CDLL(None, use_errno=True).syscall(RT_SIGACTION[platform.machine()], signum, action, None, 8)
    assert failed == 0


RT_SIGACTION = {"x86_64": 13, "aarch64": 134}


@pytest.fixture
def started_by_someone_who_ignores_a_hidden_signal() -> Iterator[None]:
    dispose_of(SIGCANCEL, signal.SIG_IGN)
    yield
    dispose_of(SIGCANCEL, signal.SIG_DFL)


@pytest.fixture(params=["borrowed", "copied"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a program to its end, in the thread that such a thing needs."""
    launcher = Launcher()
    if request.param == "copied":
        launcher._midwife._page = None
    elif not launcher._midwife.borrows:
        pytest.skip("this processor's instructions are not known")
    with ThreadPoolExecutor(4, initializer=Launcher.prepare_thread) as threads:

        def run_it(*argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> Outcome:
            program = Program(
                [arg.encode() for arg in argv],
                {k.encode(): v.encode() for k, v in (env or {"PATH": "/nowhere:/usr/bin:/bin"}).items()},
                cwd.encode(), ME, None, False,
            )  # fmt: skip
            return outcome(threads.submit(launcher.launch, program, -1).result())

        yield run_it


def outcome(launched: Launched) -> Outcome:
    parts = []
    for fd in (launched.stdout_fd, launched.stderr_fd):
        os.set_blocking(fd, True)
        with open(fd, "rb") as file:
            parts.append(file.read())
    status = os.waitpid(launched.pid, 0)[1]
    code = os.waitstatus_to_exitcode(status) if launched.exit_code is None else launched.exit_code
    return Outcome(code=code, stdout=parts[0], stderr=parts[1])


def test_output_error_and_exit_code_come_back(run: Run) -> None:
    assert run("sh", "-c", "echo out; echo err >&2; exit 7") == Outcome(code=7, stdout=b"out\n", stderr=b"err\n")


@pytest.mark.usefixtures("started_by_someone_who_ignores_a_hidden_signal")
def test_a_program_starts_clean(run: Run) -> None:
    """A session of its own, no signal blocked or ignored, the usual mask for files, no descriptor but three."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        status = run("cat", "/proc/self/status").stdout.decode()
        stat = run("cat", "/proc/self/stat").stdout.split()
        descriptors = run("ls", "/proc/self/fd").stdout.split()
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    told = dict(line.split(":\t", 1) for line in status.splitlines())

    assert (told["Umask"], told["SigBlk"], told["SigIgn"]) == ("0022", "0" * 16, "0" * 16)
    assert stat[0] == stat[5]
    # What the test's own starter left open to inherit is there too, and nothing of ours.
    assert descriptors == subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True).stdout.split()


def test_arguments_and_environment_arrive_as_they_are(run: Run) -> None:
    value = "é \n $(id) 'x'"

    seen = run("sh", "-c", 'printf "%s|" "$@"; env', "sh", "", value, env={"PATH": "/usr/bin", "V": value})

    assert seen.stdout.startswith(f"|{value}|".encode())
    assert f"V={value}".encode() in seen.stdout


def test_what_a_shell_would_say_is_said_and_what_is_our_callers_fault_is_raised(run: Run) -> None:
    assert run("no-such").stderr == b"no-such: command not found\n"
    assert run("no-such").code == 127
    assert run("/no/such").stderr == b"/no/such: No such file or directory\n"
    assert run("/etc/passwd").code == 126
    assert run("/etc").code == 126
    with pytest.raises(GuestError) as refused:
        run("true", cwd="/no/such")
    assert refused.value.code == "cwd_not_found"


def test_many_at_once_from_several_threads_do_not_mix(run: Run) -> None:
    def one(number: int) -> Outcome:
        return run("sh", "-c", "echo $NUMBER", env={"PATH": "/usr/bin:/bin", "NUMBER": str(number)})

    with ThreadPoolExecutor(4) as callers:
        seen = list(callers.map(one, range(80)))

    assert [int(one.stdout) for one in seen] == list(range(80))
