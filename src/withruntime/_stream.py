"""Decodes the event stream of a command: bytes in, events out; and decides how a broken stream goes on. No I/O.

A stream is followed by position: one counter over stdout and stderr together. Whatever connection breaks, the next
one asks from that counter, so nothing comes twice and a gap is always told.

    Open(exec) ──start──> following ──exit──> done
                             │  ▲
         broken / continue   ▼  │  Open(output from cursor)
                          between connections
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from withruntime._calls import Call, follow_output
from withruntime._errors import (
    ConnectionError,
    OutcomeUnknownError,
    RuntimeError,
    error_from_envelope,
)
from withruntime._retry import Attempts, RetryPolicy, TransportFailure
from withruntime._values import CommandResult, Json, TracedFiles

LINE_MAX_BYTES = 16 << 20
KEPT_MAX_BYTES = 1 << 20
"""How much of each stream a result holds: the first and the newest half of it. A stream itself has no limit."""
RECONNECT_MAX_S = 300.0
EMPTY_CLOSES_MAX = 4
"""A service that keeps ending the stream politely and says nothing will not say anything."""
_BACKOFF_MAX_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Open:
    """Open this stream and feed what comes."""

    call: Call[bytes]


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Wait before the next connection."""

    seconds: float


class LineDecoder:
    """Cuts a byte stream into JSON objects, one a line; blank lines are heartbeats."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[Json]:
        """Raises:
        RuntimeError: a line that is no JSON object, or that never ends (`invalid_answer`).
        """
        self._pending += chunk
        *lines, rest = self._pending.split(b"\n") if b"\n" in chunk else (self._pending,)
        if len(rest) > LINE_MAX_BYTES:
            raise RuntimeError("The service sent a line without an end.", code="invalid_answer")
        self._pending = bytearray(rest)
        return [_event(line) for line in lines if line.strip()]


def _event(line: bytes | bytearray) -> Json:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise RuntimeError("The service sent a line that is not JSON.", code="invalid_answer") from error
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise RuntimeError("The service sent an event without a type.", code="invalid_answer")
    return event


def chunk_bytes(event: Json) -> bytes:
    """The exact bytes of an output event."""
    encoded = event.get("base64")
    return base64.b64decode(encoded) if encoded is not None else str(event["data"]).encode()


@dataclass(kw_only=True)
class Follower:
    """Follows one command from one connection to the next."""

    sandbox_id: str
    policy: RetryPolicy
    first: Call[bytes] | None = None
    """The exec that starts the command; None for a process that is there already."""
    process_id: str | None = None
    cursor: int = 0
    deadline_s: float | None = None
    """Bound for the whole of it, counted from now."""
    ended: bool = False
    _decoder: LineDecoder = field(default_factory=LineDecoder)
    _pause: Pause | None = None
    _progress: bool = False
    _empty_closes: int = 0
    _failures: int = 0
    _failing_since: float | None = None

    def __post_init__(self) -> None:
        now = self.policy.clock()
        self.deadline = None if self.deadline_s is None else now + self.deadline_s
        self._starts = Attempts(policy=self.policy, deadline=self.deadline)

    def next_step(self) -> Open | Pause | None:
        """What to do now; None when the command has ended and all of it was told."""
        if self.ended:
            return None
        self._check_deadline()
        if self._pause is not None:
            pause, self._pause = self._pause, None
            return pause
        self._decoder = LineDecoder()
        self._progress = False
        if self.process_id is not None:
            return Open(call=follow_output(self.sandbox_id, self.process_id, self.cursor))
        assert self.first is not None, "a follower has a call to start with or a process to follow"
        return Open(call=self.first)

    def time_left_s(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - self.policy.clock())

    def feed(self, chunk: bytes) -> list[Json]:
        """Take what came and return the events in it that the caller should see.

        Raises:
            RuntimeError: the service ended the command with an error that asking again does not mend.
        """
        told: list[Json] = []
        for event in self._decoder.feed(chunk):
            told += self._take(event)
            if self.ended:
                break
        return told

    def closed(self, failure: RuntimeError | TransportFailure | None) -> None:
        """The connection ended. Decides whether and when there is another one.

        Raises:
            RuntimeError: there is none.
        """
        if self.ended:
            return
        if self.process_id is None:
            self._closed_before_start(failure)
        elif failure is None:
            self._closed_politely()
        else:
            self._closed_broken(failure)

    def _take(self, event: Json) -> list[Json]:
        kind = event["type"]
        if kind in ("stdout", "stderr"):
            return self._take_output(event)
        if kind == "continue":
            self._went_on()
            self.process_id = str(event["processId"])
            self.cursor = max(self.cursor, int(event["cursor"]))
            return []
        if kind == "error":
            self._take_error(event)
            return []
        self._went_on()
        if kind == "start":
            self.process_id = str(event["processId"])
            return [event | {"process_id": self.process_id}]
        if kind == "truncated":
            self.cursor = max(self.cursor, int(event.get("resumeAt", 0)))
        elif kind == "exit":
            self.ended = True
            return [event | {"exit_code": event.get("exitCode")}]
        return [event]

    def _take_output(self, event: Json) -> list[Json]:
        self._went_on()
        offset, data = int(event["offset"]), chunk_bytes(event)
        told: list[Json] = []
        if offset > self.cursor:
            told.append({"type": "truncated", "droppedBytes": offset - self.cursor, "resumeAt": offset})
        known = self.cursor - offset
        self.cursor = max(self.cursor, offset + len(data))
        if known >= len(data) > 0:
            return told  # sent again after a reconnect
        if known > 0:
            event = event | {"offset": offset + known, "data": data[known:].decode("utf-8", "replace")}
            event["base64"] = base64.b64encode(data[known:]).decode()
        return [*told, event]

    def _take_error(self, event: Json) -> None:
        envelope = event.get("error")
        envelope = envelope if isinstance(envelope, dict) else {}
        status = envelope.get("status")
        status = status if isinstance(status, int) else 0
        error = error_from_envelope({"code": "stream_failed"} | envelope, status=status)
        if isinstance(event.get("cursor"), int):
            self.cursor = max(self.cursor, event["cursor"])
            error.details = (error.details or {}) | {"cursor": self.cursor}
        if self.process_id is not None:
            error.details = (error.details or {}) | {"processId": self.process_id}
        raise error

    def mends(self, error: RuntimeError) -> bool:
        """Whether an error that came down the stream is over once it is opened again."""
        if error.sent_retryable is not None:
            return error.sent_retryable
        return error.status == 429 or error.status >= 500

    def _went_on(self) -> None:
        self._progress = True
        self._empty_closes = 0
        self._failures = 0
        self._failing_since = None

    def _closed_before_start(self, failure: RuntimeError | TransportFailure | None) -> None:
        if failure is None:
            failure = TransportFailure("broken", "The connection closed before the command started.")
        pause = self._starts.pause_after(failure)
        if pause is None:
            key = None if self.first is None else self.first.idempotency_key
            raise failure if isinstance(failure, RuntimeError) else failure.as_error(key)
        self._pause = Pause(seconds=pause)

    def _closed_politely(self) -> None:
        if self._progress:
            return
        self._empty_closes += 1
        if self._empty_closes >= EMPTY_CLOSES_MAX:
            raise self._lost("The service keeps closing the output without an end.")
        self._pause = Pause(seconds=min(_BACKOFF_MAX_S, 0.25 * 2**self._empty_closes))

    def _closed_broken(self, failure: RuntimeError | TransportFailure) -> None:
        if isinstance(failure, RuntimeError) and not self.mends(failure):
            raise failure
        now = self.policy.clock()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > RECONNECT_MAX_S:
            raise self._lost("The output could not be reached any more.") from failure
        wait_s = min(_BACKOFF_MAX_S, 0.25 * 2**self._failures) * self.policy.rng.uniform(0.5, 1.5)
        if isinstance(failure, RuntimeError) and failure.retry_after_ms is not None:
            wait_s = min(30.0, failure.retry_after_ms / 1000)
        left_s = self.time_left_s()
        self._failures += 1
        self._pause = Pause(seconds=wait_s if left_s is None else min(wait_s, left_s))

    def _check_deadline(self) -> None:
        if self.deadline is None or self.policy.clock() < self.deadline:
            return
        if self.process_id is None:
            raise ConnectionError("The service did not start the command in time.", code="connection_error")
        raise self._lost("The service did not say how the command ended, and its time is over.")

    def _lost(self, message: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            message,
            code="outcome_unknown",
            hint="Ask again with sandbox.process(process_id).refresh() or .output(cursor).",
            details={"processId": self.process_id, "cursor": self.cursor},
        )


class _Kept:
    """The first and the newest half MiB of one stream."""

    def __init__(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        half = KEPT_MAX_BYTES // 2
        self.total += len(data)
        room = half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * half:
            del self._tail[:-half]

    @property
    def cut(self) -> bool:
        return self.total > KEPT_MAX_BYTES

    def text(self) -> str:
        if not self.cut:
            return (self._head + self._tail).decode("utf-8", "replace")
        tail = bytes(self._tail[-(KEPT_MAX_BYTES // 2) :])
        # A character that the cut went through is left out on both sides.
        return self._head.decode("utf-8", "ignore") + tail.lstrip(bytes(range(0x80, 0xC0))).decode("utf-8", "replace")


class ResultCollector:
    """Folds the events of a command into its result."""

    def __init__(
        self,
        on_stdout: "OnText | None" = None,
        on_stderr: "OnText | None" = None,
        *,
        process_id: str | None = None,
    ) -> None:
        self._kept = {"stdout": _Kept(), "stderr": _Kept()}
        self._tell = {"stdout": on_stdout, "stderr": on_stderr}
        self._lost_bytes = 0
        self._process_id = process_id
        self._replayed = False
        self._lease_ends_in: float | None = None

    def add(self, event: Json) -> object:
        """Take one event. Returns what the caller's own callback returned, so that an async one can be awaited."""
        kind = event["type"]
        if kind == "start":
            self._process_id = event["processId"]
            self._replayed = bool(event.get("replayed", False))
            self._lease_ends_in = event.get("leaseEndsInSeconds")
        elif kind == "truncated":
            self._lost_bytes += int(event.get("droppedBytes", 0)) or 1
        elif kind in self._kept:
            self._kept[kind].add(chunk_bytes(event))
            tell = self._tell[kind]
            return None if tell is None else tell(event["data"])
        return None

    def result(self, last: Json) -> CommandResult:
        """The result, given the `exit` event."""
        out, err = self._kept["stdout"], self._kept["stderr"]
        lost = self._lost_bytes > 0
        return CommandResult(
            last.get("exitCode"),
            out.text(),
            err.text(),
            bool(last.get("timedOut", last.get("state") == "timed_out")),
            out.cut or lost,
            err.cut or lost,
            last.get("durationMs"),
            self._process_id,
            self._replayed,
            last.get("outOfMemory"),
            TracedFiles.from_json(last.get("files")),
            None if lost else out.total,
            None if lost else err.total,
            self._lease_ends_in,
        )


OnText = Callable[[str], object]
