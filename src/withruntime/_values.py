"""Holds the values that calls give back: what a command did, and which files it touched."""

from dataclasses import asdict, dataclass, field
from typing import Any

Json = dict[str, Any]
"""One JSON object exactly as the service sent it."""


@dataclass(frozen=True, slots=True)
class TracedFiles:
    """The files that a traced command opened; directories end in a slash."""

    read: list[str]
    written: list[str]
    truncated: bool = False

    @staticmethod
    def from_json(data: "Json | None") -> "TracedFiles | None":
        if data is None:
            return None
        return TracedFiles(
            [str(path) for path in data.get("read", [])],
            [str(path) for path in data.get("written", [])],
            bool(data.get("truncated", False)),
        )

    def to_dict(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did. A failing command and a timeout are results, not errors."""

    exit_code: int | None
    """None or a negative signal number when the command did not exit by itself."""
    stdout: str
    stderr: str
    timed_out: bool = False
    stdout_truncated: bool = field(default=False, repr=False)
    """Whether a part of the output is missing here; `stdout_total_bytes` says how much there was."""
    stderr_truncated: bool = field(default=False, repr=False)
    duration_ms: int | None = field(default=None, repr=False)
    process_id: str | None = field(default=None, repr=False)
    replayed: bool = field(default=False, repr=False)
    out_of_memory: Json | None = field(default=None, repr=False)
    files: TracedFiles | None = field(default=None, repr=False)
    stdout_total_bytes: int | None = field(default=None, repr=False)
    """How many bytes the command wrote to it, kept or not; None where the service did not say."""
    stderr_total_bytes: int | None = field(default=None, repr=False)
    lease_ends_in_seconds: float | None = field(default=None, repr=False)
    """How long the sandbox had left when the command began, where that was little."""

    @staticmethod
    def from_json(data: Json) -> "CommandResult":
        return CommandResult(
            data.get("exitCode"),
            data.get("stdout", ""),
            data.get("stderr", ""),
            bool(data.get("timedOut", False)),
            bool(data.get("stdoutTruncated", False)),
            bool(data.get("stderrTruncated", False)),
            data.get("durationMs"),
            data.get("processId"),
            bool(data.get("replayed", False)),
            data.get("outOfMemory"),
            TracedFiles.from_json(data.get("files")),
            data.get("stdoutBytes"),
            data.get("stderrBytes"),
            data.get("leaseEndsInSeconds"),
        )

    def to_json(self) -> Json:
        """The same value in the names of the wire."""
        return {
            "exitCode": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "timedOut": self.timed_out,
            "stdoutTruncated": self.stdout_truncated,
            "stderrTruncated": self.stderr_truncated,
            "durationMs": self.duration_ms,
            "processId": self.process_id,
            "outOfMemory": self.out_of_memory,
            "leaseEndsInSeconds": self.lease_ends_in_seconds,
        }

    def to_dict(self) -> Json:
        return asdict(self)
