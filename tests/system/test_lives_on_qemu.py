"""The lives of tests/sim/test_lives.py on real machines, one move at a time, over a service that is killed meanwhile.

What every sandbox is said to be is predicted, and compared after each move. What was acknowledged to be on its disk is
there after every wake, restart, copy and death; what was in its memory is there wherever its memory went on.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from withruntime import Runtime, Sandbox
from withruntime import RuntimeError as ServiceError

from .test_outliving import Outliving, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

LIVE_MAX = 4
LIVES, MOVES_EACH = 2, 15
NOTICED_S, WRITTEN_S, BOOTED_S = 20, 60, 240


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a sandbox is said to be, and has."""

    state: str
    disk: str
    memory: str
    """Empty where its memory did not go on."""
    at_end: str = "pause"
    disk_kept: bool = True
    """Whether a restart finds anything, once it is stopped."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is chosen for a move, whether that needs it or not."""

    pick: int
    at_end: str
    persistent: bool
    copies: int
    mode: str


DRAWN = st.builds(
    Drawn,
    pick=st.integers(0, 2 * LIVE_MAX),
    at_end=st.sampled_from(["pause", "stop", "delete"]),
    persistent=st.booleans(),
    copies=st.integers(1, 2),
    mode=st.sampled_from(["memory", "disk"]),
)
"""Never dependent on what is there: a real host does not come equally far every time."""


class LivesOnQemu(RuleBasedStateMachine):
    """Every move is made before any is made again: few steps must see all of them."""

    def __init__(self, service: Outliving) -> None:
        super().__init__()
        self.service = service
        self.lives: dict[str, Predicted] = {}
        self.snapshots: dict[str, Predicted] = {}
        self.done: Counter[str] = Counter()
        self.number = 0

    @rule(which=st.integers(0, 99), drawn=DRAWN)
    def move(self, which: int, drawn: Drawn) -> None:
        """One of those that were made least often."""
        due = [name for name in MOVES if self.done[name] == min(self.done[one] for one in MOVES)]
        name = due[which % len(due)]
        self.done[name] += 1
        note(f"{name} {drawn}")
        MOVES[name](self, drawn)

    # What users ask.

    def create(self, drawn: Drawn) -> None:
        self._make_room(1)
        self._create(at_end=drawn.at_end, persistent=drawn.persistent)

    def write(self, drawn: Drawn) -> None:
        one = self._one(drawn.pick)
        if self.lives[one].state == "stopped":
            return self._refused(lambda: self._say(one, "true"), "sandbox_stopped")
        self._write(one)

    def pause(self, drawn: Drawn) -> None:
        one = self._one(drawn.pick)
        if self.lives[one].state == "stopped":
            return self._refused(lambda: self._sandbox(one).pause(), "sandbox_stopped")
        self._sandbox(one).pause()
        self._now(one, state="paused")

    def wake(self, drawn: Drawn) -> None:
        one = self._one(drawn.pick)
        if self.lives[one].state == "stopped":
            return self._refused(lambda: self._sandbox(one).wake(), "sandbox_stopped")
        self._sandbox(one).wake()
        self._now(one, state="running")
        self._check(one)

    def restart(self, drawn: Drawn) -> None:
        one = self._one(drawn.pick)
        if self.lives[one].state == "running":
            return self._refused(lambda: self._sandbox(one).restart(), "not_stopped")
        if not self.lives[one].disk_kept:
            return self._refused(lambda: self._sandbox(one).restart(), "sandbox_stopped")
        self._restart(one)

    def fork(self, drawn: Drawn) -> None:
        one = self._awake(drawn.pick)
        self._make_room(drawn.copies, but=one)
        for copy in self._sandbox(one).fork(drawn.copies):
            self.lives[copy.id] = self.lives[one]
            self._check(copy.id)
        self._check(one)

    def snapshot(self, drawn: Drawn) -> None:
        one = self._awake(drawn.pick)
        kept = self._sandbox(one).snapshot(mode=drawn.mode)
        memory = self.lives[one].memory if drawn.mode == "memory" else ""
        self.snapshots[kept["id"]] = replace(self.lives[one], state="running", memory=memory, at_end="stop")

    def begin_from_a_snapshot(self, drawn: Drawn) -> None:
        self._make_room(1)
        if not self.snapshots:
            self.snapshot(drawn)
        snapshot_id = list(self.snapshots)[drawn.pick % len(self.snapshots)]
        made = self._client.sandboxes.create(snapshot=snapshot_id, idle_pause_seconds=0, on_lease_end="stop")
        self.lives[made.id] = self.snapshots[snapshot_id]
        self._check(made.id)

    # What happens by itself.

    def a_machine_dies(self, drawn: Drawn) -> None:
        one = self._awake(drawn.pick)
        os.kill(self._machine(one), signal.SIGKILL)
        until("the death being noticed", lambda: self._sandbox(one).state == "stopped", NOTICED_S)
        self._now(one, state="stopped", memory="")
        self._restart(one)

    def a_lease_ends_while_no_service_lives(self, drawn: Drawn) -> None:
        """A lease is a minute at least: it is the row that is moved, not the clock."""
        one = self._awake(drawn.pick)
        self.service.kill()
        with closing(sqlite3.connect(self.service.state / "runtime.db")) as database, database:
            database.execute("update sandboxes set ends_at_s = ? where id = ?", (time.time() - 1, one))
        self._serve_again()
        ends = {"pause": "paused", "stop": "stopped", "delete": None, "renew": "running"}[self.lives[one].at_end]
        until("the lease's end", lambda: self._states().get(one) == ends, NOTICED_S)
        if ends is None:
            del self.lives[one]
        else:
            self._now(one, state=ends, disk_kept=ends != "stopped")

    def the_service_is_killed(self, drawn: Drawn) -> None:
        self.service.kill()
        self._serve_again()

    def the_service_is_started_again(self, drawn: Drawn) -> None:
        process = self.service.process
        assert process is not None
        self._client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=WRITTEN_S)
        self.service.start()
        for one, life in self.lives.items():
            if life.state == "running":
                self._check(one)

    # What must hold.

    @invariant()
    def the_service_says_of_each_what_it_is(self) -> None:
        assert self._states() == {one: life.state for one, life in self.lives.items()}

    def teardown(self) -> None:
        """What sleeps is woken once more, and has what it had; then nothing of anything is left."""
        for one, life in list(self.lives.items()):
            if life.state != "stopped":
                self._sandbox(one).wake()
                self._now(one, state="running")
                self._check(one)
        while_all_run = self.service.doctor()
        for one in list(self.lives):
            self._delete(one)
        for snapshot_id in self.snapshots:
            self._client.snapshots.delete(snapshot_id)
        left = {name: os.listdir(self.service.state / name) for name in LEFT_OVER}
        print(f"{self.done.total()} moves: {dict(self.done)}")
        assert not any(left.values()), f"{left}: {self.service.said()}"
        assert while_all_run == self.service.doctor() == []

    # Steps.

    @property
    def _client(self) -> Runtime:
        assert self.service.client is not None
        return self.service.client

    def _sandbox(self, one: str) -> Sandbox:
        return self._client.sandboxes.get(one)

    def _states(self) -> dict[str, str]:
        return {sandbox.id: sandbox.state for sandbox in self._client.sandboxes.list(include_stopped=True)}

    def _now(self, one: str, **changed: Any) -> None:
        self.lives[one] = replace(self.lives[one], **changed)

    def _one(self, pick: int) -> str:
        if not self.lives:
            self._create(at_end="pause", persistent=False)
        return list(self.lives)[pick % len(self.lives)]

    def _awake(self, pick: int) -> str:
        """One that runs, woken where it has to be. A cold boot takes too long to be a mere beginning."""
        if all(life.state == "stopped" for life in self.lives.values()):
            self._make_room(1)
            self._create(at_end="pause", persistent=False)
        awake = [one for one, life in self.lives.items() if life.state != "stopped"]
        one = awake[pick % len(awake)]
        if self.lives[one].state == "paused":
            self._write(one)
        return one

    def _create(self, *, at_end: str, persistent: bool) -> None:
        made = self._client.sandboxes.create(on_lease_end=at_end, persistent=persistent, idle_pause_seconds=0)
        at_end = "renew" if persistent else at_end
        self.lives[made.id] = Predicted(state="running", disk="", memory="", at_end=at_end)
        self._write(made.id)

    def _make_room(self, count: int, *, but: str = "") -> None:
        while len(self.lives) + count > LIVE_MAX:
            self._delete(next(one for one in self.lives if one != but))

    def _delete(self, one: str) -> None:
        self._sandbox(one).delete()
        del self.lives[one]

    def _restart(self, one: str) -> None:
        """From its disk alone."""
        self._sandbox(one).restart().wait_for("running", BOOTED_S)
        self._now(one, state="running", memory="")
        self._check(one)

    def _write(self, one: str) -> None:
        self.number += 1
        said = f"{self.number}"
        self._say(one, f"echo {said} > note && sync && echo {said} > /dev/shm/note")
        self._now(one, state="running", disk=said, memory=said)

    def _check(self, one: str) -> None:
        said = self._say(one, "cat note; echo -; cat /dev/shm/note 2>/dev/null || true").split()
        life = self.lives[one]
        assert said == [word for word in (life.disk, "-", life.memory) if word], (one, life, self.service.said())

    def _say(self, one: str, command: str) -> str:
        done = self._sandbox(one).exec(command, timeout_ms=60_000)
        assert (done.exit_code, done.stderr) == (0, ""), done
        return done.stdout

    def _refused(self, ask: Any, code: str) -> None:
        with pytest.raises(ServiceError) as refused:
            ask()
        assert refused.value.code == code, refused.value

    def _machine(self, one: str) -> int:
        for record in (self.service.state / "machines").glob("*/machine.json"):
            known = json.loads(record.read_text())
            if (known["sandbox"] or {}).get("sandbox_id") == one:
                return int(known["vmm"]["pid"])
        pytest.fail(f"no machine of {one}: {self.service.said()}")

    def _serve_again(self) -> None:
        """A pause whose memory was not written yet when the service was killed has gone on: nothing of it is lost."""
        self.service.start()
        states = self._states()
        for one, life in self.lives.items():
            if life.state == "paused" and states.get(one) == "running":
                self._now(one, state="running")
            if self.lives[one].state == "running" and states.get(one) == "running":
                self._check(one)


MOVES: dict[str, Callable[[LivesOnQemu, Drawn], None]] = {
    "create": LivesOnQemu.create,
    "pause": LivesOnQemu.pause,
    "the service is killed": LivesOnQemu.the_service_is_killed,
    "wake": LivesOnQemu.wake,
    "fork": LivesOnQemu.fork,
    "snapshot": LivesOnQemu.snapshot,
    "the service is started again": LivesOnQemu.the_service_is_started_again,
    "begin from a snapshot": LivesOnQemu.begin_from_a_snapshot,
    "a lease ends": LivesOnQemu.a_lease_ends_while_no_service_lives,
    "write": LivesOnQemu.write,
    "a machine dies": LivesOnQemu.a_machine_dies,
    "restart": LivesOnQemu.restart,
}
LEFT_OVER = ("machines", "kept", "snapshots", "layers", "bases")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Outliving]:
    made = Outliving(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.end()
    assert os.listdir(tmp_path / "machines") == [], made.said()


@pytest.mark.timeout(600)
def test_whatever_happens_to_real_machines_what_was_acknowledged_is_there(service: Outliving) -> None:
    run_state_machine_as_test(
        lambda: LivesOnQemu(service),
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=MOVES_EACH,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # a real host does not fail the same way twice
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(600)
def test_a_service_that_is_killed_in_the_middle_of_a_restart_does_not_lose_the_disk(service: Outliving) -> None:
    sandbox = service.create(persistent=True)
    sandbox.exec("echo kept > note && sync")
    sandbox.stop()
    sandbox.restart(wait=False)
    machines = service.state / "machines"
    until("the disk being in the machine", lambda: any(machines.glob("*/own/disk.qcow2")), NOTICED_S)
    service.kill()
    would_be_ended = [finding["line"] for finding in service.doctor() if "machine" in finding["line"]]
    service.start()
    found = service.again(sandbox)

    assert would_be_ended == []
    assert (found.state, found.info["diskKept"]) == ("stopped", True), service.said()
    assert found.restart().wait_for("running", BOOTED_S).exec("cat note").stdout == "kept\n"
    found.delete()
    assert service.doctor() == []
