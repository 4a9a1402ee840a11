"""The bare machine: the same template restored by the driver alone, with one request on its channel. No service."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.ids import ProcessId
from runtimed.host import DEFAULT_SHAPE, make_host
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient, Identity
from runtimed.node.node import LocalNode
from runtimed.node.vmm.base import MachinePlan
from runtimed.settings import Settings


@dataclass(kw_only=True)
class Bare:
    """Restores clones of the default template and asks their agents."""

    node: LocalNode
    root: Path

    async def restore_ms(self) -> float:
        """From nothing to the answer of the agent to its identity, with the raw driver."""
        parts = self.node._parts
        image = await parts.images.files(parts.default_image)
        template = await parts.templates.ensure(image, DEFAULT_SHAPE)
        machine_id = str(uuid.uuid4())
        directory = parts.machines / machine_id
        plan = MachinePlan(machine_id=machine_id, directory=directory, image=image, shape=DEFAULT_SHAPE)
        began = time.perf_counter()
        await parts.driver.restore(plan, template)
        try:
            channel = await Channel.open(plan.socket, within_s=30)
            identity = Identity(hostname="bare", machine_id=uuid.uuid4().hex, entropy=os.urandom(64))
            await GuestClient(channel).identify(identity, SystemClock())
            took = (time.perf_counter() - began) * 1000
            await channel.close()
            return took
        finally:
            await parts.driver.kill(machine_id)

    async def exec_true_ms(self, guest: GuestClient) -> float:
        command = Command(argv=("bash", "-c", "true"))
        began = time.perf_counter()
        await guest.processes.capture(ProcessId(str(uuid.uuid4())), command, keep_bytes=65536)
        return (time.perf_counter() - began) * 1000

    @asynccontextmanager
    async def machine(self) -> AsyncIterator[GuestClient]:
        """One clone to ask again and again."""
        parts = self.node._parts
        image = await parts.images.files(parts.default_image)
        template = await parts.templates.ensure(image, DEFAULT_SHAPE)
        ready = await self.node._starter._clone(image, DEFAULT_SHAPE, template)
        try:
            identity = Identity(hostname="bare", machine_id=uuid.uuid4().hex, entropy=os.urandom(64))
            guest = GuestClient(ready.channel)
            await guest.identify(identity, SystemClock())
            yield guest
        finally:
            await self.node._starter.drop(ready)


@asynccontextmanager
async def bare() -> AsyncIterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="runtime-bare-") as folder:
        settings = Settings(state_dir=Path(folder), spares=0)
        node = await make_host(settings, SystemClock(), lambda line: None)
        assert isinstance(node, LocalNode)
        await node.prepare()
        try:
            yield Bare(node=node, root=Path(folder))
        finally:
            await node.close()
