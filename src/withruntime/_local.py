"""Finds the service of this user on this machine and starts it when none runs; it blocks, and speaks no API.

What both sides agree on, below the state directory:

    service.json   {"pid", "startTime", "url", "version"}, written by the service once it answers
    service.lock   locked by the service as long as it lives, with its pid in it
    key            the API key, readable by its owner only
    start.lock     held while somebody starts the service
    service.log    what the service prints
    progress       one line that says what a slow start is doing
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from withruntime._errors import ServiceUnavailableError

START_MAX_S = 3600.0
"""A first start may build an image on a slow machine; longer than this, something is stuck."""
STOP_MAX_S = 60.0
_POLL_S = 0.05
_LOG_TAIL_BYTES = 4000
_SAYS = "runtimed: "
"""Begins the sentence with which the service says why it cannot serve."""
_LAST_LINES = 5
"""The sentence is among the last lines; further up it may be that of an earlier start."""
_SERVER_PACKAGES = ("runtimed", "fastapi", "uvicorn", "sqlalchemy")
"""What the extra `server` brings, as far as it takes to know that it is there."""

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Service:
    """A local service that runs."""

    state: Path
    pid: int
    start_time: int
    url: str
    version: str

    def alive(self) -> bool:
        return process_start_time(self.pid) == self.start_time


def state_dir(env: Mapping[str, str]) -> Path:
    """Where the local service keeps what it knows."""
    if named := env.get("RUNTIME_STATE_DIR"):
        return Path(named).expanduser().absolute()
    home = env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "withruntime"


def process_start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with its pid this names a process for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name (field 2) may hold spaces and brackets, so fields are counted from the last bracket: 22 is 20 after it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def find(state: Path) -> Service | None:
    """The service that runs on this state directory, if one does."""
    try:
        told = json.loads((state / "service.json").read_text())
        service = Service(
            state=state,
            pid=int(told["pid"]),
            start_time=int(told["startTime"]),
            url=str(told["url"]),
            version=str(told["version"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return service if service.alive() else None


def holder(state: Path) -> int | None:
    """The pid of the service that has this state directory, answering or still starting; None without one."""
    import fcntl  # only where a local service can run: importing the package must work anywhere

    try:
        handle = os.open(state / "service.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(handle, 32, 0).strip() or 0) or None
    finally:
        os.close(handle)
    return None


def progress(state: Path) -> str | None:
    """The line that says what a start is doing."""
    try:
        return (state / "progress").read_text().strip() or None
    except OSError:
        return None


def read_key(state: Path) -> str | None:
    """The key of the local service, or None while there is none."""
    try:
        return (state / "key").read_text().strip() or None
    except OSError:
        return None


def key_for(origin: str, env: Mapping[str, str]) -> str | None:
    """The local key, if this origin is the local service."""
    service = find(state_dir(env))
    return read_key(service.state) if service is not None and service.url.rstrip("/") == origin else None


def ensure(env: Mapping[str, str], *, report: Report | None = None, give_up: Event | None = None) -> Service:
    """Return the local service, started if none ran. Two callers at once start one.

    Blocks until the service answers, which on a first start may include building an image.
    `report` is told each new line of progress; setting `give_up` from another thread ends the wait.

    Raises:
        ServiceUnavailableError: it is not installed, did not start, or took longer than an hour.
    """
    state = state_dir(env)
    if (service := find(state)) is not None:
        return service
    waiter = _Waiter(state=state, report=report, give_up=give_up)
    _make_state_dir(state)
    with _locked(waiter):
        if (service := find(state)) is not None:
            return service
        # Whoever started one and did not wait for it left it to those who come after.
        return waiter.until_answering(None if holder(state) is not None else _start(state, env))


def stop(state: Path, *, within_s: float = STOP_MAX_S, end_sandboxes: bool = False) -> int | None:
    """Ask the service to end, also one that still starts, and wait until it has. Returns its pid, None if none ran.

    Sandboxes go on until their leases end, and the next service finds them; with `end_sandboxes` they end as well.

    Raises:
        ServiceUnavailableError: it was still there after `within_s` seconds.
    """
    service = find(state)
    pid = service.pid if service is not None else holder(state)
    began = None if pid is None else process_start_time(pid)
    if pid is None or began is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        if end_sandboxes:
            os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + within_s
    while process_start_time(pid) == began:
        if time.monotonic() > deadline:
            raise ServiceUnavailableError(
                f"The local service (pid {pid}) did not end within {within_s:g} s.",
                code="stop_timeout",
                hint=f"See {state / 'service.log'}; `kill -9 {pid}` ends it by force.",
            )
        time.sleep(_POLL_S)
    return pid


def going_on(state: Path, pid: int) -> int | None:
    """How many sandboxes go on without the service that had this pid; None where it did not say."""
    try:
        told = json.loads((state / "stopped.json").read_text())
        return int(told["goingOn"]) if told["pid"] == pid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(kw_only=True)
class _Waiter:
    """Waits with a bound, passing progress on."""

    state: Path
    report: Report | None
    give_up: Event | None
    _said: str = ""

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + START_MAX_S

    def pause(self) -> None:
        if self.give_up is not None and self.give_up.is_set():
            raise ServiceUnavailableError("Nobody waits for the local service any more.", code="start_abandoned")
        if time.monotonic() > self._deadline:
            raise ServiceUnavailableError(
                f"The local service did not answer within {START_MAX_S:g} s.",
                code="start_timeout",
                hint=f"See {self.state / 'service.log'}.",
            )
        self._pass_progress_on()
        time.sleep(_POLL_S)

    def until_answering(self, child: subprocess.Popen[bytes] | None) -> Service:
        """Wait for the service that we started, or without one for that of somebody else."""
        while True:
            ended = holder(self.state) is None if child is None else child.poll() is not None
            service = find(self.state)
            if service is not None and answers(service.url):
                return service
            if ended:
                code = None if child is None else child.returncode
                raise ServiceUnavailableError(
                    f"The local service could not start: {why_it_ended(self.state, code)}",
                    code="start_failed",
                    hint=f"Its log is {self.state / 'service.log'}; `runtime doctor` says what this machine can do.",
                )
            self.pause()

    def _pass_progress_on(self) -> None:
        line = progress(self.state)
        if self.report is not None and line is not None and line != self._said:
            self._said = line
            self.report(line)


def answers(url: str) -> bool:
    """Whether the service says that it is well."""
    # No proxy: one set for the rest of the world cannot reach this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/healthz", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def service_argv(state: Path) -> list[str]:
    """How the service is started: by this interpreter, on a port that is free."""
    return [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--port", "0"]


def _start(state: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if any(importlib.util.find_spec(name) is None for name in _SERVER_PACKAGES):
        raise ServiceUnavailableError(
            "No service address is set, and the local service is not installed.",
            code="server_not_installed",
            hint="Run `pip install 'withruntime[server]'`, or set RUNTIME_API_URL to a service that runs.",
        )
    for stale in ("service.json", "progress"):
        (state / stale).unlink(missing_ok=True)
    with (state / "service.log").open("ab") as log:
        return subprocess.Popen(
            service_argv(state),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=dict(env),
        )


def _make_state_dir(state: Path) -> None:
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServiceUnavailableError(
            f"The state directory {state} cannot be made: {error.strerror}.",
            code="state_dir_unusable",
            hint="Set RUNTIME_STATE_DIR to a directory that you may write.",
        ) from error


@contextlib.contextmanager
def _locked(waiter: _Waiter) -> Iterator[None]:
    import fcntl  # only where a local service can run: importing the package must work anywhere

    try:
        handle = os.open(waiter.state / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServiceUnavailableError(
            f"The state directory {waiter.state} cannot be used: {error.strerror}.",
            code="state_dir_unusable",
            hint="Set RUNTIME_STATE_DIR to a directory that you may write.",
        ) from error
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            waiter.pause()
        yield
    finally:
        os.close(handle)


def why_it_ended(state: Path, code: int | None) -> str:
    """Why a service that ended before it answered did so, in one sentence: its own, where it said one."""
    if code is not None and code < 0:
        return f"it was ended by {signal.Signals(-code).name}."
    try:
        with (state / "service.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    said = [line.removeprefix(_SAYS) for line in lines[-_LAST_LINES:] if line.startswith(_SAYS)]
    if said:
        return said[-1]
    return f"it has a fault ({lines[-1]})." if lines else "it ended without a word."
