"""Owns the state of every sandbox that may hold a machine: the only code that starts, ends and moves one.

Each move is a fact given to the table in core.lifecycle, made under the sandbox's own lock and written to the
store before anyone waiting is told. Starting and ending run as tasks of their own, so that a client that hangs up
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtimed.control.networks import Ways
from runtimed.control.till import FreeTill, Till
from runtimed.core.clock import Clock
from runtimed.core.errors import ImageNotFound, InvalidRequest, NoCapacity, RuntimedError, StartFailed
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import Fact, State, StopReason, advance
from runtimed.core.money import Spending
from runtimed.core.ports import Node
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import MachineSpec, Shape
from runtimed.core.tasks import spawn
from runtimed.scheduler.placement import HostView, place
from runtimed.store.sandboxes import SandboxStore

NO_ROOM_RETRY_MS = 1000
"""Room comes when somebody's sandbox ends, which nobody can foretell; the clients' own backoff goes on from here."""
SHUTDOWN_WITHIN_S = 30.0

_log = logging.getLogger(__name__)


@dataclass
class Life:
    """One sandbox that may hold a machine. Only `Lives` writes to it."""

    record: SandboxRecord
    env: dict[str, str]
    ends_mono_s: float
    """When the lease ends, on the clock that never jumps."""
    active_at_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change of state, and replaced then."""
    starting: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    failure: RuntimedError | None = None
    """Why it did not start."""


class Lives:
    """The sandboxes of one host that are not stopped."""

    def __init__(
        self, node: Node, store: SandboxStore, clock: Clock, ways: Ways | None = None, till: Till | None = None
    ) -> None:
        self._node = node
        self._ways = ways or Ways()
        self._till = till or FreeTill()
        self._store = store
        self._clock = clock
        self._lives: dict[SandboxId, Life] = {}
        self.started_total: Counter[str] = Counter()
        """Machines by how they came up; for the metrics."""
        node.on_ended(self.ended)

    def get(self, sandbox_id: SandboxId) -> Life | None:
        return self._lives.get(sandbox_id)

    def all(self) -> list[Life]:
        return list(self._lives.values())

    def admit(self, shape: Shape) -> None:
        """Raises NoCapacity when the host has no room now, InvalidRequest naming the field when it never could."""
        running = self._node.running()
        promised = [life.record.shape for key, life in self._lives.items() if key not in running]
        placement = place(shape, [HostView(name="local", capacity=self._node.capacity(), promised=promised)])
        if placement.never:
            raise InvalidRequest([{"field": name, "message": why} for name, why in placement.never.items()])
        if placement.host is None:
            raise NoCapacity(
                "; ".join(f"host {name}: {why}" for name, why in placement.rejected.items()),
                hint="end a sandbox that is no longer needed, ask for a smaller one, or ask again",
                retry_after_ms=NO_ROOM_RETRY_MS,
            )

    async def begin(self, record: SandboxRecord, env: Mapping[str, str], spending: Spending | None = None) -> Life:
        """Reserve room and money, record the sandbox and start its machine in the background.

        Raises:
            NoCapacity, InvalidRequest, NameTaken, and what the till refuses with: nothing was recorded or started.
        """
        self.admit(record.shape)
        lease_left_s = record.ends_at_s - self._clock.now_s()
        life = Life(
            record=record,
            env=dict(env),
            ends_mono_s=self._clock.monotonic_s() + lease_left_s,
            active_at_s=record.created_at_s,
        )
        self._lives[record.id] = life  # before the first await: from here on its room is taken
        try:
            await self._till.open(record, spending or Spending())
            await self._store.add(record)
        except BaseException:
            del self._lives[record.id]
            await asyncio.shield(self._till.settle(record.id))
            raise
        life.starting = spawn(self._start(life), name=f"start {record.id}")
        return life

    async def _start(self, life: Life) -> None:
        record = life.record
        self._ways.bind(record)
        machine = MachineSpec(
            sandbox_id=record.id,
            image=record.image,
            shape=record.shape,
            hostname=record.name or f"sandbox-{record.id[:8]}",
            env=self.env_of(life),
            user=record.user,
        )
        try:
            started = await self._node.start(machine)
        except RuntimedError as error:
            await self._start_failed(life, error)
            return
        except asyncio.CancelledError:
            raise  # by `_end`, which goes on from here
        except BaseException:
            await self._start_failed(life, StartFailed("the machine did not start: a fault of the service"))
            raise
        self._till.began(record.id)
        async with life.lock:
            await self._move(life, Fact.READY, ready_at_s=self._clock.now_s(), started=started)
        self.started_total[started.how] += 1

    async def _start_failed(self, life: Life, error: RuntimedError) -> None:
        """Leave nothing behind: no machine, and no record either where nothing was ever tried."""
        _log.warning("sandbox %s did not start: %s", life.record.id, error.message)
        await self._node.stop(life.record.id)
        await self._till.settle(life.record.id)
        async with life.lock:
            if life.record.state is not State.STARTING:
                return  # being stopped already, which ends it
            never_was = isinstance(error, NoCapacity | ImageNotFound)
            if not never_was:
                error.details.setdefault("sandboxId", life.record.id)
            life.failure = error
            await self._move(life, Fact.EXITED, stop_reason=StopReason.STARTUP_FAILED)
        if never_was:
            await self._store.drop(life.record.id)

    def env_of(self, life: Life) -> dict[str, str]:
        """What its commands get: the placeholders of its secrets, and over them what was set for it."""
        return {**self._ways.placeholders(life.record.id), **life.env}

    def rebind(self, life: Life) -> None:
        """Its rules have changed: they count when this returns."""
        if life.record.state is not State.STOPPED:
            self._ways.bind(life.record)

    def end(self, life: Life, reason: StopReason) -> asyncio.Task[None]:
        """Begin to end it, or join the end that is under way. The first reason stays. Idempotent."""
        if life.ending is None or life.ending.done():
            life.ending = spawn(self._end(life, reason), name=f"end {life.record.id}")
        return life.ending

    async def _end(self, life: Life, reason: StopReason) -> None:
        async with life.lock:
            if life.record.state is State.STOPPED:
                return
            await self._move(life, Fact.STOP_ASKED, stop_reason=life.record.stop_reason or reason)
        if life.starting is not None and not life.starting.done():
            life.starting.cancel()
            await asyncio.wait({life.starting})
        self._till.stopping(life.record.id)
        await self._node.stop(life.record.id)
        await self._till.settle(life.record.id)
        async with life.lock:
            if life.record.can_run:  # it may have ended by itself meanwhile
                await self._move(life, Fact.EXITED)

    async def ended(self, sandbox_id: SandboxId, why: str) -> None:
        """A machine ended by itself: its sandbox is stopped, and nothing takes its place."""
        life = self._lives.get(sandbox_id)
        if life is None or life.record.state is State.STARTING:
            return  # a start that fails is told by the start itself
        _log.warning("the machine of sandbox %s ended by itself: %s", sandbox_id, why)
        self._till.stopping(sandbox_id)
        await self._till.settle(sandbox_id)
        async with life.lock:
            if life.record.state is not State.STOPPED:
                reason = life.record.stop_reason or StopReason.HOST_LOST
                await self._move(life, Fact.EXITED, stop_reason=reason)
        await self._node.stop(sandbox_id)

    async def change(self, life: Life, *, labels_too: bool = False, **fields: Any) -> None:  # noqa: ANN401
        """Write other fields than the state. Raises NameTaken; then nothing has changed."""
        async with life.lock:
            changed = replace(life.record, updated_at_s=self._clock.now_s(), **fields)
            await self._store.save(changed, labels_too=labels_too)
            life.record = changed

    async def wait(self, life: Life, state: State, *, within_s: float) -> None:
        """Return when it is in `state`, can no longer come to it, or the time is over."""
        try:
            async with asyncio.timeout(within_s):
                while life.record.state not in (state, State.STOPPED):
                    await life.changed.wait()
        except TimeoutError:
            return

    async def recover(self) -> None:
        """At the start: whatever an earlier service left unfinished is stopped, since its machine is gone."""
        for record in await self._store.unfinished():
            now_s = self._clock.now_s()
            await self._store.save(
                replace(
                    record,
                    state=State.STOPPED,
                    stop_reason=record.stop_reason or StopReason.HOST_LOST,
                    ended_at_s=now_s,
                    updated_at_s=now_s,
                )
            )

    async def shut_down(self) -> None:
        """End every machine, because this service cannot find them again after it has stopped."""
        ends = {self.end(life, StopReason.HOST_STOPPED) for life in self.all()}
        if ends:
            await asyncio.wait(ends, timeout=SHUTDOWN_WITHIN_S)

    async def _move(self, life: Life, fact: Fact, **fields: Any) -> None:  # noqa: ANN401 - fields of the record
        now_s = self._clock.now_s()
        state = advance(life.record.state, fact)
        if state is State.STOPPED:
            fields["ended_at_s"] = now_s
        moved = replace(life.record, state=state, updated_at_s=now_s, last_active_at_s=life.active_at_s, **fields)
        life.record = moved  # first: whatever the database does, the machine's state is what it is
        try:
            await self._store.save(moved)
        finally:
            if state is State.STOPPED:
                self._ways.unbind(moved.id)
                self._lives.pop(moved.id, None)
            life.changed.set()
            life.changed = asyncio.Event()
