"""Forks and snapshots: all copies or none, an identity of their own, and a source that goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runtimed.core.egress import NetworkPolicy
from runtimed.core.errors import (
    InvalidRequest,
    NameTaken,
    NoCapacity,
    SandboxStopped,
    SnapshotChanged,
    SnapshotFailed,
    SnapshotNotFound,
    StartFailed,
)
from runtimed.core.lifecycle import State
from runtimed.core.network import EgressRules
from runtimed.core.sandbox import ForkSpec
from runtimed.core.snapshots import SnapshotChange, SnapshotFilter, SnapshotSpec
from runtimed.core.specs import Shape

from .conftest import SMALL, Rig
from .test_sleep import found, paused, put

CLOSED = NetworkPolicy(rules=EgressRules(internet=False))
KEEP = SnapshotSpec(retention_days=7, name="ready")


async def test_sn_15_copies_have_what_the_source_had_and_go_their_own_way(rig: Rig) -> None:
    source = await rig.create(env={"A": "1"}, labels={"job": "42"}, network=CLOSED)
    put(rig, source, "/workspace/f", b"before")

    copies = (await rig.forks.fork(rig.caller, source.id, ForkSpec(count=3, name="kid"))).sandboxes
    put(rig, copies[0], "/workspace/f", b"after")

    assert [(c.state, c.name) for c in copies] == [(State.RUNNING, n) for n in ("kid", "kid-1", "kid-2")]
    assert [found(rig, c, "/workspace/f") for c in (source, *copies)] == [b"before", b"after", b"before", b"before"]
    assert {c.source_id for c in copies} == {source.id}
    assert all(c.labels == {"job": "42"} and c.env_names == ("A",) for c in copies)
    assert all(not c.network.rules.internet for c in copies)
    assert [s.cause for s in await rig.moves.starts(rig.caller, copies[1].id)] == ["fork"]


async def test_a_fork_keeps_the_very_moment_that_its_copies_began_as(rig: Rig) -> None:
    source = await rig.create(network=CLOSED)
    put(rig, source, "/workspace/f", b"captured")

    made = await rig.forks.fork(rig.caller, source.id, ForkSpec(count=2, keep_snapshot=True))
    for one in (source, *made.sandboxes):
        put(rig, one, "/workspace/f", b"after")
    assert made.snapshot is not None
    again = await rig.create(snapshot_id=made.snapshot.id, network_asked=False)

    kept = await rig.snapshots.get(rig.caller, made.snapshot.id)
    assert (kept.state, kept.mode, kept.source_id) == ("ready", "memory", source.id)
    assert kept.stored_bytes > 0
    assert found(rig, again, "/workspace/f") == b"captured"
    assert not again.network.rules.internet


@pytest.mark.parametrize("point", ["fork", "fork child", "fork keep"])
async def test_a_fork_that_fails_leaves_no_snapshot_either(rig: Rig, point: str) -> None:
    source = await rig.create()
    rig.node.faults.errors[point] = StartFailed("a copy did not answer")

    with pytest.raises(StartFailed):
        await rig.forks.fork(rig.caller, source.id, ForkSpec(count=2, keep_snapshot=True))

    page = await rig.snapshots.page(rig.caller, SnapshotFilter(), limit=10, cursor=None)
    assert (page.records, rig.node.host.snapshots) == ((), {})
    assert rig.node.running() == {source.id}


async def test_copies_use_no_secrets_but_those_that_were_named(rig: Rig) -> None:
    source = await rig.create()

    (none,) = (await rig.forks.fork(rig.caller, source.id, ForkSpec())).sandboxes
    (one,) = (await rig.forks.fork(rig.caller, source.id, ForkSpec(secrets=("TOKEN",)))).sandboxes

    assert (source.network.secrets, none.network.secrets, one.network.secrets) == (None, (), ("TOKEN",))


@pytest.mark.parametrize("point", ["fork", "fork child"])
async def test_a_fork_that_fails_leaves_no_copy_and_the_source_running(rig: Rig, point: str) -> None:
    source = await rig.create()
    rig.node.faults.errors[point] = StartFailed("a copy did not answer")

    with pytest.raises(StartFailed):
        await rig.forks.fork(rig.caller, source.id, ForkSpec(count=3, name="kid"))

    assert rig.node.running() == {source.id}
    assert [life.record.id for life in rig.lives.all()] == [source.id]
    assert await rig.store.holder(rig.caller.account_id, "kid") is None
    await rig.sandboxes.inside(rig.caller, source.id)


async def test_a_fork_whose_second_name_is_taken_makes_nothing(rig: Rig) -> None:
    source = await rig.create()
    other = await rig.create(name="kid-1")

    with pytest.raises(NameTaken):
        await rig.forks.fork(rig.caller, source.id, ForkSpec(count=2, name="kid"))

    assert rig.node.running() == {source.id, other.id}
    assert await rig.store.holder(rig.caller.account_id, "kid") is None


async def test_there_must_be_room_for_all_copies(rig: Rig) -> None:
    rig.node.memory_mib = 3 * SMALL.memory_mib
    source = await rig.create()

    with pytest.raises(NoCapacity):
        await rig.forks.fork(rig.caller, source.id, ForkSpec(count=3))

    assert len((await rig.forks.fork(rig.caller, source.id, ForkSpec(count=2))).sandboxes) == 2


async def test_a_paused_source_is_woken_for_a_fork(rig: Rig) -> None:
    source = await rig.create()
    await paused(rig, source)

    copies = (await rig.forks.fork(rig.caller, source.id, ForkSpec())).sandboxes

    assert rig.node.running() == {source.id, copies[0].id}


async def test_deleting_the_source_during_a_fork_leaves_nothing(rig: Rig) -> None:
    source = await rig.create()
    rig.node.faults.gates["fork child"] = asyncio.Event()
    forking = asyncio.get_running_loop().create_task(rig.forks.fork(rig.caller, source.id, ForkSpec(count=2)))

    async def under_way() -> bool:
        return "fork child" in rig.node.faults.reached

    await rig.until_true("the fork being under way", under_way)
    await rig.sandboxes.delete(rig.caller, source.id)

    with pytest.raises(SandboxStopped):
        await forking
    assert (rig.node.host.machines, rig.node.host.kept, rig.lives.all()) == ({}, {}, [])


@pytest.mark.parametrize("asleep", [False, True])
async def test_sn_25_a_snapshot_leaves_its_source_as_it_was(rig: Rig, asleep: bool) -> None:
    source = await rig.create()
    if asleep:
        await paused(rig, source)
    before = await rig.sandboxes.get(rig.caller, source.id)

    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5)

    assert (kept.state, kept.mode, kept.name, kept.source_id) == ("ready", "memory", "ready", source.id)
    assert kept.stored_bytes > 0
    assert await rig.sandboxes.get(rig.caller, source.id) == before


@pytest.mark.parametrize(("mode", "how"), [("memory", "snapshot"), ("disk", "cold")])
async def test_a_sandbox_begins_as_its_snapshot_with_its_rules(rig: Rig, mode: str, how: str) -> None:
    source = await rig.create(network=CLOSED)
    put(rig, source, "/workspace/f", b"kept")
    kept = await rig.snapshots.take(rig.caller, source.id, replace(KEEP, mode=mode), wait_s=5)
    await rig.sandboxes.delete(rig.caller, source.id)

    copy = await rig.create(snapshot_id=kept.id, network_asked=False)

    assert (copy.snapshot_id, copy.started and copy.started.how, copy.shape) == (kept.id, how, SMALL)
    assert found(rig, copy, "/workspace/f") == b"kept"
    assert not copy.network.rules.internet


async def test_the_memory_of_a_snapshot_fixes_the_size(rig: Rig) -> None:
    source = await rig.create()
    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5)

    with pytest.raises(InvalidRequest) as told:
        shape = Shape(vcpu=4, memory_mib=2048, disk_mib=4096)
        await rig.create(snapshot_id=kept.id, shape=shape, shape_asked=frozenset({"vcpu", "memoryMiB"}))

    assert [issue["field"] for issue in told.value.details["issues"]] == ["vcpu", "memoryMiB"]  # type: ignore[index, attr-defined]


async def test_the_copy_of_a_disk_may_have_another_size_and_a_larger_disk_but_no_smaller_one(rig: Rig) -> None:
    source = await rig.create()
    kept = await rig.snapshots.take(rig.caller, source.id, replace(KEEP, mode="disk"), wait_s=5)
    asked = frozenset({"vcpu", "memoryMiB", "diskMiB"})
    larger = Shape(vcpu=2, memory_mib=512, disk_mib=8192)

    copy = await rig.create(snapshot_id=kept.id, shape=larger, shape_asked=asked)

    assert (copy.shape, rig.node.specs[copy.id].shape) == (larger, larger)
    with pytest.raises(InvalidRequest, match="diskMiB") as told:
        smaller = replace(larger, disk_mib=3072)
        await rig.create(snapshot_id=kept.id, shape=smaller, shape_asked=asked)
    assert "at least 4096" in str(told.value.details)


async def test_a_snapshot_that_cannot_be_made_says_why_and_cannot_be_used(rig: Rig) -> None:
    source = await rig.create()
    rig.node.faults.errors["snapshot"] = NoCapacity("no room on the disk")

    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5)

    assert (kept.state, kept.error) == ("failed", "no room on the disk")
    assert rig.node.host.snapshots == {}
    with pytest.raises(SnapshotFailed):
        await rig.create(snapshot_id=kept.id)
    assert (await rig.sandboxes.get(rig.caller, source.id)).state is State.RUNNING


async def test_a_snapshot_goes_when_it_is_deleted_or_its_days_are_over(rig: Rig) -> None:
    source = await rig.create()
    first, second = [await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5) for _ in range(2)]
    await rig.snapshots.extend(rig.caller, second.id, 30)

    deleted = await rig.snapshots.delete(rig.caller, first.id)
    again = await rig.snapshots.delete(rig.caller, first.id)
    await rig.clock.advance(8 * 86_400)
    await rig.snapshots.reconcile()
    left = set(rig.node.host.snapshots)
    await rig.clock.advance(23 * 86_400)
    await rig.snapshots.reconcile()
    await rig.snapshots.reconcile()

    assert (deleted.state, again) == ("deleted", deleted)
    assert left == {second.id}
    assert rig.node.host.snapshots == {}
    with pytest.raises(SnapshotNotFound):
        await rig.snapshots.get(rig.caller, second.id)


async def test_a_snapshot_that_is_deleted_while_it_is_made_is_gone(rig: Rig) -> None:
    source = await rig.create()
    rig.node.faults.gates["snapshot"] = gate = asyncio.Event()
    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=0)
    await rig.snapshots.delete(rig.caller, kept.id)

    gate.set()

    async def idle() -> bool:
        return not rig.lives.all()[0].turn.locked()

    await rig.until_true("the capture being over", idle)
    page = await rig.snapshots.page(rig.caller, SnapshotFilter(), limit=10, cursor=None)
    assert (page.records, rig.node.host.snapshots) == ((), {})


async def test_labels_are_replaced_only_while_they_are_those_that_were_read(rig: Rig) -> None:
    source = await rig.create()
    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5)
    await rig.snapshots.update(rig.caller, kept.id, SnapshotChange(labels={"a": "1"}, if_labels={}))

    with pytest.raises(SnapshotChanged):
        await rig.snapshots.update(rig.caller, kept.id, SnapshotChange(labels={"a": "2"}, if_labels={}))

    assert (await rig.snapshots.get(rig.caller, kept.id)).labels == {"a": "1"}


async def test_a_snapshot_that_a_kill_interrupted_has_failed(rig: Rig) -> None:
    source = await rig.create()
    rig.node.faults.gates["snapshot"] = asyncio.Event()
    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=0)

    after = await rig.restarted()

    assert (await after.snapshots.get(after.caller, kept.id)).state == "failed"


async def test_another_account_sees_no_snapshot(rig: Rig) -> None:
    source = await rig.create()
    kept = await rig.snapshots.take(rig.caller, source.id, KEEP, wait_s=5)
    stranger = replace(rig.caller, account_id="other")

    for ask in (rig.snapshots.get, rig.snapshots.delete):
        with pytest.raises(SnapshotNotFound):
            await ask(stranger, kept.id)
