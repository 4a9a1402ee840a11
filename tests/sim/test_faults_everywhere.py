"""A fault at every step of every move: nothing is left over, and what a user was told to be written is there.

A step is a point in the host, or the moment before or after the store has taken something.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from runtimed.core.clock import ManualClock
from runtimed.core.errors import HostUnavailable, RuntimedError
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import SandboxRecord
from runtimed.sim.faults import Faults
from runtimed.sim.node import SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.database import open_database, sqlite_url
from runtimed.store.sandboxes import SandboxStore
from runtimed.store.snapshots import SnapshotStore
from tests.unit.control.conftest import Rig

from .moves import MOVES
from .rest import check_nothing_is_left_over, come_to_rest

FILE, CONTENT = "/workspace/f", b"written"
STEPS_MAX = 200
"""A move with more steps than this goes round in circles."""


class Defect(Exception):
    """What nobody expects."""


@pytest.mark.parametrize(
    "error", [HostUnavailable("not now"), Defect("nobody thought of this")], ids=["known", "unknown"]
)
@pytest.mark.parametrize("move", MOVES)
async def test_a_fault_at_any_step_leaves_nothing_behind_and_loses_nothing(
    move: str, error: Exception, tmp_path: Path
) -> None:
    rig = await _rig(tmp_path)
    ask, before = MOVES[move]
    for n in range(STEPS_MAX):
        record = await _sandbox(rig, before)
        rig.node.faults.nth = n, error
        with contextlib.suppress(RuntimedError, Defect):
            await ask(rig, record)
        hit, rig.node.faults.nth = rig.node.faults.nth is None, None

        await come_to_rest(rig)
        await check_nothing_is_left_over(rig)
        _check_written(rig, record, ended="delete" in move or move == "stop")
        for life in rig.lives.all():
            await rig.sandboxes.delete(rig.caller, life.record.id)
        await come_to_rest(rig)
        assert (rig.node.host.machines, rig.node.host.kept) == ({}, {})
        if not hit:
            break
    else:
        pytest.fail(f"{move} has more than {STEPS_MAX} steps")
    assert n > 2, "the fault was hardly ever raised"
    await rig.database.close()


def _check_written(rig: Rig, record: SandboxRecord, *, ended: bool) -> None:
    life, host = rig.lives.get(record.id), rig.node.host
    if life is None:
        assert ended
        return
    held = host.machines.get(record.id) or host.kept[record.id]
    assert held.guest.sim_files.content[FILE] == CONTENT, life.record


async def _sandbox(rig: Rig, state: State | None) -> SandboxRecord:
    record = await rig.create(persistent=state is State.STOPPED)
    rig.node.guests[record.id].sim_files._put(FILE, CONTENT, None)
    if state is State.PAUSED:
        await rig.moves.pause(rig.caller, record.id, wait_s=5)
    elif state is State.STOPPED:
        await rig.sandboxes.stop(rig.caller, record.id, wait_s=5)
    await come_to_rest(rig)
    return record


async def _rig(folder: Path) -> Rig:
    clock = ManualClock()
    database = await open_database(sqlite_url(folder / "runtime.db"))
    accounts = Accounts(database, clock)
    _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
    caller = await accounts.recognise(text)
    assert caller is not None
    rig = Rig.over(SimNode(clock=clock), clock, database, caller)
    for store in (rig.store, rig.snapshots._store):
        _wrap(store, rig.node.faults)
    return rig


def _wrap(store: SandboxStore | SnapshotStore, faults: Faults) -> None:
    """Make steps of what the store is asked, before and after it has done it."""
    for name in ("add", "save", "drop", "forget_answers"):
        original = getattr(store, name, None)
        if original is None:
            continue

        async def stepped(*given: Any, _do: Any = original, _name: str = name, **named: Any) -> Any:
            await faults.reach(f"before {_name}")
            done = await _do(*given, **named)
            await faults.reach(f"after {_name}")
            return done

        setattr(store, name, stepped)
