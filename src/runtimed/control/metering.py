"""Samples what runs, charges it, ends what has spent its cap, and settles tabs whose sandbox is gone. May run twice."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from runtimed.control.charging import Charging
from runtimed.control.life import Lives
from runtimed.core.clock import Clock
from runtimed.core.ledger import LedgerError
from runtimed.core.lifecycle import StopReason
from runtimed.core.ports import Meter
from runtimed.core.tasks import spawn
from runtimed.store.books import Books
from runtimed.store.usage_joining import DAY_S, UsageJoining

SAMPLE_EVERY_S = 10.0
"""At most this much use is unknown when a host dies."""
CHARGE_EVERY_S = 60.0
"""Entries are made this often while nothing changes: 1440 a day for a sandbox that runs all the time."""

JOIN_EVERY_S = 3600.0
"""An hour is what old use is joined by."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Metering:
    """The reconciler of use and money."""

    lives: Lives
    charging: Charging
    books: Books
    meter: Meter
    clock: Clock
    joining: UsageJoining | None = None
    detail_s: float = 35 * DAY_S
    """Use that is older is joined by the hour."""
    _charge_at_s: float = field(default=0.0)

    async def reconcile(self) -> None:
        """Sample; and when it is time, charge, end and settle. Idempotent."""
        await self.meter.tick()
        if self.clock.monotonic_s() >= self._charge_at_s:
            self._charge_at_s = self.clock.monotonic_s() + CHARGE_EVERY_S
            await self.charge()

    async def charge(self) -> None:
        """Charge what was measured, and bring tabs and sandboxes together. Idempotent."""
        for sandbox_id in await self.charging.collect():
            if life := self.lives.get(sandbox_id):
                _log.info("sandbox %s has spent all that it may cost", sandbox_id)
                self.lives.end(life, StopReason.LIFETIME_CAP)
        await self.charging.renew_storage()
        await self.settle_ended()

    async def settle_ended(self) -> None:
        """Settle each open tab whose sandbox is not there: it ended while nobody could settle it."""
        for kept in await self.books.open_tabs():
            if self.lives.get(kept.sandbox_id) is None:
                try:
                    await self.charging.settle(kept.sandbox_id)
                except LedgerError:
                    # One tab that cannot be settled must not keep all others from it.
                    _log.exception("the tab of sandbox %s cannot be settled", kept.sandbox_id)

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self.clock.sleep(SAMPLE_EVERY_S)
            # A task of its own: a busy database is logged, and costs this turn and not the service.
            await asyncio.wait({spawn(self.reconcile(), name="meter and charge once")})

    async def tidy(self) -> None:
        """Join old use by the hour, and forget counts of requests that are too old to be asked for. Idempotent."""
        if self.joining is None:
            return
        now_s = self.clock.now_s()
        if fewer := await self.joining.join(before_s=now_s - self.detail_s):
            _log.info("joined use older than %g days by the hour: %d rows less", self.detail_s / DAY_S, fewer)
        await self.joining.forget_requests(now_s=now_s)

    async def run_tidying(self) -> None:
        """Tidy for ever, beside the sampling, which waits for nothing."""
        while True:
            await self.clock.sleep(JOIN_EVERY_S)
            await asyncio.wait({spawn(self.tidy(), name="join old use once")})

    async def close(self) -> None:
        """Before the service stops: charge what was used until now, since what comes after it is credited."""
        await self.meter.tick()
        await self.charging.collect()
