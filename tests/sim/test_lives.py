"""Lives under everything at once: a state machine over one service, its host, their faults and its restarts.

Whatever is asked, and whatever fails, in the end: every sandbox is in a state that stays, the table and the host say
the same, one sandbox has one machine, nothing is left over, and the last write that was acknowledged is there.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtimed.core.clock import ManualClock
from runtimed.core.errors import HostUnavailable, RuntimedError
from runtimed.core.files import WriteOptions
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import ForkSpec
from runtimed.core.snapshots import SnapshotSpec
from runtimed.sim.node import SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.database import open_database, sqlite_url
from tests.unit.control.conftest import Rig

from .rest import check_nothing_is_left_over, come_to_rest

T = TypeVar("T")

# What a killed service leaves of itself: connections that nobody returned.
pytestmark = pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up")

FILE = "/workspace/f"


def fault(*points: str) -> st.SearchStrategy[str | None]:
    """What fails during a step, if anything; all works again when everything comes to rest."""
    return st.sampled_from([None, None, *points])


ASKED_WITHIN_S = 20.0
LIVE_MAX = 8
PICK = st.integers(0, 2 * LIVE_MAX)
"""Chooses among what is there. What is drawn must not depend on that, since the database has threads of its own."""

_prepared: Path | None = None


def prepared_database() -> Path:
    """A database with its tables and an account, made once: migrations cost more than a hundred steps."""
    global _prepared
    if _prepared is None:
        folder = tempfile.mkdtemp(prefix="runtime-sim-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _prepared = Path(folder) / "runtime.db"
    return _prepared


class Lives(RuleBasedStateMachine):
    """One service. `written` is what a user was told to be on the disk of each sandbox that may still run."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="runtime-sim-"))
        self.written: dict[SandboxId, bytes] = {}
        self.kept: dict[str, bytes] = {}
        self.number = 0
        self.settled = True

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())
        for persistent in (False, True):
            self.create(persistent=persistent, at_end="pause", idle_s=60, fault=None)

    async def _begin(self) -> None:
        clock = ManualClock()
        path = self.folder / "runtime.db"
        if prepared_database().exists():
            shutil.copyfile(prepared_database(), path)
        database = await open_database(sqlite_url(path))
        accounts = Accounts(database, clock)
        _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
        caller = await accounts.recognise(text)
        assert caller is not None
        self.rig = Rig.over(SimNode(clock=clock), clock, database, caller)
        if not prepared_database().exists():
            await database.close()
            shutil.copyfile(path, prepared_database())
            database = await open_database(sqlite_url(path))
            self.rig = Rig.over(SimNode(clock=clock), clock, database, caller)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.run(self._end())
        self.runner.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _end(self) -> None:
        await self._settle()
        for life in self.rig.lives.all():
            await self.rig.sandboxes.delete(self.rig.caller, life.record.id)
        host = self.rig.node.host
        assert (host.machines, host.kept, self.rig.lives.all()) == ({}, {}, [])
        await self.rig.database.close()

    # What users ask.

    @rule(
        persistent=st.booleans(),
        at_end=st.sampled_from(["pause", "stop", "delete"]),
        idle_s=st.sampled_from([0, 60]),
        fault=fault("start"),
    )
    def create(self, persistent: bool, at_end: str, idle_s: int, fault: str | None) -> None:
        if self.full:
            return
        fields = {"persistent": persistent, "on_lease_end": at_end, "idle_pause_s": idle_s, "lease_s": 300}

        async def created() -> None:
            record = await self.rig.create(**fields)
            if record.state is State.RUNNING:
                self.written[record.id] = b""

        self.ask(created, fault=fault)

    @rule(pick=PICK, fault=fault("wake", "stop"))
    def write(self, pick: int, fault: str | None) -> None:
        sandbox_id = self.one_of(pick)
        self.number += 1
        content = b"%d" % self.number

        async def one() -> Any:
            yield content

        async def wrote() -> None:
            inside = await self.rig.sandboxes.inside(self.rig.caller, sandbox_id)
            await inside.guest.files.write(FILE, one(), WriteOptions(user="sandbox", mode=None, size=None))
            self.written[sandbox_id] = content

        self.ask(wrote, fault=fault)

    @rule(pick=PICK)
    def look_inside(self, pick: int) -> None:
        sandbox_id = self.one_of(pick)

        async def looked() -> None:
            await self.rig.sandboxes.inside(self.rig.caller, sandbox_id)
            assert self.on_disk(sandbox_id) == self.written[sandbox_id]

        self.ask(looked)

    @rule(
        pick=PICK,
        verbs=st.lists(
            st.sampled_from(["pause", "pause", "wake", "wake", "restart", "stop", "delete"]), min_size=1, max_size=3
        ),
        fault=fault("pause", "write", "wake", "stop"),
    )
    def ask_at_once(self, pick: int, verbs: list[str], fault: str | None) -> None:
        """One verb, or several that run into each other."""
        sandbox_id = self.one_of(pick)
        self.ask(*[self.verb(name, sandbox_id) for name in verbs], fault=fault)

    @rule(pick=PICK, count=st.integers(1, 2), end_too=st.booleans(), fault=fault("fork", "fork child", "wake", "stop"))
    def fork(self, pick: int, count: int, end_too: bool, fault: str | None) -> None:
        source = self.one_of(pick)
        if self.full:
            return

        async def forked() -> None:
            before = self.written.get(source, b"")
            copies = await self.rig.forks.fork(self.rig.caller, source, ForkSpec(count=count))
            for copy in copies.sandboxes:
                self.written[copy.id] = before

        self.ask(forked, *([self.verb("delete", source)] if end_too else []), fault=fault)

    @rule(
        pick=PICK,
        mode=st.sampled_from(["memory", "disk"]),
        pause_too=st.booleans(),
        fault=fault("snapshot", "pause", "write"),
    )
    def snapshot(self, pick: int, mode: Any, pause_too: bool, fault: str | None) -> None:
        source = self.one_of(pick)

        async def taken() -> None:
            spec = SnapshotSpec(mode=mode, retention_days=1)
            kept = await self.rig.snapshots.take(self.rig.caller, source, spec, wait_s=5)
            if kept.state == "ready":
                self.kept[kept.id] = self.written.get(source, b"")

        self.ask(taken, *([self.verb("pause", source)] if pause_too else []), fault=fault)

    @rule(pick=PICK, delete_too=st.booleans(), fault=fault("start", "forget snapshot"))
    def begin_from_a_snapshot(self, pick: int, delete_too: bool, fault: str | None) -> None:
        if not self.kept or self.full:
            return
        snapshot_id = list(self.kept)[pick % len(self.kept)]

        async def begun() -> None:
            record = await self.rig.create(snapshot_id=snapshot_id)
            if record.state is State.RUNNING:
                self.written[record.id] = self.kept[snapshot_id]

        async def deleted() -> None:
            await self.rig.snapshots.delete(self.rig.caller, snapshot_id)

        self.ask(begun, *([deleted] if delete_too else []), fault=fault)

    # What happens by itself.

    @rule(
        seconds=st.sampled_from([1.0, 30.0, 61.0, 61.0, 301.0, 40 * 86_400.0]),
        fault=fault("pause", "write", "stop", "forget snapshot"),
    )
    def time_passes(self, seconds: float, fault: str | None) -> None:
        async def passed() -> None:
            await self.rig.clock.advance(seconds)
            for look in (self.rig.leases.reconcile, self.rig.idle.reconcile, self.rig.snapshots.reconcile):
                await look()
                await look()

        self.ask(passed, fault=fault)

    @rule(pick=PICK, fault=fault("stop", "write"))
    def a_machine_dies(self, pick: int, fault: str | None) -> None:
        machines = list(self.rig.node.host.machines)
        if not machines:
            return
        machine = machines[pick % len(machines)]
        self.ask(lambda: self.rig.node.kill(machine), fault=fault)

    @rule(slow_s=st.sampled_from([0.0, 20.0]))
    def the_disk_has_another_speed(self, slow_s: float) -> None:
        self.rig.node.write_s = slow_s

    @rule(in_the_middle_of=st.sampled_from(["nothing", "pause", "wake", "stop"]), pick=PICK)
    def the_service_is_killed(self, in_the_middle_of: str, pick: int) -> None:
        self.run(self._begin_and_leave(self.verb(in_the_middle_of, self.one_of(pick))))
        self.run(self._killed())

    async def _begin_and_leave(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()

    async def _killed(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[arg-type]
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.rig = await self.rig.restarted()
        self.settled = False

    # What must hold.

    @invariant()
    def everything_comes_to_rest(self) -> None:
        if not hasattr(self, "rig") or self.settled:
            return
        self.run(self._settle())
        self.run(self._check())
        self.settled = True

    async def _settle(self) -> None:
        """No more faults; and every move that was begun ends."""
        self.rig.node.faults.errors.clear()
        await come_to_rest(self.rig)

    async def _check(self) -> None:
        await check_nothing_is_left_over(self.rig)
        host = self.rig.node.host
        self.kept = {key: content for key, content in self.kept.items() if key in host.snapshots}
        self.written = {key: content for key, content in self.written.items() if self.rig.lives.get(key)}
        for sandbox_id, content in self.written.items():
            assert self.on_disk(sandbox_id) == content, self.rig.lives.get(sandbox_id)

    # Steps.

    def ask(self, *asked: Callable[[], Coroutine[Any, Any, None]], fault: str | None = None) -> None:
        """All at once. What a user may be refused with is no failure; anything else is."""
        self.settled = False
        if fault is not None:
            error = OSError("the disk is full") if fault == "write" else HostUnavailable("not now")
            self.rig.node.faults.errors[fault] = error
        self.run(self._ask(asked))

    async def _ask(self, asked: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        async def refused_or_done(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
            try:
                await work()
            except RuntimedError:
                return

        async with asyncio.timeout(ASKED_WITHIN_S), asyncio.TaskGroup() as group:
            for work in asked:
                group.create_task(refused_or_done(work))

    def verb(self, name: str, sandbox_id: SandboxId) -> Callable[[], Coroutine[Any, Any, None]]:
        rig, caller = self.rig, self.rig.caller

        async def done() -> None:
            match name:
                case "pause":
                    await rig.moves.pause(caller, sandbox_id, wait_s=5)
                case "wake":
                    await rig.moves.wake(caller, sandbox_id, lease_s=None, wait_s=5)
                case "restart":
                    await rig.moves.restart(caller, sandbox_id, wait_s=5)
                case "stop":
                    await rig.sandboxes.stop(caller, sandbox_id, wait_s=5)
                case "delete":
                    await rig.sandboxes.delete(caller, sandbox_id)

        return done

    def one_of(self, pick: int) -> SandboxId:
        """In the order in which they were made: their ids are others in every run."""
        known = list(self.written) or [SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2a11")]
        return known[pick % len(known)]

    @property
    def full(self) -> bool:
        return len(self.rig.lives.all()) >= LIVE_MAX

    def on_disk(self, sandbox_id: SandboxId) -> bytes:
        host = self.rig.node.host
        held = host.machines.get(sandbox_id) or host.kept[sandbox_id]
        return held.guest.sim_files.content.get(FILE, b"")


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # what fails depends on the database's threads too: shrinking loses it
    derandomize=False,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
