"""Ends or pauses what is past its lease, renews what renews itself, and removes what was kept for long enough.

Reads the world, compares, acts; may run at any time, and twice at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from runtimed.control.life import Life, Lives
from runtimed.control.sleep import Sleep
from runtimed.control.till import FreeTill, Till
from runtimed.core.clock import Clock
from runtimed.core.errors import BudgetExceeded, PaymentRequired, SpendingLimitReached
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import StartRecord
from runtimed.core.tasks import spawn
from runtimed.store.answers import AnswerStore
from runtimed.store.sandboxes import SandboxStore

EVERY_S = 1.0
"""A lease ends at most this much late. One look at a few hundred values costs microseconds."""
SLOW_EVERY_S = 30.0
"""How often what nobody waits for is done: when sandboxes were last used, answers that have expired."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Leases:
    """The reconciler of leases."""

    lives: Lives
    sleep: Sleep
    sandboxes: SandboxStore
    answers: AnswerStore
    clock: Clock
    till: Till | None = None

    async def reconcile(self) -> None:
        """Begin what is due of every sandbox. Idempotent; does not wait for what it begins."""
        mono_s, now_s = self.clock.monotonic_s(), self.clock.now_s()
        for life in self.lives.all():
            record = life.record
            if life.unsaved and not life.lock.locked():
                spawn(self._save(life), name=f"save {record.id}")
            if record.state is State.STOPPING:
                # `end` joins one that is under way and repeats one that failed.
                self.lives.end(life, record.stop_reason or StopReason.REQUESTED, keep_disk=life.keep_disk)
            elif record.state in (State.STARTING, State.RUNNING) and life.ends_mono_s <= mono_s:
                self._lease_over(life)
            elif record.deleted_at_s is not None and record.state is State.STOPPED:
                self.lives.end(life, StopReason.REQUESTED)  # its disk could not be removed
            elif record.kept_until_s is not None and record.kept_until_s <= now_s:
                _log.info("sandbox %s was kept for %d days", record.id, record.retention_days)
                self.lives.end(life, StopReason.PAUSED_EXPIRED)
            else:
                self.sleep.note_again(life)

    async def _save(self, life: Life) -> None:
        """What the store did not take when it happened."""
        async with life.lock:
            if life.unsaved:
                await self.lives.correct(life, life.record)

    def _lease_over(self, life: Life) -> None:
        record = life.record
        if life.pausing is not None and not life.pausing.done():
            return
        if record.state is State.STARTING:
            self.lives.end(life, StopReason.LEASE_EXPIRED)
        elif record.persistent and not life.pause_failed:
            if not life.turn.locked():
                spawn(self._renew(life), name=f"renew {record.id}")
        elif life.pause_failed:
            # Nothing outlives its lease: its files are kept where its memory cannot be.
            self.lives.end(life, StopReason.PAUSE_FAILED, keep_disk=True)
        elif record.on_lease_end == "pause":
            _log.info("the lease of sandbox %s is over: it is paused", record.id)
            self.sleep.pause(life, StopReason.LEASE_EXPIRED)
        else:
            _log.info("the lease of sandbox %s is over: it ends", record.id)
            spawn(self._expire(life), name=f"expire {record.id}")

    async def _renew(self, life: Life) -> None:
        """A persistent sandbox has a new lease, or is paused where that cannot be paid."""
        async with self.lives.turn(life):
            if life.record.state is not State.RUNNING or life.ends_mono_s > self.clock.monotonic_s():
                return
            lease_s = life.record.lease_s
            try:
                await (self.till or FreeTill()).lease_changed(life.record, lease_s)
                await self.lives.change(life, ends_at_s=self.clock.now_s() + lease_s)
                return
            except (PaymentRequired, BudgetExceeded) as refused:
                _log.warning("sandbox %s is paused: %s", life.record.id, refused.message)
                reason = _why_not_renewed(refused)
        self.sleep.pause(life, reason)

    async def _expire(self, life: Life) -> None:
        if life.record.on_lease_end == "delete" and life.record.deleted_at_s is None:
            await self.lives.change(life, deleted_at_s=self.clock.now_s())
        await asyncio.wait({self.lives.end(life, StopReason.LEASE_EXPIRED)})
        if life.record.deleted_at_s is not None:
            await self.sandboxes.forget_answers(life.record.id)

    async def tidy(self) -> None:
        """Write when sandboxes were last and first used, and forget answers that have expired. Idempotent."""
        used = {
            life.record.id: life.active_at_s
            for life in self.lives.all()
            if life.active_at_s > life.record.last_active_at_s
        }
        if used:
            await self.sandboxes.touch(used)
        for life in self.lives.all():
            if (receipt := with_first_command(life)) is not life.receipt and receipt is not None:
                await self.sandboxes.note_first_command(receipt)
                life.receipt = receipt
        await self.answers.purge(now_s=self.clock.now_s())

    async def run(self) -> None:
        """Reconcile for ever."""
        tidy_at_s = self.clock.monotonic_s() + SLOW_EVERY_S
        while True:
            await self.clock.sleep(EVERY_S)
            await self.reconcile()
            if self.clock.monotonic_s() >= tidy_at_s:
                tidy_at_s = self.clock.monotonic_s() + SLOW_EVERY_S
                await self.tidy()


def with_first_command(life: Life) -> StartRecord | None:
    """Its newest receipt, with its first command where that is known and was not noted yet."""
    receipt = life.receipt
    if receipt is None or receipt.first_command_ms is not None or life.first_command_at_s is None:
        return receipt
    return replace(receipt, first_command_ms=round((life.first_command_at_s - receipt.asked_at_s) * 1000, 3))


def _why_not_renewed(refused: PaymentRequired | BudgetExceeded) -> StopReason:
    if isinstance(refused, BudgetExceeded):
        return StopReason.LIFETIME_CAP
    return StopReason.SPENDING_LIMIT if isinstance(refused, SpendingLimitReached) else StopReason.INSUFFICIENT_FUNDS
