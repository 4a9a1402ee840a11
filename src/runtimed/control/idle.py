"""Pauses sandboxes that nobody uses. Reads what their host sees of them, compares, acts; may run at any time.

Use is a request that reaches into it, a command or terminal that runs, bytes on its connections, or CPU over a
fortieth of a vCPU. Reading its state is none, and a connection on which nothing goes is none either.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from runtimed.control.life import Life, Lives
from runtimed.control.sleep import Sleep
from runtimed.core.clock import Clock
from runtimed.core.errors import RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.ports import Load, Node
from runtimed.core.tasks import spawn

LOOK_EVERY_S = 5.0
"""A pause comes at most this much late. A look costs one read of /proc for each sandbox that may be paused."""
CPU_SHARE = 1 / 40
"""Of one vCPU, over the time between two looks: an idle guest's own timers and its emulation stay below."""
ASK_WITHIN_S = 5.0
ASK_AGAIN_S = 30.0
"""A sandbox that only a running command keeps awake is asked again this much later."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Seen:
    """What the last look found of one sandbox."""

    at_mono_s: float
    cpu_s: float | None
    traffic_bytes: int
    ask_at_mono_s: float = 0.0


@dataclass(kw_only=True)
class Idle:
    """The reconciler of idle sandboxes."""

    lives: Lives
    sleep: Sleep
    node: Node
    load: Load
    clock: Clock
    _seen: dict[SandboxId, _Seen] = field(default_factory=dict)
    _asking: set[SandboxId] = field(default_factory=set)

    async def reconcile(self) -> None:
        """Note what is used, and begin to pause what was not for long enough. Idempotent; does not wait for pauses."""
        watched = [life for life in self.lives.all() if life.record.idle_pause_s and _runs(life)]
        ids = {life.record.id for life in watched}
        self._seen = {sandbox_id: seen for sandbox_id, seen in self._seen.items() if sandbox_id in ids}
        mono_s = self.clock.monotonic_s()
        for life in watched:
            seen = self._look(life, mono_s)
            quiet_s = mono_s - life.active_mono_s
            if quiet_s >= life.record.idle_pause_s and mono_s >= seen.ask_at_mono_s:
                if life.record.id not in self._asking:
                    self._asking.add(life.record.id)
                    spawn(self._ask_and_pause(life, seen), name=f"is {life.record.id} idle")

    def _look(self, life: Life, mono_s: float) -> _Seen:
        """What it did since the last look counts as use now."""
        sandbox_id = life.record.id
        cpu_s, traffic_bytes = self.load.cpu_s(sandbox_id), self.load.traffic_bytes(sandbox_id)
        before = self._seen.get(sandbox_id)
        if before is None or (before.cpu_s is not None and cpu_s is not None and cpu_s < before.cpu_s):
            # Not seen before, or another machine by now.
            before = self._seen[sandbox_id] = _Seen(at_mono_s=mono_s, cpu_s=cpu_s, traffic_bytes=traffic_bytes)
        passed_s = mono_s - before.at_mono_s
        busy = cpu_s is not None and before.cpu_s is not None and cpu_s - before.cpu_s > CPU_SHARE * passed_s
        if self.load.calls(sandbox_id) or traffic_bytes != before.traffic_bytes or (passed_s > 0 and busy):
            life.active_at_s, life.active_mono_s = self.clock.now_s(), mono_s
        before.at_mono_s, before.cpu_s, before.traffic_bytes = mono_s, cpu_s, traffic_bytes
        return before

    async def _ask_and_pause(self, life: Life, seen: _Seen) -> None:
        """Only the guest knows its commands: it is asked when everything else was quiet for long enough."""
        try:
            ended_s_ago = await self._commands_ended_s_ago(life)
            mono_s = self.clock.monotonic_s()
            if ended_s_ago is None:
                seen.ask_at_mono_s = mono_s + ASK_AGAIN_S
                return
            quiet_s = min(ended_s_ago, mono_s - life.active_mono_s)
            if quiet_s < life.record.idle_pause_s:
                seen.ask_at_mono_s = mono_s + life.record.idle_pause_s - quiet_s
                return
            _log.info("sandbox %s was not used for %d s", life.record.id, quiet_s)
            await asyncio.wait({self.sleep.pause(life, StopReason.IDLE, unless=lambda: self._in_use(life))})
        finally:
            self._asking.discard(life.record.id)

    def _in_use(self, life: Life) -> bool:
        quiet_s = self.clock.monotonic_s() - life.active_mono_s
        return self.load.calls(life.record.id) > 0 or quiet_s < life.record.idle_pause_s

    async def _commands_ended_s_ago(self, life: Life) -> float | None:
        """Seconds since its last command ended; None while one runs, or when it does not say."""
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                processes = await self.node.guest(life.record.id).processes.processes()
        except (RuntimedError, TimeoutError) as failure:
            _log.info("sandbox %s does not say whether anything runs in it: %s", life.record.id, failure)
            return None
        if any(process.exit is None for process in processes):
            return None
        last_s = max((process.ended_at_s or 0.0 for process in processes), default=0.0)
        return max(0.0, self.clock.now_s() - last_s)

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self.clock.sleep(LOOK_EVERY_S)
            await self.reconcile()


def _runs(life: Life) -> bool:
    return life.record.state is State.RUNNING
