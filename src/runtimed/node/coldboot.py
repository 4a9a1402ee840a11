"""Boots a machine cold and watches it: a boot without progress is ended and tried again, a few times.

Boots under emulation can hang for good (clock calibration, 6 of 30 before `tsc_early_khz`), so none is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from runtimed.core.errors import HostUnavailable, RuntimedError, StartFailed
from runtimed.node.channel import Channel
from runtimed.node.vmm.base import MachinePlan, VmmDriver

_log = logging.getLogger(__name__)

ATTEMPTS = 4
STALL_S = 15.0
"""No new line on the console for this long is a hang: the slowest step seen takes 3 s on a busy host without KVM."""
BOOT_S = 120.0
WATCH_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class BootWay:
    """A boot in another way than `driver.boot`."""

    begin: Callable[[], Awaitable[None]]
    undo: Callable[[], Awaitable[None]] | None = None
    """Ends it in another way than `driver.kill`."""


async def boot_watched(
    driver: VmmDriver,
    plan: MachinePlan,
    *,
    way: BootWay | None = None,
    attempts: int = ATTEMPTS,
    patience: float = 1.0,
) -> Channel:
    """A booted machine with its channel open. If this raises or is cancelled, nothing of it is left.

    A machine that is to leave the processor to others gets more `patience`: so many times the usual wait.

    Raises:
        HostUnavailable: the host refused to start it at all.
        StartFailed: it was started and never answered; the message has the end of its console.
    """
    said = ""
    begin = way.begin if way else lambda: driver.boot(plan)
    end = way.undo if way and way.undo else lambda: driver.kill(plan.machine_id)
    for attempt in range(1, attempts + 1):
        await begin()
        try:
            channel, said = await _first_answer(driver, plan, patience)
        except BaseException:
            await end()
            raise
        if channel is not None:
            return channel
        _log.warning("boot %d of %d made no progress; console ends with: %s", attempt, attempts, said)
        await end()
    raise StartFailed(
        f"image {plan.image.name} did not boot: its agent never answered in {attempts} attempts"
        + (f"; the console ends with: {said}" if said else ""),
        hint="Try another image, to see whether it is the image or the host; `runtime doctor` tells of the host.",
    )


async def _first_answer(driver: VmmDriver, plan: MachinePlan, patience: float) -> tuple[Channel | None, str]:
    """The channel when the agent answers, or None and the console's last line when the boot stalls or ends."""
    opening = asyncio.ensure_future(Channel.open(plan.socket, within_s=BOOT_S * patience))  # noqa: TID251
    exited = asyncio.ensure_future(driver.wait_exit(plan.machine_id))  # noqa: TID251 - both are awaited below
    watching = asyncio.ensure_future(_stalled(driver, plan.machine_id, STALL_S * patience))  # noqa: TID251
    try:
        await asyncio.wait({opening, exited, watching}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            return opening.result(), ""
        if watching.done():
            return None, watching.result()
        return None, exited.result() if exited.done() else "the agent did not answer"
    finally:
        for task in (opening, exited, watching):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, OSError, RuntimedError):
                    await task


async def _stalled(driver: VmmDriver, machine_id: str, stall_s: float) -> str:
    """Return the console's last line once nothing new came for `stall_s`."""
    loop = asyncio.get_running_loop()
    seen, since = b"", loop.time()
    while loop.time() - since < stall_s:
        await asyncio.sleep(WATCH_EVERY_S)
        try:
            said = await driver.console(machine_id)
        except (OSError, TimeoutError, HostUnavailable):
            continue
        if said != seen:
            seen, since = said, loop.time()
    lines = seen.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing at all"
