"""Ends what is past its lease, and finishes ends that failed. Reads the world, compares, acts; may run at any time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from runtimed.control.life import Life, Lives
from runtimed.core.clock import Clock
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.tasks import spawn
from runtimed.store.answers import AnswerStore
from runtimed.store.sandboxes import SandboxStore

EVERY_S = 1.0
"""A lease ends at most this much late. One look at a few hundred values costs microseconds."""
SLOW_EVERY_S = 30.0
"""How often what nobody waits for is written: when sandboxes were last used, answers that have expired."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Leases:
    """The reconciler of leases."""

    lives: Lives
    sandboxes: SandboxStore
    answers: AnswerStore
    clock: Clock

    async def reconcile(self) -> None:
        """Begin to end every sandbox whose lease is over. Idempotent; does not wait for the ends."""
        now_s = self.clock.monotonic_s()
        for life in self.lives.all():
            if life.record.state is State.STOPPING:
                # `end` joins one that is under way and repeats one that failed.
                self.lives.end(life, life.record.stop_reason or StopReason.REQUESTED)
            elif life.ends_mono_s <= now_s:
                _log.info("the lease of sandbox %s is over", life.record.id)
                spawn(self._expire(life), name=f"expire {life.record.id}")

    async def _expire(self, life: Life) -> None:
        if life.record.on_lease_end == "delete" and life.record.deleted_at_s is None:
            await self.lives.change(life, deleted_at_s=self.clock.now_s())
        await asyncio.wait({self.lives.end(life, StopReason.LEASE_EXPIRED)})
        if life.record.deleted_at_s is not None:
            await self.sandboxes.forget_answers(life.record.id)

    async def tidy(self) -> None:
        """Write when sandboxes were last used and forget answers that have expired. Idempotent."""
        used = {
            life.record.id: life.active_at_s
            for life in self.lives.all()
            if life.active_at_s > life.record.last_active_at_s
        }
        if used:
            await self.sandboxes.touch(used)
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
