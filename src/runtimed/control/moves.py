"""What callers may do with a sandbox's memory and disk: pause, wake, restart, and read how it started."""

from __future__ import annotations

import asyncio
import contextlib

from runtimed.control.finding import Finder
from runtimed.control.leases import with_first_command
from runtimed.control.life import Life, Lives, Move, stopped_error
from runtimed.control.sleep import Sleep, joined
from runtimed.core.errors import NotPaused, NotRunning
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import Caller, SandboxRecord, StartRecord
from runtimed.store.sandboxes import SandboxStore


class Moves:
    """Every method raises NotFound for a sandbox that the caller may not see."""

    def __init__(self, *, lives: Lives, sleep: Sleep, store: SandboxStore) -> None:
        self._sleep, self._store = sleep, store
        self._finder = Finder(lives, store)

    async def pause(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord:
        """Stop its vCPUs and keep its memory and files. Pausing one that is paused is done already.

        Whoever asks while a pause is under way joins it, and all get the same answer: the sandbox as that pause left
        it, whatever wakes it in the next moment.

        Raises:
            NotRunning, SandboxStopped, NoCapacity (no room on the disk: it goes on).
        """
        life = await self._life(caller, sandbox_id)
        if life.record.state is State.STARTING:
            raise NotRunning(f"sandbox {life.record.id} is still starting", hint="wait until its state is running")
        if life.record.state in (State.STOPPED, State.STOPPING):
            raise stopped_error(life.record)
        before = life.paused_as
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while life.record.state is not State.PAUSED:
                    await joined(self._sleep.pause(life, StopReason.REQUESTED), life)
                    if life.paused_as is not before and life.paused_as is not None:
                        return life.paused_as
                    # What it joined was the end of an earlier pause, or one for idleness that was called off.
        return life.record

    async def wake(self, caller: Caller, sandbox_id: str, *, lease_s: int | None, wait_s: float) -> SandboxRecord:
        """Go on after a pause, under a new lease. Joins a wake that is under way.

        Raises:
            NotPaused when it is awake, SandboxStopped, NoCapacity, StartFailed (it is paused as before).
        """
        life = await self._life(caller, sandbox_id)
        record = life.record
        if record.state in (State.STOPPED, State.STOPPING):
            raise stopped_error(record)
        if record.state in (State.RUNNING, State.STARTING):
            raise NotPaused(f"sandbox {record.id} is {record.state}, not paused", details={"state": record.state.value})
        await _within(self._sleep.wake(life, lease_s=lease_s), life, wait_s)
        return life.record

    async def restart(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord:
        """Boot a stopped sandbox from its disk; of a paused one this gives up the memory.

        Raises:
            NotStopped when it runs, SandboxStopped where no disk was kept, NoCapacity, StartFailed.
        """
        life = await self._life(caller, sandbox_id)
        await _within(self._sleep.restart(life), life, wait_s)
        return life.record

    async def starts(self, caller: Caller, sandbox_id: str) -> list[StartRecord]:
        """Its receipts, oldest first."""
        record, life = await self._finder.life(caller, sandbox_id)
        found = await self._store.starts(record.id)
        newest = with_first_command(life) if life else None
        return [newest if newest is not None and start.number == newest.number else start for start in found]

    async def _life(self, caller: Caller, sandbox_id: str) -> Life:
        record, life = await self._finder.life(caller, sandbox_id)
        if life is None:
            raise stopped_error(record)
        return life


async def _within(move: Move, life: Life, wait_s: float) -> None:
    """What a move came to, or nothing when that takes longer; it goes on then."""
    try:
        async with asyncio.timeout(wait_s):
            await joined(move, life)
    except TimeoutError:
        return
