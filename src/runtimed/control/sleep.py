"""Pauses, wakes and restarts sandboxes: a move is made once, whoever else asks for it joins, what fails is undone.

A pause is done when the vCPUs have stopped. Its memory is written by the node afterwards, which tells how that came
out; until then a wake calls the write off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runtimed.control.life import Life, LifeParts, Lives, Move, stopped_error
from runtimed.control.room import admit
from runtimed.core.errors import (
    MachineGone,
    NotFound,
    NotPaused,
    NotRunning,
    NotStopped,
    RuntimedError,
    StartFailed,
)
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import Fact, State, StopReason
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Started, Stored
from runtimed.core.tasks import spawn

READY_WITHIN_S = 60.0
"""A call for a sandbox that still starts or wakes waits this long for it; booting a disk takes most of it."""

_log = logging.getLogger(__name__)


class Sleep:
    """The moves between running and kept."""

    def __init__(self, lives: Lives, parts: LifeParts) -> None:
        self._lives = lives
        self._node, self._clock = parts.node, parts.clock
        self._ways, self._till = parts.ways, parts.till
        parts.node.on_paused(self.settled)

    def pause(self, life: Life, reason: StopReason, *, unless: Callable[[], bool] = lambda: False) -> Move:
        """Begin to pause it, or join the pause under way; not if `unless` says so at the last moment. Idempotent."""
        if life.pausing is None or life.pausing.done():
            life.pausing = spawn(told(self._pause(life, reason, unless)), name=f"pause {life.record.id}")
        return life.pausing

    def wake(self, life: Life, *, lease_s: int | None = None) -> Move:
        """Begin to wake it under a new lease, or join what wakes it already. Idempotent.

        Raises NoCapacity at once where there is no room.
        """
        return self._resume(life, lease_s, cold=False)

    def restart(self, life: Life) -> Move:
        """Begin to boot its disk, giving up memory that was kept; joins what wakes it already. Idempotent.

        Raises NoCapacity at once where there is no room, NotStopped when it runs, SandboxStopped without a disk.
        """
        record = life.record
        if record.state not in (State.STOPPED, State.PAUSED, State.RESUMING):
            raise NotStopped(
                f"sandbox {record.id} is {record.state}, not stopped",
                hint="stop it first; a stop keeps the disk of a persistent sandbox",
                details={"state": record.state.value},
            )
        return self._resume(life, None, cold=True)

    async def running(self, life: Life, *, within_s: float = READY_WITHIN_S) -> None:
        """Return once it runs, woken if it has to be.

        Raises:
            SandboxPaused, SandboxStopped, NotRunning, and what a wake is refused with.
        """
        async with asyncio.timeout(within_s) as patience:
            try:
                while life.record.state is not State.RUNNING:
                    if life.record.state in (State.STARTING, State.RESUMING):
                        await life.changed.wait()
                    elif life.record.state in (State.PAUSED, State.PAUSING):
                        await joined(self.wake(life), life)
                    else:
                        raise stopped_error(life.record)
            except TimeoutError:
                if not patience.expired():
                    raise
                raise NotRunning(
                    f"sandbox {life.record.id} is still {life.record.state}", hint="wait until its state is running"
                ) from None

    def _resume(self, life: Life, lease_s: int | None, *, cold: bool) -> Move:
        if life.waking is None or life.waking.done():
            if life.record.state is State.STOPPED and not (cold and life.record.disk_kept):
                raise stopped_error(life.record)
            self._admit(life)
            life.waking = spawn(told(self._wake(life, lease_s, cold=cold)), name=f"wake {life.record.id}")
        return life.waking

    def _admit(self, life: Life) -> None:
        if life.record.id not in self._node.running():
            admit(self._node, self._lives.all(), [life.record])

    async def _pause(self, life: Life, reason: StopReason, unless: Callable[[], bool]) -> None:
        async with self._lives.turn(life):
            if _state(life) is State.PAUSED or unless():
                return
            if _state(life) is not State.RUNNING:
                raise stopped_error(life.record)
            try:
                async with life.lock:
                    await self._lives.move(life, Fact.PAUSE_ASKED)
                await self._node.pause(life.record.id)
            except RuntimedError as failure:
                await self._goes_on(life, failure.message)
                raise
            except asyncio.CancelledError:
                raise  # by the end of the sandbox, which goes on from here
            except BaseException:
                await self._goes_on(life, "a fault of the service")
                raise
            self._till.pausing(life.record.id)
            async with life.lock:
                if _state(life) is State.PAUSING:
                    fields = {"stop_reason": reason, "paused_at_s": self._clock.now_s(), "note": None}
                    await self._lives.move(life, Fact.PAUSED, **fields)
                    life.paused_as = life.record
            await self._till.paused(life.record, 0)

    async def _goes_on(self, life: Life, why: str) -> None:
        _log.warning("sandbox %s could not be paused: %s", life.record.id, why)
        life.pause_failed = True
        life.active_mono_s = self._clock.monotonic_s()  # an idle one is tried again, but not at once
        async with life.lock:
            if life.record.state in (State.PAUSING, State.PAUSED):
                await self._lives.move(life, Fact.PAUSE_FAILED, stop_reason=None, paused_at_s=None, note=why[:1000])

    async def settled(self, sandbox_id: SandboxId, stored: Stored | None, why: str) -> None:
        """The node has written a pause, or could not. Waits for nothing: the node may hold a lock of its own."""
        if (life := self._lives.get(sandbox_id)) is not None:
            spawn(told(self._settled(life, stored, why)), name=f"settle the pause of {sandbox_id}")

    def note_again(self, life: Life) -> None:
        """A pause was written, and that could not be noted when it was told. Idempotent."""
        unnoted = life.record.state is State.PAUSED and not life.record.stored_bytes and not life.turn.locked()
        if unnoted and (stored := self._node.stored(life.record.id)) is not None:
            spawn(told(self._settled(life, stored, "")), name=f"settle the pause of {life.record.id} again")

    async def _settled(self, life: Life, stored: Stored | None, why: str) -> None:
        async with self._lives.turn(life):
            if life.record.state is not State.PAUSED:
                return  # woken meanwhile
            if stored is not None:
                owned_bytes = stored.memory_bytes + stored.disk_bytes
                await self._till.paused(life.record, owned_bytes)
                await self._lives.change(life, stored_bytes=owned_bytes)  # last: until then it is noted again
                return
            try:
                self._node.guest(life.record.id)
            except MachineGone:
                return  # woken and paused again meanwhile: another write is under way
            self._ways.bind(life.record)
            self._till.began(life.record.id)
            await self._goes_on(life, why)
            left_s = life.ends_mono_s - self._clock.monotonic_s()
            self._node.lease(life.record.id, left_s)
            try:
                await self._till.woken(life.record, left_s)
            except RuntimedError as refused:
                _log.warning("sandbox %s goes on without a hold: %s", life.record.id, refused.message)

    async def _wake(self, life: Life, lease_s: int | None, *, cold: bool) -> None:
        async with self._lives.turn(life):
            before = life.record
            if before.state is State.RUNNING:
                return
            if before.state not in (State.PAUSED, State.STOPPED):
                raise NotPaused(f"sandbox {before.id} is {before.state}", details={"state": before.state.value})
            if before.state is State.STOPPED and not (cold and before.disk_kept):
                raise stopped_error(before)
            self._admit(life)
            lease_s = lease_s or before.lease_s
            started: Started | None = None
            try:
                async with life.lock:
                    # First, and before any other task can run: from here on its room is taken.
                    asleep = before.state is State.STOPPED
                    await self._lives.move(life, Fact.RESTART_ASKED if asleep else Fact.WAKE_ASKED)
                await self._till.woken(life.record, lease_s)
                asked = self._lives.prepare(life, "restart" if cold else "wake")
                started = await self._node.wake(asked.machine, from_disk=cold)
                await self._lives.change(life, ends_at_s=self._clock.now_s() + lease_s, lease_s=lease_s)
                await self._lives.up(life, started, asked)
            except asyncio.CancelledError:
                raise  # by the end of the sandbox, which goes on from here
            except BaseException as failure:
                if started is not None:  # it runs, and nobody could write that down
                    self._lives.end(life, StopReason.HOST_LOST, keep_disk=True)
                else:
                    fault = StartFailed("a fault of the service")
                    await self._sleeps_on(life, before, failure if isinstance(failure, RuntimedError) else fault)
                raise

    async def _sleeps_on(self, life: Life, before: SandboxRecord, failure: RuntimedError) -> None:
        """What was kept is as it was; where nothing is, nothing can be woken any more."""
        _log.warning("sandbox %s could not be woken: %s", before.id, failure.message)
        nothing_kept = isinstance(failure, NotFound)
        self._till.pausing(before.id)
        async with life.lock:
            if life.record.state is not State.RESUMING:
                return
            if nothing_kept:
                fields = {"stop_reason": StopReason.HOST_LOST, "paused_at_s": None, "disk_kept": False}
                await self._lives.move(life, Fact.EXITED, **fields)
            elif before.state is State.STOPPED:
                await self._lives.move(life, Fact.EXITED, ended_at_s=before.ended_at_s)
            else:
                await self._lives.move(life, Fact.WAKE_FAILED)
        if nothing_kept:
            await self._till.settle(before.id)
        else:
            await self._till.paused(life.record, before.stored_bytes)


def _state(life: Life) -> State:
    """As it is now, whatever it was before an await."""
    return life.record.state


async def joined(move: Move, life: Life) -> None:
    """Wait for a move that somebody may share, without owning it. Raises what it failed with."""
    await asyncio.wait({move})
    if move.cancelled():
        raise stopped_error(life.record)
    if (failure := move.result()) is not None:
        raise failure


async def told(work: Awaitable[None]) -> RuntimedError | None:
    """Why the work failed: a refusal is an answer here, and only a fault of the service is logged as one."""
    try:
        await work
    except RuntimedError as failure:
        return failure
    return None
