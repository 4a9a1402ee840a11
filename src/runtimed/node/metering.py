"""The meter of one host: takes samples of the node's machines, writes them, and hands over what is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from runtimed.core.clock import Clock
from runtimed.core.ids import SandboxId, new_id
from runtimed.core.usage import SampleBatch, SampleKind
from runtimed.node.usage import UsageSampler, incarnation

_log = logging.getLogger(__name__)


class HostMeter:
    """Implements core.ports.Meter."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        vmm_pid: Callable[[SandboxId], int | None],
        outbound_bytes: Callable[[SandboxId], int] = lambda sandbox_id: 0,
    ) -> None:
        """`outbound_bytes` is what a machine has sent over its connections since it was bound; 0 after that."""
        self._sampler = UsageSampler(directory, clock, outbound_bytes=outbound_bytes)
        self._vmm_pid = vmm_pid
        self._disk = asyncio.Lock()

    def begin(self, sandbox_id: SandboxId) -> None:
        """Count the sandbox's machine from now on; the next `write` puts that on the disk. Idempotent."""
        pid = self._vmm_pid(sandbox_id)
        machine = incarnation(pid) if pid is not None else None
        # A machine without a process of its own counts by time alone.
        self._sampler.begin(sandbox_id, machine or f"without a process/{new_id()}", pid if machine else None)

    def begin_paused(self, sandbox_id: SandboxId, owned_bytes: int) -> None:
        """Count what a paused sandbox alone owns on the disk."""
        self._sampler.begin_paused(sandbox_id, owned_bytes)

    def end(self, sandbox_id: SandboxId, kind: SampleKind) -> None:
        """Take the last sample of what counts of a sandbox. Idempotent."""
        self._sampler.end(sandbox_id, kind)

    def forget(self, sandbox_id: SandboxId) -> None:
        """A sandbox that will never count again. Idempotent."""
        self._sampler.forget(sandbox_id)

    async def tick(self) -> None:
        """Sample everything that counts, onto the disk. What the disk refuses is written with the next."""
        self._sampler.tick()
        with contextlib.suppress(OSError):
            await self._write()

    async def collect(self) -> list[SampleBatch]:
        """What is on the disk and was not `collected`, oldest first; what was taken until now is among it."""
        with contextlib.suppress(OSError):
            await self._write()
        async with self._disk:
            return await asyncio.to_thread(self._read)

    async def collected(self, batches: list[SampleBatch]) -> None:
        """Whoever counts has kept these: they may go. Idempotent."""
        async with self._disk:
            await asyncio.to_thread(self._drop, batches)

    async def _write(self) -> None:
        try:
            async with self._disk:
                await asyncio.to_thread(self._sampler.write)
        except OSError as error:
            _log.warning("usage samples wait in memory, because the disk refuses them: %s", error)
            raise

    def _read(self) -> list[SampleBatch]:
        log = self._sampler.log
        log.close_segment()
        batches = []
        for path in log.closed():
            segment = log.read(path)
            if segment.damaged:
                _log.warning("%s has %d damaged lines; later samples contain them", path, segment.damaged)
            batches.append(SampleBatch(name=path.name, samples=segment.samples))
        return batches

    def _drop(self, batches: list[SampleBatch]) -> None:
        for path in self._sampler.log.closed():
            if path.name in {batch.name for batch in batches}:
                self._sampler.log.collected(path)
