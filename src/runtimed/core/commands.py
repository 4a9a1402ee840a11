"""Commands and processes as values: what is asked of the guest, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runtimed.core.ids import ProcessId
from runtimed.core.specs import UserName

ProcessState = Literal["running", "exited", "killed", "timed_out", "unknown"]


@dataclass(frozen=True, kw_only=True)
class PtySize:
    cols: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Command:
    """One program to run inside. A string from the user has already become `bash -c STRING`."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """Absolute; None is the sandbox's home."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: UserName | None = None
    """None is the sandbox's default user."""
    stdin: bytes = b""
    """Fed at the start; then the input ends, unless `stdin_pipe`."""
    stdin_pipe: bool = False
    pty: PtySize | None = None
    timeout_ms: int = 60_000
    output_base64: bool = False
    """Only remembered, for the process object."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    processes_killed: int
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended. Exactly one of `exit_code` and `signal` is set, unless it was never known."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    out_of_memory: OutOfMemory | None = None


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The result of a buffered command: the head and the tail of each stream, and how much there was in all."""

    process_id: ProcessId
    exit: Exit
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    """All that was written, kept or not; more than len(stdout) means that the middle was dropped."""
    stderr_bytes: int


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    id: ProcessId
    state: ProcessState
    argv: tuple[str, ...]
    cwd: str
    user: UserName
    pid: int | None
    pty: PtySize | None
    stdin_open: bool
    stdin_offset: int
    output_base64: bool
    started_at_s: float
    ended_at_s: float | None
    timeout_ms: int
    output_bytes: int
    """Position after the newest byte of stdout and stderr together."""
    first_offset: int
    """Position of the oldest byte still kept."""
    exit: Exit | None


# What a reader of a running process sees, in order. The last one is always Ended.
@dataclass(frozen=True, kw_only=True)
class Began:
    process_id: ProcessId
    pid: int


@dataclass(frozen=True, kw_only=True)
class Output:
    stream: Literal["stdout", "stderr"]
    offset: int
    """Position of the first byte in stdout and stderr merged."""
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Lost:
    dropped_bytes: int
    resume_at: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    exit: Exit
    state: ProcessState


ProcessEvent = Began | Output | Lost | Ended
