"""Says for each operation what to send and how to read the answer: values only, no I/O."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from withruntime._errors import RuntimeError, error_from_envelope
from withruntime._retry import OnCapacityWait
from withruntime._values import CommandResult, Json

T = TypeVar("T")
User = Literal["sandbox", "root"]
Command = str | list[str] | tuple[str, ...]
OnProgress = Callable[[str], None]
"""Told in a clause what a start that takes long does."""

ANSWER_GRACE_S = 60.0
"""How long past a command's own time limit its answer is waited for."""
BUFFERED_TIMEOUT_MS = 60_000
"""The service's default, and the longest command that is answered in one piece."""
STREAMED_TIMEOUT_MS = 86_400_000
FOLLOW_SILENCE_S = 180.0
"""A quiet stream sends something at least every 150 s; after this the connection is taken for dead."""
SETTLE_S = 60

_KEY_SYNTAX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


class CreateSettings(TypedDict, total=False):
    """What a new sandbox can be told beside its name; everything has a default in the service."""

    labels: dict[str, str]
    env: dict[str, str]
    region: str
    vcpu: int
    memory_mib: int
    disk_mib: int
    cpu: Literal["shared", "reserved"]
    cpu_floor_millis: int
    timeout_seconds: int
    on_lease_end: Literal["pause", "stop", "delete"]
    idle_pause_seconds: int
    auto_wake: bool
    user: User
    persistent: bool
    pausable: bool
    max_total_cost_micros: int
    max_cost_micros: int
    funding: Literal["trial", "paid"]
    get_or_create: bool
    network: Json
    image: str
    snapshot: str
    snapshot_id: str
    spread_from: list[str]
    volumes: list[Json]
    secrets: list[str]
    tailscale: Json


class UnnamedCreateOptions(CreateSettings, total=False):
    """The same, with what only the client looks at."""

    wait: bool
    keep: bool
    idempotency_key: str | None
    wait_for_capacity: float | None
    on_capacity_wait: OnCapacityWait | None


class CreateOptions(UnnamedCreateOptions, total=False):
    """Everything that a create takes."""

    name: str


class UpdateFields(TypedDict, total=False):
    """What can change while a sandbox exists; None is sent as null and clears the value."""

    name: str | None
    labels: dict[str, str]
    env: dict[str, str | None]
    auto_wake: bool
    user: User
    idle_pause_seconds: int | None
    persistent: bool
    max_total_cost_micros: int | None
    timeout_seconds: int
    on_timeout: Literal["pause", "stop", "delete"]
    on_lease_end: Literal["pause", "stop", "delete"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A 2xx answer that was read to its end. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Decode = Callable[[Answer], T]


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One logical call: sent as often as needed, always with the same key, until its deadline."""

    method: str
    path: str
    decode: Decode[T]
    body: Json | None = None
    content: bytes | None = None
    accept: str = "application/json"
    wait_s: int | None = None
    """How long the service should hold the answer until the change has settled."""
    idempotency_key: str | None = None
    silence_s: float | None = None
    """Longest silence on the connection; None leaves it to the client's own setting."""
    deadline_s: float | None = None
    """Bound for the whole call, retries included, from its first byte."""
    room_wait_s: float = 0.0
    may_retry: bool = True

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError that names the field which cannot be sent, before anything is."""
        self.payload  # noqa: B018 - made once, and kept

    @cached_property
    def payload(self) -> bytes | None:
        return self.content if self.body is None else encoded(self.body)

    def headers(self) -> dict[str, str]:
        found = {"Accept": self.accept}
        if self.body is not None:
            found["Content-Type"] = "application/json"
        elif self.content is not None:
            found["Content-Type"] = "application/octet-stream"
        if self.idempotency_key is not None:
            found["Idempotency-Key"] = self.idempotency_key
        if self.wait_s is not None:
            found["Prefer"] = f"wait={self.wait_s}"
        return found


@dataclass(frozen=True, kw_only=True)
class PageAnswer:
    """One page of a list, still as JSON."""

    data: list[Json]
    next_cursor: str | None


def encoded(body: Json) -> bytes:
    """The body as JSON.

    Raises:
        TypeError: a field holds what JSON has no word for, such as bytes or a set.
        ValueError: a field holds a number that is infinite or not a number.
    """
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        for name, value in body.items():
            try:
                json.dumps(value, allow_nan=False)
            except TypeError:
                raise TypeError(
                    f"{name} cannot be sent: {value!r:.80} is more than text, numbers, lists and dicts of them"
                ) from error
            except (ValueError, RecursionError):
                raise ValueError(f"{name} cannot be sent: {value!r:.80} has no form in JSON") from error
        raise


# Reading answers


def as_json(answer: Answer) -> Any:  # noqa: ANN401 - the edge: what came over the wire
    if not answer.body.strip():
        return {}
    try:
        found = json.loads(answer.body)
    except ValueError as error:
        raise RuntimeError(
            "The service answered with something that is not JSON.",
            code="invalid_answer",
            status=answer.status,
            hint="Is the address really a Runtime service?",
        ) from error
    if answer.headers.get("runtime-late-answer") == "true" and isinstance(found, dict) and set(found) == {"error"}:
        late = found["error"]
        if isinstance(late, dict) and isinstance(late.get("code"), str):
            status = late.get("status")
            raise error_from_envelope(late, status=status if isinstance(status, int) and status >= 400 else 500)
    return found


def as_object(answer: Answer) -> Json:
    found = as_json(answer)
    if not isinstance(found, dict):
        raise RuntimeError("The service answered with JSON of another shape.", code="invalid_answer")
    return found


def as_identified(answer: Answer) -> Json:
    found = as_object(answer)
    if not isinstance(found.get("id"), str):
        raise RuntimeError("The service answered without an id.", code="invalid_answer")
    return found


def as_data(answer: Answer) -> list[Json]:
    return list(as_object(answer)["data"])


def as_page(answer: Answer) -> PageAnswer:
    found = as_object(answer)
    return PageAnswer(data=list(found["data"]), next_cursor=found.get("nextCursor"))


def as_result(answer: Answer) -> CommandResult:
    return CommandResult.from_json(as_object(answer))


def as_nothing(answer: Answer) -> None:
    as_json(answer)


def as_bytes(answer: Answer) -> bytes:
    return answer.body


# Building requests


def new_key() -> str:
    return str(uuid4())


def checked_key(key: str | None) -> str:
    """The key of one logical call, made up where none was given.

    Raises:
        ValueError: the key is not 1 to 128 letters, digits, `_ . : -` that begin with a letter or digit.
    """
    if key is None:
        return new_key()
    if not _KEY_SYNTAX.fullmatch(key):
        raise ValueError("an idempotency key is 1 to 128 of A-Z a-z 0-9 _ . : - and begins with a letter or digit")
    return key


def segment(text: str) -> str:
    """One part of a path, with everything that has a meaning there encoded.

    Raises:
        TypeError, ValueError: it is nothing that an id can be.
    """
    if not isinstance(text, str):
        raise TypeError(f"an id is text, not {type(text).__name__}")
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is no id" if text else "an id must not be empty")
    return quote(whole_text(text, "an id"), safe="")


def whole_text(text: str, what: str) -> str:
    """The text itself. Raises ValueError where it holds half a character, which cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not UTF-8 text, it holds a lone surrogate: {text!a:.80}") from error
    return text


def with_query(path: str, query: Mapping[str, object]) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else whole_text(str(one), name)))
    return f"{path}?{urlencode(pairs)}" if pairs else path


def camel(name: str) -> str:
    """`memory_mib` is `memoryMiB` on the wire: units keep their own spelling."""
    first, *rest = name.split("_")
    return first + "".join("MiB" if word == "mib" else word.capitalize() for word in rest)


def sent(fields: Iterable[tuple[str, object]]) -> Json:
    """The fields that were given, in the names of the wire."""
    return {camel(name): value for name, value in fields if value is not None}


def get(path: str, decode: Decode[T], query: Mapping[str, object] | None = None) -> Call[T]:
    return Call(method="GET", path=with_query(path, query or {}), decode=decode)


def post(path: str, decode: Decode[T], body: Json | None = None, key: str | None = None) -> Call[T]:
    return Call(method="POST", path=path, decode=decode, body=body or {}, idempotency_key=checked_key(key))


def free_request(method: str, path: str, options: Mapping[str, Any]) -> Call[Any]:
    """A call to a route that this client has no name for."""
    taken = dict(options)
    verb = method.upper()
    key = taken.pop("idempotency_key", None)
    call: Call[Any] = Call(
        method=verb,
        path=with_query(path, taken.pop("query", None) or {}),
        decode=as_json,
        body=taken.pop("body", None),
        idempotency_key=key if verb == "GET" else checked_key(key),
    )
    if taken:
        raise TypeError(f"request() takes query, body and idempotency_key, not {', '.join(sorted(taken))}")
    return call


# Sandboxes


def create_sandbox(fields: Mapping[str, object], *, key: str | None, wait: bool, room_wait_s: float) -> Call[Json]:
    """Create a sandbox, or with `get_or_create` answer the one that holds the name.

    Raises:
        TypeError: a field that a sandbox does not have.
    """
    known = {"name", *CreateSettings.__annotations__}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise TypeError(f"a sandbox has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    body = sent((("snapshot" if name == "snapshot_id" else name), value) for name, value in fields.items())
    if "volumes" in body:
        body["volumes"] = [sent(volume.items()) for volume in body["volumes"]]
    return Call(
        method="POST",
        path="/v1/sandboxes",
        decode=as_identified,
        body=body,
        idempotency_key=checked_key(key),
        wait_s=SETTLE_S if wait else None,
        room_wait_s=room_wait_s,
    )


def sandbox_path(sandbox_id: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{segment(sandbox_id)}{rest}"


def get_sandbox(sandbox_id: str) -> Call[Json]:
    return get(sandbox_path(sandbox_id), as_identified)


def wait_for_state(sandbox_id: str, state: str, timeout_s: int) -> Call[Json]:
    call = get(sandbox_path(sandbox_id), as_identified, {"waitFor": state, "timeoutSeconds": timeout_s})
    return replace(call, silence_s=timeout_s + ANSWER_GRACE_S)


def list_sandboxes(query: Mapping[str, object]) -> Call[PageAnswer]:
    return get("/v1/sandboxes", as_page, query)


def list_query(
    *,
    state: Sequence[str] | None,
    include_stopped: bool,
    labels: Mapping[str, str] | None,
    name: str | None,
    limit: int | None,
) -> Json:
    return {
        "state": list(state) if state else None,
        "includeStopped": True if include_stopped else None,
        "label": [f"{key}:{value}" for key, value in (labels or {}).items()],
        "name": name,
        "limit": limit,
    }


def delete_sandbox(sandbox_id: str, *, key: str | None = None) -> Call[Json]:
    path = sandbox_path(sandbox_id)
    return Call(method="DELETE", path=path, decode=as_object, idempotency_key=checked_key(key))


def change_sandbox(
    sandbox_id: str,
    verb: str,
    body: Json | None = None,
    *,
    key: str | None = None,
    wait_s: int | None = None,
    room_wait_s: float = 0.0,
) -> Call[Json]:
    """Any of the verbs that answer with the sandbox."""
    call = post(sandbox_path(sandbox_id, f":{verb}"), as_object, body, key)
    return replace(call, wait_s=wait_s, room_wait_s=room_wait_s)


# Commands


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """What to run, and how."""

    command: Command
    cwd: str | None = None
    user: User | None = None
    env: Mapping[str, str] | None = None
    stdin: str | bytes | None = None
    timeout_ms: int | None = None
    trace_files: bool = False

    def body(self) -> Json:
        body: Json = {}
        if isinstance(self.command, str):
            body["command"] = self.command
        elif isinstance(self.command, list | tuple):
            body["argv"] = [str(word) for word in self.command]
        else:
            raise TypeError(f"a command is text for a shell or a list of words, not {type(self.command).__name__}")
        if isinstance(self.stdin, bytes):
            body["stdinBase64"] = base64.b64encode(self.stdin).decode()
        body |= sent(
            [
                ("cwd", self.cwd),
                ("user", self.user),
                ("env", None if self.env is None else dict(self.env)),
                ("stdin", self.stdin if isinstance(self.stdin, str) else None),
                ("timeout_ms", self.timeout_ms),
                ("trace_files", self.trace_files or None),
            ]
        )
        return body


def exec_buffered(sandbox_id: str, spec: CommandSpec, *, key: str | None) -> Call[CommandResult]:
    limit_s = (BUFFERED_TIMEOUT_MS if spec.timeout_ms is None else spec.timeout_ms) / 1000
    return Call(
        method="POST",
        path=sandbox_path(sandbox_id, ":exec"),
        decode=as_result,
        body=spec.body(),
        idempotency_key=checked_key(key),
        silence_s=limit_s + ANSWER_GRACE_S,
        deadline_s=limit_s + ANSWER_GRACE_S,
    )


def exec_streamed(sandbox_id: str, spec: CommandSpec, *, key: str | None) -> Call[bytes]:
    timeout_ms = STREAMED_TIMEOUT_MS if spec.timeout_ms is None else spec.timeout_ms
    return Call(
        method="POST",
        path=sandbox_path(sandbox_id, ":exec"),
        decode=as_bytes,
        body=spec.body() | {"timeoutMs": timeout_ms, "stream": True},
        accept="application/x-ndjson",
        idempotency_key=checked_key(key),
        silence_s=min(timeout_ms / 1000 + ANSWER_GRACE_S, FOLLOW_SILENCE_S),
        deadline_s=timeout_ms / 1000 + ANSWER_GRACE_S,
    )


@dataclass(frozen=True, kw_only=True)
class SpawnSpec:
    """What a process has beyond a command."""

    command: CommandSpec
    pty: Mapping[str, int] | None = None
    output_encoding: str | None = None
    pipe_stdin: bool = False

    def body(self) -> Json:
        return self.command.body() | sent(
            [
                ("pty", None if self.pty is None else dict(self.pty)),
                ("output_encoding", self.output_encoding),
                ("stdin_mode", "pipe" if self.pipe_stdin else None),
            ]
        )


def process_path(sandbox_id: str, process_id: str, rest: str = "") -> str:
    return sandbox_path(sandbox_id, f"/processes/{segment(process_id)}{rest}")


def spawn(sandbox_id: str, spec: SpawnSpec, *, key: str | None = None) -> Call[Json]:
    return post(sandbox_path(sandbox_id, "/processes"), as_identified, spec.body(), key)


def list_processes(sandbox_id: str) -> Call[list[Json]]:
    return get(sandbox_path(sandbox_id, "/processes"), as_data)


def get_process(sandbox_id: str, process_id: str) -> Call[Json]:
    return get(process_path(sandbox_id, process_id), as_identified)


def follow_output(sandbox_id: str, process_id: str, cursor: int) -> Call[bytes]:
    path = process_path(sandbox_id, process_id, "/output")
    call = get(path, as_bytes, {"cursor": cursor, "follow": True})
    return replace(call, accept="application/x-ndjson", silence_s=FOLLOW_SILENCE_S)


def signal_process(sandbox_id: str, process_id: str, signal: str) -> Call[None]:
    return post(process_path(sandbox_id, process_id, ":signal"), as_nothing, {"signal": signal})


def resize_process(sandbox_id: str, process_id: str, cols: int, rows: int) -> Call[None]:
    return post(process_path(sandbox_id, process_id, ":resize"), as_nothing, {"cols": cols, "rows": rows})


def write_process(sandbox_id: str, process_id: str, data: bytes, *, offset: int, eof: bool) -> Call[Json]:
    body = {"base64": base64.b64encode(data).decode(), "offset": offset, "eof": eof}
    return post(process_path(sandbox_id, process_id, ":write"), as_object, body)


def process_files(sandbox_id: str, process_id: str) -> Call[Json]:
    return get(process_path(sandbox_id, process_id, "/files"), as_object)


# The account


@dataclass(frozen=True, kw_only=True)
class NetworkRules:
    """Where a sandbox may connect to; see the rules of the service."""

    internet: bool
    allow: Sequence[str] | None = None
    deny: Sequence[str] | None = None
    connect: Sequence[str] | None = None

    def body(self) -> Json:
        lists = {"allow": self.allow, "deny": self.deny, "connect": self.connect}
        return {"internet": self.internet, **{name: list(given) for name, given in lists.items() if given is not None}}


def set_network(sandbox_id: str, rules: NetworkRules) -> Call[Json]:
    return Call(
        method="PUT",
        path=sandbox_path(sandbox_id, "/network"),
        decode=as_object,
        body=rules.body(),
        idempotency_key=new_key(),
    )
