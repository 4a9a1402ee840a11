"""The state folder: who holds it, the key in it, and what the service tells others of this machine through it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtimed.core import file_lock
from runtimed.node.guard import SERVICE_LOCK
from runtimed.settings import CommandError


class StateFolderError(CommandError):
    """The folder cannot be used; one sentence says why and what to do."""


@dataclass(frozen=True)
class StateFolder:
    """Paths and small files. What the client side expects is in withruntime's `_local` module."""

    path: Path

    @property
    def database(self) -> Path:
        return self.path / "runtime.db"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def service_file(self) -> Path:
        return self.path / "service.json"

    @property
    def progress(self) -> Path:
        return self.path / "progress"

    @property
    def stopped_file(self) -> Path:
        return self.path / "stopped.json"

    def make(self) -> None:
        """Raises StateFolderError when there cannot be such a folder."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateFolderError(
                f"the state folder {self.path} cannot be made ({error.strerror}); name another with --state-dir"
            ) from error

    def make_private(self, path: Path) -> None:
        """A file there is its owner's only; SQLite gives the files beside its own the same mode."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One service at a time. Raises StateFolderError naming the one that holds the folder."""
        lock = self.path / SERVICE_LOCK
        with contextlib.ExitStack() as holding:
            try:
                handle = holding.enter_context(file_lock.held_for_life(lock))
            except OSError as error:
                raise StateFolderError(f"the state folder {self.path} cannot be used ({error.strerror})") from error
            if handle is None:
                holder = lock.read_text(errors="replace").strip() or "unknown"
                raise StateFolderError(
                    f"a service already runs on {self.path} (pid {holder}); stop it, or name another --state-dir"
                )
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield

    def say(self, line: str) -> None:
        """A line of progress, for whoever waits for the service: on standard output and in `progress`."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        _replace(self.progress, line + "\n")

    def announce(self, url: str, version: str) -> None:
        """Say that the service answers, and where."""
        told = {"pid": os.getpid(), "startTime": start_time(os.getpid()), "url": url, "version": version}
        _replace(self.service_file, json.dumps(told) + "\n")
        self.progress.unlink(missing_ok=True)

    def say_stopped(self, *, going_on: int) -> None:
        """What a stop of the service left: how many sandboxes go on, until their leases end."""
        _replace(self.stopped_file, json.dumps({"pid": os.getpid(), "goingOn": going_on}) + "\n")

    def withdraw(self) -> None:
        """The service no longer answers. Idempotent."""
        self.service_file.unlink(missing_ok=True)
        self.progress.unlink(missing_ok=True)

    def read_key(self) -> str | None:
        try:
            return self.key.read_text().strip() or None
        except FileNotFoundError:
            return None

    def write_key(self, text: str) -> None:
        _replace(self.key, text + "\n")

    def running_service(self) -> dict[str, object] | None:
        """What a living service has told; None when there is none."""
        try:
            told = json.loads(self.service_file.read_text())
            return told if start_time(int(told["pid"])) == told["startTime"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with the pid it names a process for as long as the host is up."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def _replace(path: Path, text: str) -> None:
    """Owner-only from its first byte, and whole for whoever reads it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as file:
        file.write(text)
    new.rename(path)
