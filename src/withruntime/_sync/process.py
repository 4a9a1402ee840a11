# Generated from src/withruntime/_async/process.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""A process in a sandbox: its output, its input, its end."""

import time
from collections.abc import Iterator

from withruntime import _calls
from withruntime._errors import OutcomeUnknownError, RuntimeError
from withruntime._stream import Follower, ResultCollector, chunk_bytes
from withruntime._sync import _io
from withruntime._sync.transport import Transport
from withruntime._values import CommandResult, Json, TracedFiles

WAIT_GRACE_S = 10.0
"""How long past a process's own time limit the service may take to say that it ended."""
INPUT_CHUNK_BYTES = 1 << 20
INPUT_REFUSED_PAUSE_S = 0.1


class Process:
    """A process that goes on when nobody reads it. The newest 1 MiB of its output can be read at any time."""

    def __init__(self, t: Transport, sandbox_id: str, info: Json) -> None:
        self._t = t
        self._known_since = time.monotonic()
        self._input_offset = int(info.get("stdinOffset") or 0)
        self._writing = _io.Lock()
        self.sandbox_id = sandbox_id
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, state={self.state!r})"

    @property
    def id(self) -> str:
        return str(self.info["id"])

    @property
    def state(self) -> str | None:
        """As of the last answer: `running`, `exited`, `killed`, `timed_out` or `unknown`."""
        return self.info.get("state")

    @property
    def exit_code(self) -> int | None:
        return self.info.get("exitCode")

    @property
    def command(self) -> str | None:
        return self.info.get("command")

    @property
    def user(self) -> str | None:
        return self.info.get("user")

    @property
    def out_of_memory(self) -> Json | None:
        return self.info.get("outOfMemory")

    def refresh(self) -> Json:
        """Read the process again."""
        self.info = self._t.send(_calls.get_process(self.sandbox_id, self.id))
        return self.info

    def output(self, cursor: int = 0, *, timeout_seconds: float | None = None) -> Iterator[Json]:
        """Yield the output from a position on, and then what comes, until the process ends.

        Raises:
            RuntimeError: `timeout_seconds` passed first (`request_timeout`).
            OutcomeUnknownError: the service could not be reached for five minutes.
        """
        follower = self._follower(cursor, timeout_seconds)
        try:
            with _io.closing(self._t.follow(follower)) as events:
                for event in events:
                    yield event
        except OutcomeUnknownError as error:
            if timeout_seconds is None or follower.time_left_s():
                raise
            raise RuntimeError(
                f"The process {self.id} did not end within {timeout_seconds:g} s.",
                code="request_timeout",
                details={"processId": self.id, "cursor": follower.cursor},
            ) from error

    def output_bytes(self, cursor: int = 0, *, timeout_seconds: float | None = None) -> Iterator[Json]:
        """The same with `data` as bytes, for a process that was spawned with `output_encoding="base64"`.

        Raises:
            RuntimeError: it was not (`binary_output_unavailable`), or the output came without its bytes
                (`invalid_process_output`).
        """
        if self.info.get("outputEncoding") != "base64":
            raise RuntimeError(
                f"The process {self.id} does not send its output as bytes.",
                code="binary_output_unavailable",
                hint='Spawn it with output_encoding="base64".',
            )
        with _io.closing(self.output(cursor, timeout_seconds=timeout_seconds)) as events:
            for event in events:
                if event["type"] not in ("stdout", "stderr"):
                    yield event
                    continue
                if "base64" not in event:
                    raise RuntimeError("Output came without its bytes.", code="invalid_process_output", status=502)
                yield {"type": event["type"], "offset": event["offset"], "data": chunk_bytes(event)}

    def wait(self) -> CommandResult:
        """Wait for the end and return all output that the service still has.

        Returns at the latest ten seconds past the process's own time limit, also if the service never answers.

        Raises:
            OutcomeUnknownError: nothing said how it ended (`outcome_unknown`).
        """
        collector = ResultCollector(process_id=self.id)
        last: Json = {}
        for event in self._t.follow(self._follower(0, self._wait_left_s())):
            _io.told(collector.add(event))
            last = event
        return collector.result(last)

    def write(self, data: str | bytes, eof: bool = False) -> None:
        """Write to its input, which must have been spawned as a pipe or a pty; `eof` closes it afterwards."""
        rest = _calls.whole_text(data, "data").encode() if isinstance(data, str) else bytes(data)
        with self._writing:
            while rest or eof:
                chunk = rest[:INPUT_CHUNK_BYTES]
                last = eof and len(chunk) == len(rest)
                taken = self._write_chunk(chunk, eof=last)
                rest = rest[taken:]
                if last and not rest:
                    return
                if chunk and not taken:
                    _io.sleep(INPUT_REFUSED_PAUSE_S)

    def kill(self, signal: str = "SIGTERM") -> None:
        """Send it a signal."""
        self._t.send(_calls.signal_process(self.sandbox_id, self.id, signal))

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of its pty, in characters."""
        self._t.send(_calls.resize_process(self.sandbox_id, self.id, cols, rows))

    def files(self) -> TracedFiles:
        """The files it opened, if it was spawned with `trace_files=True` and has ended."""
        told = self._t.send(_calls.process_files(self.sandbox_id, self.id))
        return TracedFiles.from_json(told) or TracedFiles([], [])

    def _write_chunk(self, chunk: bytes, *, eof: bool) -> int:
        call = _calls.write_process(self.sandbox_id, self.id, chunk, offset=self._input_offset, eof=eof)
        offset = int((self._t.send(call))["offset"])
        taken = offset - self._input_offset
        if not 0 <= taken <= len(chunk):
            raise RuntimeError("The service lost count of the input.", code="connection_error")
        self._input_offset = offset
        return taken

    def _wait_left_s(self) -> float | None:
        timeout_ms = self.info.get("timeoutMs")
        if not timeout_ms:
            return None
        ends = self._known_since + timeout_ms / 1000 + WAIT_GRACE_S
        return max(WAIT_GRACE_S, float(ends) - time.monotonic())

    def _follower(self, cursor: int, deadline_s: float | None) -> Follower:
        return Follower(
            sandbox_id=self.sandbox_id,
            policy=self._t.policy,
            process_id=self.id,
            cursor=cursor,
            deadline_s=deadline_s,
        )
