# Generated from src/withruntime/_async/sandbox.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""One sandbox: what it is, what changes it, what runs in it."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from withruntime import _calls, _flows, _snapshot_calls
from withruntime._calls import (
    Command,
    CommandSpec,
    CreateOptions,
    NetworkRules,
    SpawnSpec,
    UnnamedCreateOptions,
    UpdateFields,
    User,
)
from withruntime._errors import CommandError, RuntimeError
from withruntime._retry import OnCapacityWait
from withruntime._stream import Follower, OnText, ResultCollector
from withruntime._sync import _io
from withruntime._sync.files import Files
from withruntime._sync.page import Page
from withruntime._sync.process import Process
from withruntime._sync.transport import Transport
from withruntime._values import CommandResult, Json

if TYPE_CHECKING:
    from withruntime._sync.client import Runtime

_log = logging.getLogger("withruntime")

LAST_WORK_MAX_S = 60.0
"""How long a block's end, or a cancelled create, may take to leave nothing behind."""
SIGNAL_MAX_S = 10.0


class Network:
    """Where a sandbox may connect to."""

    def __init__(self, t: Transport, sandbox_id: str) -> None:
        self._t = t
        self._id = sandbox_id

    def get(self) -> Json:
        """The rules, and whether they are in force."""
        return self._t.send(_calls.get(_calls.sandbox_path(self._id, "/network"), _calls.as_object))

    def set(
        self,
        *,
        internet: bool,
        allow: list[str] | None = None,
        deny: list[str] | None = None,
        connect: list[str] | None = None,
    ) -> Json:
        """Replace the rules, at once and for open connections too. An empty `allow` allows nothing."""
        rules = NetworkRules(internet=internet, allow=allow, deny=deny, connect=connect)
        return self._t.send(_calls.set_network(self._id, rules))

    def records(self, *, after: int = 0, limit: int = 100) -> Json:
        """What became of its connections: `data`, oldest first, and `nextAfter` to go on from (1 to 1000 a call)."""
        path = _calls.sandbox_path(self._id, "/egress")
        return self._t.send(_calls.get(path, _calls.as_object, {"after": after, "limit": limit}))

    def on(self) -> Json:
        """Allow everything that the service allows at all."""
        return self.set(internet=True)

    def off(self) -> Json:
        """Allow nothing."""
        return self.set(internet=False)


class SandboxView:
    """What a sandbox is, as of the last answer about it."""

    def __init__(self, t: Transport, info: Json) -> None:
        self._t = t
        self._info = info
        self._stop_keeping: Callable[[], None] | None = None
        self._delete_at_block_end = False
        self._client: Runtime | None = None
        """A client that was made for this sandbox alone, and is closed with it."""
        self.files = Files(t, self.id)
        self.network = Network(t, self.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, state={self.state!r})"

    @property
    def id(self) -> str:
        return str(self._info["id"])

    @property
    def state(self) -> str:
        """As of the last answer: `starting`, `running`, `pausing`, `paused`, `resuming`, `stopping` or `stopped`."""
        return str(self._info.get("state", "unknown"))

    @property
    def info(self) -> Json:
        """Everything the service said about it, last time."""
        return self._info

    def refresh(self) -> Self:
        """Ask the service again."""
        return self._seen(self._t.send(_calls.get_sandbox(self.id)))

    def wait_for(self, state: str, timeout_seconds: int = 60) -> Self:
        """Wait until it is in a state, or the time is over: look at `state` afterwards."""
        return self._seen(self._t.send(_calls.wait_for_state(self.id, state, timeout_seconds)))

    def receipt(self) -> Json:
        """What it cost so far: `lines` that sum to `totalMicros`, and the `waitedShare` of its time."""
        return self._t.send(_calls.get(_calls.sandbox_path(self.id, "/receipt"), _calls.as_object))

    def keep_alive(self, every_seconds: float = 60, margin_seconds: int = 600) -> Callable[[], None]:
        """Keep moving its end away in the background, until it stops or the returned function is called.

        Every `every_seconds` it makes sure that at least `margin_seconds` are left.
        """
        self.stop_keep_alive()
        self._stop_keeping = _io.repeat(lambda: self._keep_alive_once(margin_seconds), every_s=every_seconds)
        return self.stop_keep_alive

    def stop_keep_alive(self) -> None:
        """Let its end come."""
        stop, self._stop_keeping = self._stop_keeping, None
        if stop is not None:
            stop()

    def _keep_alive_once(self, margin_s: int) -> bool:
        return self._t.drive(_flows.keep_alive_once(self.id, margin_s, time.time(), self._t.policy))

    def _seen(self, info: Json) -> Self:
        # Only the answer to a create tells how its start command went.
        kept = {"start": self._info["start"]} if "start" in self._info and "start" not in info else {}
        self._info = {**info, **kept, "id": self.id}
        return self


class SandboxChanges(SandboxView):
    """What changes a sandbox. Every change can be asked for twice."""

    def stop(self, wait: bool = True, idempotency_key: str | None = None) -> Self:
        """End what runs in it. Its disk stays where the service keeps disks."""
        return self._change("stop", key=idempotency_key, wait=wait)

    def delete(self, idempotency_key: str | None = None) -> Json:
        """End it and everything of it, in whatever state it is."""
        self.stop_keep_alive()
        answer = self._t.send(_calls.delete_sandbox(self.id, key=idempotency_key))
        self._info = {**self._info, "state": answer.get("state", "stopped"), "status": "deleted"}
        self._close_own_client()
        return answer

    def pause(self, wait: bool = True, idempotency_key: str | None = None) -> Self:
        """Keep its memory, processes and files, and use no CPU and no memory. The next call into it wakes it."""
        return self._change("pause", key=idempotency_key, wait=wait)

    def wake(
        self,
        wait: bool = True,
        timeout_seconds: int | None = None,
        idempotency_key: str | None = None,
        *,
        wait_for_capacity: float | None = None,
        on_capacity_wait: OnCapacityWait | None = None,
    ) -> Self:
        """Go on after a pause; one that is awake stays so. `timeout_seconds` sets a new end."""
        policy = self._t.policy_for_room(on_capacity_wait)
        call = _calls.change_sandbox(
            self.id,
            "wake",
            _calls.sent([("timeout_seconds", timeout_seconds)]),
            key=idempotency_key,
            wait_s=_calls.SETTLE_S if wait else None,
            room_wait_s=self._t.room_wait_s(wait_for_capacity),
        )
        timed = timeout_seconds is not None
        return self._seen(self._t.drive(_flows.wake(call, self.id, policy, timed=timed)))

    def restart(
        self,
        wait: bool = True,
        idempotency_key: str | None = None,
        *,
        wait_for_capacity: float | None = None,
        on_capacity_wait: OnCapacityWait | None = None,
    ) -> Self:
        """Start a stopped sandbox again from its disk."""
        call = _calls.change_sandbox(
            self.id,
            "restart",
            key=idempotency_key,
            wait_s=_calls.SETTLE_S if wait else None,
            room_wait_s=self._t.room_wait_s(wait_for_capacity),
        )
        return self._seen(self._t.send(call, policy=self._t.policy_for_room(on_capacity_wait)))

    def extend(self, seconds: int, idempotency_key: str | None = None) -> Self:
        """Move its end later by so many seconds."""
        return self._change("extend", {"seconds": seconds}, key=idempotency_key)

    def update(self, idempotency_key: str | None = None, **settings: Unpack[UpdateFields]) -> Self:
        """Change settings; None clears one, and what is not named stays."""
        body = {_calls.camel(name): value for name, value in settings.items()}
        return self._change("update", body, key=idempotency_key)

    def set_retention(self, days: int, idempotency_key: str | None = None) -> Self:
        """Keep it for so many days when paused or stopped."""
        return self._change("retention", {"days": days}, key=idempotency_key)

    def resize(
        self,
        *,
        restart: bool = True,
        vcpu: int | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Give it another size; without `restart` only what can grow while it runs."""
        sizes = _calls.sent([("vcpu", vcpu), ("memory_mib", memory_mib), ("disk_mib", disk_mib)])
        return self._change("resize", {"restart": restart, **sizes}, key=idempotency_key)

    def fork(
        self,
        count: int | None = None,
        *,
        name: str | None = None,
        labels: dict[str, str] | None = None,
        keep_snapshot: bool | None = None,
        funding: str | None = None,
        secrets: list[str] | None = None,
        idempotency_key: str | None = None,
    ) -> "Self | list[Self]":
        """Copy it with memory, processes and disk; one copy without `count` (1 to 16), a list with it.

        It goes on as it was. All copies start, or none does. They are called `name`, `name-1`, ... and use none of
        its secrets but those that `secrets` names.
        """
        fields = [
            ("count", count),
            ("name", name),
            ("labels", labels),
            ("keep_snapshot", keep_snapshot),
            ("funding", funding),
            ("secrets", secrets),
        ]
        call = _calls.change_sandbox(self.id, "fork", _calls.sent(fields), key=idempotency_key, wait_s=_calls.SETTLE_S)
        copies = [type(self)(self._t, info) for info in (self._t.send(call))["sandboxes"]]
        for copy in copies:
            copy._delete_at_block_end = True
        return copies[0] if count is None else copies

    def snapshot(
        self,
        *,
        name: str | None = None,
        labels: dict[str, str] | None = None,
        retention_days: int | None = None,
        mode: str | None = None,
        idempotency_key: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Json:
        """Keep its memory or its disk to start others from, and return once that is done; it goes on.

        Raises:
            RuntimeError: it could not be made (`snapshot_failed`), or not within `timeout_seconds`, 600 where none
                is named (`snapshot_timeout`).
        """
        fields = {"name": name, "labels": labels, "retention_days": retention_days, "mode": mode}
        call = _snapshot_calls.take(self.id, fields, key=idempotency_key)
        made = _snapshot_calls.made(call, self._t.policy, mode=mode, within_s=timeout_seconds)
        return self._t.drive(made)

    def starts(self) -> list[Json]:
        """How each of its machines came up: from what, when each step was done, what was checked. Oldest first."""
        return self._t.send(_calls.get(_calls.sandbox_path(self.id, "/starts"), _calls.as_data))

    def _change(self, verb: str, body: Json | None = None, *, key: str | None, wait: bool | None = None) -> Self:
        wait_s = _calls.SETTLE_S if wait else None
        return self._seen(self._t.send(_calls.change_sandbox(self.id, verb, body, key=key, wait_s=wait_s)))

    def _close_own_client(self) -> None:
        if self._client is not None:
            self._client.close()


class SandboxCommands(SandboxChanges):
    """What runs in a sandbox."""

    def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        user: User | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_ms: int | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
        trace_files: bool = False,
    ) -> CommandResult:
        """Run a command to its end: a string under `bash -c`, a list without a shell.

        A failing command and a timeout are results. The time limit is 60 s, with callbacks 24 h. At it everything
        that the command started is dead. The result holds 64 KiB of each stream, 1 MiB with a limit over 60 s, and
        says when there was more; `on_stdout` and `on_stderr` see all of it, piece by piece.

        Raises:
            CommandError: with `check=True`, it failed or ran into its limit.
            OutcomeUnknownError: it started, and how it ended cannot be known.
        """
        spec = CommandSpec(
            command=command, cwd=cwd, user=user, env=env, stdin=stdin, timeout_ms=timeout_ms, trace_files=trace_files
        )
        if on_stdout is None and on_stderr is None and (timeout_ms or 0) <= _calls.BUFFERED_TIMEOUT_MS:
            result = self._t.send(_calls.exec_buffered(self.id, spec, key=idempotency_key))
        else:
            result = self._exec_collected(spec, ResultCollector(on_stdout, on_stderr), idempotency_key)
        if check and (result.exit_code != 0 or result.timed_out):
            raise CommandError(result.to_json())
        return result

    def exec_stream(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        user: User | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_ms: int | None = None,
        idempotency_key: str | None = None,
        trace_files: bool = False,
    ) -> Iterator[Json]:
        """Run a command and yield its events as they come: `start`, `stdout`, `stderr`, `truncated`, `exit`.

        Output has no limit and nothing is lost: a reader that is slow makes the command wait. `offset` is the place
        of the first byte in both streams together; a chunk that is not UTF-8 carries its bytes as `base64`. A
        connection that breaks is opened again at the same place.
        """
        spec = CommandSpec(
            command=command, cwd=cwd, user=user, env=env, stdin=stdin, timeout_ms=timeout_ms, trace_files=trace_files
        )
        follower = self._follower(spec, idempotency_key)
        with self._ended_when_interrupted(follower), _io.closing(self._t.follow(follower)) as events:
            for event in events:
                yield event

    def spawn(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        user: User | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        pty: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        output_encoding: str | None = None,
        trace_files: bool = False,
    ) -> Process:
        """Start a process and return while it runs. `stdin="pipe"` lets it be written to."""
        if stdin not in (None, "pipe"):
            raise ValueError('stdin of spawn() is None or "pipe"')
        spec = CommandSpec(command=command, cwd=cwd, user=user, env=env, timeout_ms=timeout_ms, trace_files=trace_files)
        spawned = SpawnSpec(command=spec, pty=pty, output_encoding=output_encoding, pipe_stdin=stdin == "pipe")
        info = self._t.send(_calls.spawn(self.id, spawned))
        given = {} if timeout_ms is None else {"timeoutMs": timeout_ms}
        return Process(self._t, self.id, {**given, **info})

    def processes(self) -> list[Json]:
        """What runs, and the newest that have ended."""
        return self._t.send(_calls.list_processes(self.id))

    def process(self, process_id: str) -> Process:
        """One process by its id.

        Raises:
            NotFoundError: there is none.
        """
        return Process(self._t, self.id, self._t.send(_calls.get_process(self.id, process_id)))

    def _exec_collected(self, spec: CommandSpec, collector: ResultCollector, key: str | None) -> CommandResult:
        last: Json = {}
        follower = self._follower(spec, key)
        with self._ended_when_interrupted(follower), _io.closing(self._t.follow(follower)) as events:
            for event in events:
                _io.told(collector.add(event))
                last = event
        return collector.result(last)

    def _follower(self, spec: CommandSpec, key: str | None) -> Follower:
        call = _calls.exec_streamed(self.id, spec, key=key)
        return Follower(sandbox_id=self.id, policy=self._t.policy, first=call, deadline_s=call.deadline_s)

    @contextlib.contextmanager
    def _ended_when_interrupted(self, follower: Follower) -> Iterator[None]:
        try:
            yield
        except _io.INTERRUPTS:
            # Nobody will read it any more. A second stream under the same key tells the id if none did before.
            _io.finish(lambda: self._end_command(follower), within_s=SIGNAL_MAX_S)
            raise

    def _end_command(self, follower: Follower) -> None:
        try:
            if follower.process_id is None:
                with _io.closing(self._t.follow(follower)) as events:
                    for _ in events:
                        break
            if follower.process_id is not None and not follower.ended:
                self._t.send(_calls.signal_process(self.id, follower.process_id, "SIGTERM"))
        except RuntimeError as error:
            _log.info("the interrupted command could not be ended: %s", error)


class Sandbox(SandboxCommands):
    """A machine of its own, with its own kernel. Use it in a `with` block, which deletes it at the end."""

    @classmethod
    def create(cls, *, client: "Runtime | None" = None, **fields: Unpack[CreateOptions]) -> "Sandbox":
        """Make a sandbox and return once it runs; every field has a default.

        Cancelled at any moment, it leaves no sandbox behind. See `Sandboxes.create`.
        """
        return cls._with_client(client, lambda chosen: chosen.sandboxes.create(**fields))

    @classmethod
    def get_or_create(
        cls, name: str, *, client: "Runtime | None" = None, **fields: Unpack[UnnamedCreateOptions]
    ) -> "Sandbox":
        """The sandbox that holds a name, woken, or a new one."""
        return cls._with_client(client, lambda chosen: chosen.sandboxes.get_or_create(name, **fields))

    @classmethod
    def connect(cls, sandbox_id: str, *, client: "Runtime | None" = None) -> "Sandbox":
        """A sandbox that is there already. A `with` block only stops it."""
        return cls._with_client(client, lambda chosen: chosen.sandboxes.get(sandbox_id))

    @classmethod
    def get(cls, sandbox_id: str, *, client: "Runtime | None" = None) -> "Sandbox":
        """The same as `connect`."""
        return cls.connect(sandbox_id, client=client)

    @classmethod
    def list(
        cls,
        *,
        client: "Runtime | None" = None,
        state: Sequence[str] | None = None,
        include_stopped: bool = False,
        labels: dict[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Page["Sandbox"]:
        """The sandboxes that the key can see, oldest first. See `Sandboxes.list`."""
        sandboxes = _client_or_new(client).sandboxes
        return sandboxes.list(state=state, include_stopped=include_stopped, labels=labels, name=name, limit=limit)

    @classmethod
    def _with_client(cls, client: "Runtime | None", make: "Callable[[Runtime], Sandbox]") -> "Sandbox":
        chosen = _client_or_new(client)
        try:
            sandbox = make(chosen)
        except BaseException:
            if client is None:
                chosen.close()
            raise
        if client is None:
            sandbox._client = chosen
        return sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_keep_alive()
        _io.finish(self._leave, within_s=LAST_WORK_MAX_S)

    def _leave(self) -> None:
        try:
            if not self._delete_at_block_end:
                if self.state != "stopped":
                    self._seen(self._t.send(_calls.change_sandbox(self.id, "stop")))
            elif self._info.get("status") != "deleted":
                self._t.send(_calls.delete_sandbox(self.id))
                self._info = {**self._info, "state": "stopped", "status": "deleted"}
        except RuntimeError as error:
            # Raised here it would hide what ended the block; the lease ends the sandbox in any case.
            _log.warning("the sandbox %s was left behind: %s", self.id, error)
        self._close_own_client()


def _client_or_new(client: "Runtime | None") -> "Runtime":
    from withruntime._sync.client import Runtime  # it imports this module

    return Runtime() if client is None else client
