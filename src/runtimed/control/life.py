"""Owns the state of every sandbox that runs or may run again: the only code that starts, ends and moves one.

Each move is a fact given to the table in core.lifecycle, made under the sandbox's own lock and written to the
store before anyone waiting is told. Moves run as tasks of their own, one at a time for each sandbox, so that a client
that hangs up changes nothing; only an end does not wait for its turn, but cancels the move that is under way.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from runtimed.control.networks import Ways
from runtimed.control.room import admit
from runtimed.control.till import FreeTill, Till
from runtimed.core.clock import Clock
from runtimed.core.errors import (
    ImageNotFound,
    NameTaken,
    NoCapacity,
    RuntimedError,
    SandboxStopped,
    SnapshotNotFound,
    StartFailed,
    Unavailable,
)
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import Fact, State, StopReason, advance
from runtimed.core.money import Spending
from runtimed.core.ports import Node, Seal
from runtimed.core.sandbox import SandboxRecord, StartCause, StartRecord
from runtimed.core.specs import MachineSpec, Started
from runtimed.core.tasks import spawn
from runtimed.store.sandboxes import SandboxStore

Move = asyncio.Task[RuntimedError | None]
"""A move under way; its result says why it failed, None that it did not."""

_log = logging.getLogger(__name__)


@dataclass
class Life:
    """One sandbox that runs or may run again. Only `Lives` and its movers (sleep, forks, snapshots) write to it."""

    record: SandboxRecord
    env: dict[str, str]
    ends_mono_s: float
    """When the lease ends, on the clock that never jumps."""
    active_at_s: float
    active_mono_s: float
    """When it was last used, on both clocks."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its record changes."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a move: a start, pause, wake, fork or snapshot."""
    mover: asyncio.Task[Any] | None = None
    """Whose turn it is; an end cancels it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change of state, and replaced then."""
    pausing: Move | None = None
    paused_as: SandboxRecord | None = None
    """As its newest pause left it, whatever has become of it since."""
    waking: Move | None = None
    ending: asyncio.Task[None] | None = None
    keep_disk: bool = False
    """Whether the end that is under way keeps it."""
    unsaved: bool = False
    """The store has not taken its newest state; it is asked again."""
    pause_failed: bool = False
    """Its last pause failed, under this lease."""
    starts: int = 0
    receipt: StartRecord | None = None
    """Of its newest start, where this service made it."""
    first_command_at_s: float | None = None
    """When the first call after its newest start reached into it, wall clock."""
    failure: RuntimedError | None = None
    """Why it did not start."""


class NoSeal:
    """Keeps nothing: for tests of other things."""

    def seal(self, value: bytes, *, purpose: str) -> bytes:
        return b""

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        return b"{}"


@dataclass(frozen=True, kw_only=True)
class LifeParts:
    """What the owner of sandboxes works with."""

    node: Node
    store: SandboxStore
    clock: Clock
    ways: Ways = field(default_factory=Ways)
    till: Till = field(default_factory=FreeTill)
    seal: Seal = field(default_factory=NoSeal)
    """For the values of environments, which are kept for restarts."""


@dataclass(frozen=True, kw_only=True)
class StartAsked:
    """A start that was asked for: what its receipt begins with."""

    cause: StartCause
    at_s: float
    policy_bound_ms: float
    machine: MachineSpec


class Lives:
    """The sandboxes of one host that run or may run again."""

    def __init__(self, parts: LifeParts) -> None:
        self._parts = parts
        self._node, self._store, self._clock = parts.node, parts.store, parts.clock
        self._ways, self._till = parts.ways, parts.till
        self._lives: dict[SandboxId, Life] = {}
        self.started_total: Counter[str] = Counter()
        """Machines by how they came up; for the metrics."""
        parts.node.on_ended(self.ended)

    def get(self, sandbox_id: SandboxId) -> Life | None:
        return self._lives.get(sandbox_id)

    def all(self) -> list[Life]:
        return list(self._lives.values())

    def enter(self, record: SandboxRecord, env: Mapping[str, str]) -> Life:
        """Own this sandbox from now on."""
        now_s, mono_s = self._clock.now_s(), self._clock.monotonic_s()
        life = self._lives[record.id] = Life(
            record=record,
            env=dict(env),
            ends_mono_s=mono_s + record.ends_at_s - now_s,
            active_at_s=record.last_active_at_s,
            active_mono_s=mono_s,
        )
        return life

    async def begin(self, record: SandboxRecord, env: Mapping[str, str], spending: Spending | None = None) -> Life:
        """Reserve room and money, record the sandbox and start its machine in the background.

        Raises:
            NoCapacity, InvalidRequest, NameTaken, and what the till refuses with: nothing was recorded or started.
        """
        admit(self._node, self.all(), [record])
        life = await self.reserve(record, env, spending)
        spawn(self._start(life), name=f"start {record.id}")
        return life

    async def reserve(self, record: SandboxRecord, env: Mapping[str, str], spending: Spending | None = None) -> Life:
        """Record a sandbox that starts. Whoever asks has asked for room in the same breath, and starts it.

        Raises:
            NameTaken, and what the till refuses with: nothing was recorded.
        """
        life = self.enter(record, env)  # before the first await: from here on its room is taken
        try:
            await self._till.open(record, spending or Spending())
            life.record = replace(life.record, env_sealed=seal_env(self._parts.seal, record.id, life.env))
            try:
                await self._store.add(life.record)
            except NameTaken as taken:
                if not await self._gives_its_name_up(taken):
                    raise
                await self._store.add(life.record)
        except BaseException:
            del self._lives[record.id]
            await asyncio.shield(self._never_was(record.id))
            raise
        return life

    async def _gives_its_name_up(self, taken: NameTaken) -> bool:
        """Whether the holder of a name is without it now: one that ended, though a restart could boot its disk.

        A persistent sandbox that was stopped keeps its name: it is meant to be started again.
        """
        holder = self._lives.get(SandboxId(str(taken.details.get("sandboxId", ""))))
        if holder is None or holder.lock.locked():  # it is on the move; and two that want each other's name get neither
            return False
        async with holder.lock:
            record = holder.record
            if record.state is not State.STOPPED or record.persistent:
                return False
            await self.correct(holder, replace(record, name=None))
        _log.info("sandbox %s, which ended, gave its name %s up", record.id, record.name)
        return True

    async def _never_was(self, sandbox_id: SandboxId) -> None:
        """Leave no row of it, which may be there without our having heard of it, and no hold."""
        await self._store.drop(sandbox_id)
        await self._till.settle(sandbox_id)

    @asynccontextmanager
    async def turn(self, life: Life) -> AsyncIterator[None]:
        """One move at a time; to be entered by a task of its own, which an end of the sandbox cancels.

        Raises SandboxStopped when it is being ended.
        """
        async with life.turn:
            if life.record.state is State.STOPPING:
                raise stopped_error(life.record)
            life.mover = asyncio.current_task()
            try:
                yield
            finally:
                life.mover = None

    def prepare(self, life: Life, cause: StartCause) -> StartAsked:
        """Bind its policy, and say how its machine is to be: from now on one may run."""
        record, at_s, mono_s = life.record, self._clock.now_s(), self._clock.monotonic_s()
        self._ways.bind(record)
        machine = MachineSpec(
            sandbox_id=record.id,
            image=record.image,
            shape=record.shape,
            hostname=record.name or f"sandbox-{record.id[:8]}",
            env=self.env_of(life),  # its secrets are those of the policy that is bound
            user=record.user,
            snapshot_id=record.snapshot_id if cause == "create" else None,
            cpu_floor_millis=record.cpu_floor_millis or 0,
        )
        bound_ms = round((self._clock.monotonic_s() - mono_s) * 1000, 3)
        return StartAsked(cause=cause, at_s=at_s, policy_bound_ms=bound_ms, machine=machine)

    async def up(self, life: Life, started: Started, asked: StartAsked) -> None:
        """Its machine is ready: its use counts, the guard knows its lease, its receipt is written."""
        record = life.record
        self._till.began(record.id)
        mono_s = self._clock.monotonic_s()
        self._node.lease(record.id, life.ends_mono_s - mono_s)
        life.active_at_s, life.active_mono_s = self._clock.now_s(), mono_s
        life.pause_failed, life.first_command_at_s = False, None
        life.starts += 1
        life.receipt = StartRecord(
            sandbox_id=record.id,
            number=life.starts,
            cause=asked.cause,
            asked_at_s=asked.at_s,
            started=started,
            policy_version=record.network.version,
            policy_bound_ms=asked.policy_bound_ms,
        )
        async with life.lock:
            await self.move(
                life,
                Fact.READY,
                ready_at_s=self._clock.now_s(),
                started=started,
                paused_at_s=None,
                stored_bytes=0,
                disk_kept=False,
                note=None,
                **({} if life.record.state is State.STOPPING else {"stop_reason": None, "ended_at_s": None}),
            )
        self.started_total[started.how] += 1

    async def _start(self, life: Life) -> None:
        try:
            async with self.turn(life):
                if life.record.state is not State.STARTING:
                    return  # ended before it began
                asked = self.prepare(life, "create")
                await self.up(life, await self._node.start(asked.machine), asked)
        except SandboxStopped:
            return  # ended before it began
        except RuntimedError as error:
            await self._start_failed(life, error)
        except asyncio.CancelledError:
            raise  # by `_end`, which goes on from here
        except BaseException:
            await self._start_failed(life, StartFailed("the machine did not start: a fault of the service"))
            raise

    async def _start_failed(self, life: Life, error: RuntimedError) -> None:
        """Leave nothing behind: no machine, and no record either where nothing was ever tried."""
        _log.warning("sandbox %s did not start: %s", life.record.id, error.message)
        if life.record.state is not State.STARTING:
            # Being stopped already, which this joins; or it came up, and that could not be written down.
            self.end(life, StopReason.STARTUP_FAILED)
            return
        await self._node.stop(life.record.id)
        await self._till.settle(life.record.id)
        async with life.lock:
            if life.record.state is not State.STARTING:
                self.end(life, StopReason.STARTUP_FAILED)  # stopped meanwhile, which this joins
                return
            never_was = isinstance(error, NoCapacity | ImageNotFound | SnapshotNotFound)
            if not never_was:
                error.details.setdefault("sandboxId", life.record.id)
            life.failure = error
            await self.move(life, Fact.EXITED, stop_reason=StopReason.STARTUP_FAILED, note=error.message[:1000])
        if never_was:
            await self._store.drop(life.record.id)

    def env_of(self, life: Life) -> dict[str, str]:
        """What its commands get: the placeholders of its secrets, and over them what was set for it."""
        return {**self._ways.placeholders(life.record.id), **life.env}

    def end(self, life: Life, reason: StopReason, *, keep_disk: bool = False) -> asyncio.Task[None]:
        """Begin to end it, or join the end that is under way. The first reason stays. Idempotent.

        With `keep_disk` a restart can boot it again. An end without it wins over one with it.
        """
        if life.ending is None or life.ending.done():
            life.keep_disk = keep_disk
            life.ending = spawn(self._end(life, reason), name=f"end {life.record.id}")
        elif not keep_disk:
            life.keep_disk = False
        return life.ending

    async def _end(self, life: Life, reason: StopReason) -> None:
        async with life.lock:
            before = life.record
            if before.state is State.STOPPED and (life.keep_disk or not before.disk_kept):
                return
            if before.state is not State.STOPPED:
                first = before.stop_reason if before.state is State.STOPPING else None
                await self.move(life, Fact.STOP_ASKED, stop_reason=first or reason)
        if (mover := life.mover) is not None and not mover.done():
            mover.cancel()
            await asyncio.wait({mover})
        self._till.stopping(before.id)
        kept_bytes = await self._remove(life, keep_disk=life.keep_disk and before.ready_at_s is not None)
        async with life.lock:
            await self.move(life, Fact.EXITED, **_kept(kept_bytes))

    async def ended(self, sandbox_id: SandboxId, why: str) -> None:
        """A machine ended by itself: its sandbox is stopped, nothing takes its place, and its disk is kept."""
        life = self._lives.get(sandbox_id)
        if life is None or life.record.state in (State.STARTING, State.RESUMING, State.STOPPING, State.STOPPED):
            return  # whoever starts or ends it finds out by itself
        _log.warning("the machine of sandbox %s ended by itself: %s", sandbox_id, why)
        end = self.end(life, StopReason.HOST_LOST, keep_disk=True)
        if life.mover is not asyncio.current_task():  # which the end waits for
            await asyncio.wait({end})

    async def _remove(self, life: Life, *, keep_disk: bool) -> int | None:
        """End its machine and settle. Answers what its kept disk owns; None where there is none."""
        sandbox_id = life.record.id
        try:
            await self._node.stop(sandbox_id, keep_disk=keep_disk)
        except Unavailable as no_such_thing:  # a host that can keep no disk
            _log.info("the disk of sandbox %s is not kept: %s", sandbox_id, no_such_thing.message)
            await self._node.stop(sandbox_id)
        stored = self._node.stored(sandbox_id) if keep_disk else None
        if stored is None:
            await self._till.settle(sandbox_id)
            return None
        owned_bytes = stored.memory_bytes + stored.disk_bytes
        await self._till.paused(life.record, owned_bytes)
        return owned_bytes

    async def change(self, life: Life, *, labels_too: bool = False, **fields: Any) -> None:  # noqa: ANN401
        """Write other fields than the state, and let them count. Raises NameTaken; then nothing has changed.

        A new lease is told to the guard; new network rules count on open connections too.
        """
        async with life.lock:
            changed = replace(life.record, updated_at_s=self._clock.now_s(), **fields)
            if "env_names" in fields:
                changed = replace(changed, env_sealed=seal_env(self._parts.seal, changed.id, life.env))
            try:
                await self._store.save(changed, labels_too=labels_too)
            except NameTaken as taken:
                if not await self._gives_its_name_up(taken):
                    raise
                await self._store.save(changed, labels_too=labels_too)
            life.record = changed
        if "ends_at_s" in fields:
            left_s = changed.ends_at_s - self._clock.now_s()
            life.ends_mono_s, life.pause_failed = self._clock.monotonic_s() + left_s, False
            self._node.lease(changed.id, left_s)
        if "network" in fields and changed.state not in (State.STOPPED, State.PAUSED):
            self._ways.bind(changed)

    async def wait(self, life: Life, state: State, *, within_s: float) -> None:
        """Return when it is in `state`, can no longer come to it by itself, or the time is over."""
        try:
            async with asyncio.timeout(within_s):
                while life.record.state not in (state, State.STOPPED):
                    await life.changed.wait()
        except TimeoutError:
            return

    async def move(self, life: Life, fact: Fact, **fields: Any) -> None:  # noqa: ANN401 - fields of the record
        """Change its state by the table, in memory at once and then in the store. Its lock is held."""
        now_s = self._clock.now_s()
        state = advance(life.record.state, fact)
        if state is State.STOPPED and life.record.state is not State.STOPPED:
            fields.setdefault("ended_at_s", now_s)
        moved = replace(life.record, state=state, last_active_at_s=life.active_at_s, **fields)
        await self.correct(life, moved, start=life.receipt if fact is Fact.READY else None)

    async def correct(self, life: Life, record: SandboxRecord, *, start: StartRecord | None = None) -> None:
        """Take a record as what is, without asking the table: for `move`, and for what an earlier service left."""
        moved = replace(record, updated_at_s=self._clock.now_s())
        life.record = moved  # first: whatever the database does, the machine's state is what it is
        life.unsaved = True
        try:
            await self._store.save(moved, start=start)
            life.unsaved = False
        finally:
            if moved.state in (State.STOPPED, State.PAUSED):
                self._ways.unbind(moved.id)
            if not moved.can_run and not life.unsaved:
                self._lives.pop(moved.id, None)
            life.changed.set()
            life.changed = asyncio.Event()


def seal_env(seal: Seal, sandbox_id: SandboxId, env: Mapping[str, str]) -> bytes | None:
    """An environment as it may be stored; None for an empty one."""
    return seal.seal(json.dumps(dict(env)).encode(), purpose=f"env of {sandbox_id}") if env else None


def stopped_error(record: SandboxRecord) -> SandboxStopped:
    """What is said to whoever wants something of a sandbox that does not run any more."""
    why = f" ({record.stop_reason})" if record.stop_reason else ""
    hint = "restart it: its disk was kept" if record.disk_kept else "create a new one; what ran in this one is gone"
    return SandboxStopped(
        f"sandbox {record.id} is {record.state.value}{why}",
        hint=hint,
        details={
            "state": record.state.value,
            "stopReason": record.stop_reason and record.stop_reason.value,
            "diskKept": record.disk_kept,
        },
    )


def _kept(owned_bytes: int | None) -> dict[str, Any]:
    return {"disk_kept": owned_bytes is not None, "stored_bytes": owned_bytes or 0, "paused_at_s": None}
