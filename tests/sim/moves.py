"""What can be asked of a sandbox, each with the state that it must be in before: the sweeps go over all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from runtimed.core.lifecycle import State
from runtimed.core.sandbox import ForkSpec, SandboxRecord
from runtimed.core.snapshots import SnapshotSpec
from tests.unit.control.conftest import Rig

Ask = Callable[[Rig, SandboxRecord], Awaitable[object]]


async def _create(rig: Rig, _: SandboxRecord) -> object:
    return await rig.create(name="new")


async def _pause(rig: Rig, record: SandboxRecord) -> object:
    return await rig.moves.pause(rig.caller, record.id, wait_s=5)


async def _wake(rig: Rig, record: SandboxRecord) -> object:
    return await rig.moves.wake(rig.caller, record.id, lease_s=None, wait_s=5)


async def _restart(rig: Rig, record: SandboxRecord) -> object:
    return await rig.moves.restart(rig.caller, record.id, wait_s=5)


async def _fork(rig: Rig, record: SandboxRecord) -> object:
    return await rig.forks.fork(rig.caller, record.id, ForkSpec(count=2, name="kid"))


async def _fork_and_keep(rig: Rig, record: SandboxRecord) -> object:
    return await rig.forks.fork(rig.caller, record.id, ForkSpec(count=2, name="kid", keep_snapshot=True))


async def _snapshot(rig: Rig, record: SandboxRecord) -> object:
    return await rig.snapshots.take(rig.caller, record.id, SnapshotSpec(mode="memory", retention_days=1), wait_s=5)


async def _stop(rig: Rig, record: SandboxRecord) -> object:
    return await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)


async def _delete(rig: Rig, record: SandboxRecord) -> object:
    return await rig.sandboxes.delete(rig.caller, record.id)


MOVES: dict[str, tuple[Ask, State]] = {
    "create": (_create, State.RUNNING),
    "pause": (_pause, State.RUNNING),
    "wake": (_wake, State.PAUSED),
    "restart": (_restart, State.STOPPED),
    "fork": (_fork, State.RUNNING),
    "fork and keep": (_fork_and_keep, State.RUNNING),
    "snapshot": (_snapshot, State.RUNNING),
    "stop": (_stop, State.RUNNING),
    "delete": (_delete, State.RUNNING),
    "delete a paused one": (_delete, State.PAUSED),
    "delete a stopped one": (_delete, State.STOPPED),
}
