"""Commands and processes on the wire: requests into core values, core values into answers and stream events."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from runtimed.core.clock import iso
from runtimed.core.commands import (
    Began,
    Captured,
    Command,
    Ended,
    Exit,
    Lost,
    Output,
    ProcessEvent,
    ProcessInfo,
    PtySize,
)
from runtimed.core.limits import (
    ARGV_MAX_BYTES,
    ARGV_MAX_ITEMS,
    COMMAND_MAX_BYTES,
    EXEC_ENV_MAX_BYTES,
    EXEC_ENV_VALUE_MAX_CHARS,
    EXEC_ENV_VARS_MAX,
    EXEC_TIMEOUT_DEFAULT_MS,
    EXEC_TIMEOUT_MAX_MS,
    EXEC_TIMEOUT_STREAM_DEFAULT_MS,
    STDIN_MAX_BYTES,
)
from runtimed.wire.strict import AbsolutePath, Shown, Strict, Text, check_env

COMMAND_SHOWN_MAX_CHARS = 256
"""Adapters parse tags out of a process's command; the wire protocol promises them this much."""


def _argument(text: str) -> str:
    if len(text.encode()) > COMMAND_MAX_BYTES:
        raise ValueError(f"must be at most {COMMAND_MAX_BYTES} bytes; Linux takes no longer argument")
    return text


def _argv(argv: list[str]) -> list[str]:
    if sum(len(a.encode()) + 1 for a in argv) > ARGV_MAX_BYTES:
        raise ValueError(f"must be at most {ARGV_MAX_BYTES} bytes in all")
    return argv


def _env(env: dict[str, str]) -> dict[str, str]:
    check_env(env, names_max=EXEC_ENV_VARS_MAX, bytes_max=EXEC_ENV_MAX_BYTES)
    if long := sorted(name for name, value in env.items() if len(value) > EXEC_ENV_VALUE_MAX_CHARS):
        raise ValueError(f"{long[0]!r}: a value has at most {EXEC_ENV_VALUE_MAX_CHARS} characters")
    return env


def _stdin(text: str) -> str:
    if len(text.encode()) > STDIN_MAX_BYTES:
        raise ValueError(f"must be at most {STDIN_MAX_BYTES} bytes; write a file, or spawn and write in parts")
    return text


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None
    if len(data) > STDIN_MAX_BYTES:
        raise ValueError(f"must be at most {STDIN_MAX_BYTES} bytes")
    return data


Argument = Annotated[Text, AfterValidator(_argument)]
Argv = Annotated[list[Argument], Field(min_length=1, max_length=ARGV_MAX_ITEMS), AfterValidator(_argv)]
CommandEnv = Annotated[dict[str, Text], AfterValidator(_env)]
Base64 = Annotated[str, AfterValidator(_base64)]
"""Becomes bytes."""


class Pty(Strict):
    cols: int = Field(80, ge=1, le=1000)
    rows: int = Field(24, ge=1, le=1000)


class RunRequest(Strict):
    """What exec and spawn share."""

    command: Argument | None = None
    argv: Argv | None = None
    cwd: AbsolutePath | None = None
    user: Literal["sandbox", "root"] | None = None
    env: CommandEnv = Field(default_factory=dict)
    stdin: Annotated[str, AfterValidator(_stdin)] | None = None
    stdin_base64: Base64 | None = Field(None, alias="stdinBase64")
    timeout_ms: int | None = Field(None, ge=1, le=EXEC_TIMEOUT_MAX_MS, alias="timeoutMs")

    @model_validator(mode="after")
    def _one_of_each(self) -> RunRequest:
        if (self.command is None) == (self.argv is None):
            raise ValueError("command: exactly one of command and argv is needed")
        if self.argv is not None and not self.argv[0]:
            raise ValueError("argv: the program's name is empty")
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValueError("stdinBase64: stdin and stdinBase64 exclude each other")
        return self

    def _command(self, *, timeout_ms: int, **more: Any) -> Command:  # noqa: ANN401 - fields of Command
        argv = self.argv if self.argv is not None else ["bash", "-c", self.command or ""]
        stdin = self.stdin_base64 if self.stdin_base64 is not None else (self.stdin or "").encode()
        return Command(
            argv=tuple(argv),
            cwd=self.cwd,
            env=dict(self.env),
            user=self.user,
            stdin=stdin if isinstance(stdin, bytes) else b"",
            timeout_ms=self.timeout_ms or timeout_ms,
            **more,
        )


class ExecRequest(RunRequest):
    stream: bool = False
    trace_files: bool = Field(False, alias="traceFiles")

    def to_command(self) -> Command:
        default_ms = EXEC_TIMEOUT_STREAM_DEFAULT_MS if self.stream else EXEC_TIMEOUT_DEFAULT_MS
        return self._command(timeout_ms=default_ms)


class SpawnRequest(RunRequest):
    stdin_mode: Literal["pipe"] | None = Field(None, alias="stdinMode")
    pty: Pty | None = None
    output_encoding: Literal["utf8", "base64"] = Field("utf8", alias="outputEncoding")

    def to_command(self) -> Command:
        return self._command(
            timeout_ms=EXEC_TIMEOUT_STREAM_DEFAULT_MS,
            stdin_pipe=self.stdin_mode == "pipe" or self.pty is not None,
            pty=PtySize(cols=self.pty.cols, rows=self.pty.rows) if self.pty else None,
            output_base64=self.output_encoding == "base64",
        )


class WriteStdin(Strict):
    base64: Base64 | None = None
    data: Annotated[str, AfterValidator(_stdin)] | None = None
    offset: int = Field(0, ge=0)
    eof: bool = False

    def payload(self) -> bytes:
        return self.base64 if isinstance(self.base64, bytes) else (self.data or "").encode()


class Signal(Strict):
    signal: Text = "SIGTERM"


class Resize(Strict):
    cols: int = Field(ge=1, le=1000)
    rows: int = Field(ge=1, le=1000)


class ExecResult(Shown):
    exitCode: int | None
    stdout: str
    stderr: str
    timedOut: bool
    stdoutTruncated: bool
    stderrTruncated: bool
    durationMs: int
    processId: str


class Process(Shown):
    id: str
    kind: Literal["process"]
    state: Literal["running", "exited", "killed", "timed_out", "unknown"]
    exitCode: int | None
    command: str
    outputBytes: int


class ProcessList(Shown):
    data: list[Process]


class StdinTaken(Shown):
    offset: int


def exit_code(ended: Exit | None) -> int | None:
    """The code, or the negative number of the signal that ended it."""
    if ended is None:
        return None
    return -ended.signal if ended.signal is not None else ended.exit_code


def _out_of_memory(ended: Exit | None) -> dict[str, object] | None:
    if ended is None or ended.out_of_memory is None:
        return None
    memory = ended.out_of_memory
    return {
        "code": "out_of_memory",
        "processesKilled": memory.processes_killed,
        "memoryMiB": memory.memory_mib,
        "message": f"the sandbox ran out of its {memory.memory_mib} MiB of memory",
        "hint": "use less, or create the sandbox with more memoryMiB",
    }


def _exit_fields(ended: Exit) -> dict[str, object]:
    fields: dict[str, object] = {
        "exitCode": exit_code(ended),
        "timedOut": ended.timed_out,
        "durationMs": ended.duration_ms,
    }
    if memory := _out_of_memory(ended):
        fields["outOfMemory"] = memory
    return fields


def captured_body(done: Captured) -> dict[str, object]:
    """The answer of a buffered exec. Bytes that are not UTF-8 come once more, whole, as base64."""
    body = _exit_fields(done.exit)
    body["processId"] = done.process_id
    for name, data, total in (("stdout", done.stdout, done.stdout_bytes), ("stderr", done.stderr, done.stderr_bytes)):
        try:
            body[name] = data.decode()
        except UnicodeDecodeError:
            body[name] = data.decode(errors="replace")
            body[f"{name}Base64"] = base64.b64encode(data).decode()
        body[f"{name}Truncated"] = total > len(data)
        body[f"{name}Bytes"] = total
    return body


def process_body(process: ProcessInfo) -> dict[str, object]:
    body: dict[str, object] = {
        "id": process.id,
        "kind": "process",
        "state": process.state,
        "exitCode": exit_code(process.exit),
        "timedOut": process.exit.timed_out if process.exit else False,
        "command": " ".join(process.argv)[:COMMAND_SHOWN_MAX_CHARS],
        "cwd": process.cwd,
        "user": process.user,
        "pid": process.pid,
        "pty": process.pty is not None,
        "stdinOpen": process.stdin_open,
        "stdinOffset": process.stdin_offset,
        "outputEncoding": "base64" if process.output_base64 else "utf8",
        "startedAt": iso(process.started_at_s),
        "endedAt": iso(process.ended_at_s),
        "timeoutMs": process.timeout_ms,
        "outputBytes": process.output_bytes,
        "firstOffset": process.first_offset,
    }
    if memory := _out_of_memory(process.exit):
        body["outOfMemory"] = memory
    return body


def event_body(event: ProcessEvent, *, as_base64: bool) -> dict[str, object]:
    """One line of an NDJSON stream. A chunk that is not whole UTF-8 carries base64, so that no length changes."""
    match event:
        case Began():
            return {"type": "start", "processId": event.process_id, "pid": event.pid}
        case Output():
            body: dict[str, object] = {"type": event.stream, "offset": event.offset}
            try:
                body["data"] = event.data.decode()
            except UnicodeDecodeError:
                body["data"] = event.data.decode(errors="replace")
                as_base64 = True
            if as_base64:
                body["base64"] = base64.b64encode(event.data).decode()
            return body
        case Lost():
            return {"type": "truncated", "droppedBytes": event.dropped_bytes, "resumeAt": event.resume_at}
        case Ended():
            return {"type": "exit", "state": event.state, **_exit_fields(event.exit)}


def polled_chunk(event: Output, *, as_base64: bool) -> dict[str, object]:
    """One chunk of a polled read."""
    body = event_body(event, as_base64=as_base64)
    return {"stream": body.pop("type"), "text": body.pop("data"), **body}
