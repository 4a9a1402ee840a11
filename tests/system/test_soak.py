"""Many rounds on real machines: nothing written is lost, nothing is left over, and a full host still answers.

Short by default; `make soak` runs the whole lengths (RUNTIME_TEST_SOAK=whole). RUNTIME_TEST_SEED orders the events.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimed.core.file_lock import is_held
from runtimed.node.guard import GUARD_LOCK
from withruntime import Runtime, Sandbox
from withruntime import RuntimeError as ServiceError

from .test_outliving import Outliving, first_line, nth_line, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

WHOLE = os.environ.get("RUNTIME_TEST_SOAK") == "whole"
SEED = os.environ.get("RUNTIME_TEST_SEED", "5")
PAUSES = 50 if WHOLE else 6
HARMS = 200 if WHOLE else 9
PAUSED, RUNNING = (60, 25) if WHOLE else (4, 3)
TEST_S = 7200 if WHOLE else 600

MEMORY = "import hashlib, sys\nkept = []\nfor line in sys.stdin:\n    kept.append(line.strip())\n" + (
    "    print(hashlib.sha256(''.join(kept).encode()).hexdigest(), flush=True)"
)
"""A process whose only copy of what it was told is its memory."""
MUCH = "head -c 256M /dev/urandom > /dev/shm/much"
"""Memory whose writing takes longer than a request, so that a wake straight after a pause finds it under way."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Outliving]:
    """A service of the test's own; at its end there is nothing of it on the host, not even its guard."""
    made = Outliving(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.end()
    until("the guard's end", lambda: not is_held(tmp_path / GUARD_LOCK), 20)
    assert made.doctor() == []
    assert processes_of(tmp_path) == []


def processes_of(state: Path) -> list[str]:
    """Command lines on this host that name the state folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{state}" in line and int(path.parent.name) != os.getpid():
                found.append(line)
    return found


@dataclass
class Written:
    """What one sandbox was given to keep: files by digest, and lines in a process's memory."""

    chance: random.Random
    files: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def write(self, sandbox: Sandbox, memory: str, number: int) -> None:
        """New files, one that is written over, one that goes."""
        names = [f"round-{number}/{part}" for part in ("small", "empty", "large")]
        if self.files:
            names.append(self.chance.choice(sorted(self.files)))
        for name in names:
            size = {"empty": 0, "large": self.chance.randrange(1 << 21)}.get(name.rpartition("/")[2], 700)
            content = self.chance.randbytes(size)
            sandbox.files.write(f"/workspace/kept/{name}", content)
            self.files[name] = hashlib.sha256(content).hexdigest()
        if number % 5 == 4:
            gone = self.chance.choice(sorted(self.files))
            sandbox.files.remove(f"/workspace/kept/{gone}")
            del self.files[gone]
        self.lines.append(f"round {number}: {self.chance.random()}")
        sandbox.process(memory).write(self.lines[-1] + "\n")

    def found(self, sandbox: Sandbox) -> dict[str, str]:
        """Every file that is there, by the guest's own digest."""
        told = sandbox.exec("cd kept && find . -type f -print0 | xargs -0 sha256sum", timeout_ms=120_000)
        assert told.exit_code == 0, told
        pairs = (line.split("  ./") for line in told.stdout.splitlines())
        return {name: digest for digest, name in pairs}

    def remembered(self) -> str:
        return hashlib.sha256("".join(self.lines).encode()).hexdigest()


@pytest.mark.timeout(TEST_S)
def test_sn_01_no_file_and_no_memory_is_lost_in_many_pauses(service: Outliving) -> None:
    """Woken at once, once the memory is written, and after the service was killed before or behind that."""
    chance = random.Random(SEED)
    sandbox = service.create()
    sandbox.exec(MUCH, check=True)
    written, memory = Written(chance), sandbox.spawn(["python3", "-uc", MEMORY], stdin="pipe").id
    hows = []
    for number in range(PAUSES):
        written.write(sandbox, memory, number)
        how = ("at once", "written", "killed at once", "killed when written")[number % 4]
        sandbox.pause(wait=how.endswith("written"))
        if how.endswith("written"):
            until("the memory being written", lambda: os.listdir(service.state / "machines") == [], 60)
        if how.startswith("killed"):
            service.kill()
            service.start()
            sandbox = service.again(sandbox)

        assert written.found(sandbox) == written.files, (number, how)
        assert nth_line(sandbox, memory, number) == written.remembered(), (number, how)
        hows.append(sandbox.starts()[-1]["how"])
    sandbox.delete()

    print(f"{PAUSES} pauses, {len(written.files)} files; woken by {sorted((h, hows.count(h)) for h in set(hows))}")
    assert {"thaw", "wake"} <= set(hows)  # both the write that was called off and the one that came out


@dataclass
class Harms:
    """Kills one part at a time, and knows who must be alive again afterwards."""

    service: Outliving
    chance: random.Random
    done: dict[str, int] = field(default_factory=lambda: {"service": 0, "machine": 0, "guard": 0})

    def strike(self, part: str) -> None:
        if part == "service":
            self.service.kill()
        elif (pid := self._guard() if part == "guard" else self._machine()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            return
        self.done[part] += 1

    def _machine(self) -> int | None:
        pids = []
        for record in (self.service.state / "machines").glob("*/machine.json"):
            with suppress(OSError, TypeError, ValueError):
                pids.append(int(json.loads(record.read_text())["vmm"]["pid"]))
        return self.chance.choice(pids) if pids else None

    def _guard(self) -> int | None:
        lock = self.service.state / GUARD_LOCK
        text = lock.read_text().strip() if is_held(lock) else ""
        return int(text) if text else None


def make_one(url: str, key: str, chance: random.Random) -> None:
    """Create and use; whatever is killed meanwhile is no surprise here, and its end may be any of our errors."""
    with suppress(ServiceError, OSError), Runtime(api_key=key, base_url=url, max_retries=0, timeout=60) as client:
        sandbox = client.sandboxes.create(timeout_seconds=300, on_lease_end="stop")
        sandbox.exec("echo kept > note", timeout_ms=20_000)
        if chance.random() < 0.3:
            sandbox.pause()


@pytest.mark.timeout(TEST_S)
def test_many_creates_under_random_kills_leave_nothing_behind(service: Outliving) -> None:
    chance = random.Random(SEED)
    harms = Harms(service, chance)
    for number in range(HARMS):
        known = json.loads((service.state / "service.json").read_text())
        key = (service.state / "key").read_text().strip()
        making = threading.Thread(target=make_one, args=(known["url"], key, random.Random(number)))
        making.start()
        making.join(timeout=chance.random() * 1.5)  # the kill comes at any moment of it
        part = ("service", "machine", "guard")[number % 3]
        harms.strike(part)
        making.join()
        if part == "service":
            service.start()
        until("a guard", lambda: is_held(service.state / GUARD_LOCK), 30)
        assert service.client is not None
        for sandbox in list(service.client.sandboxes.list(include_stopped=True))[3:]:
            sandbox.delete()
    assert service.client is not None
    while_serving = service.doctor()
    for sandbox in service.client.sandboxes.list(include_stopped=True):
        sandbox.delete()

    print(f"{HARMS} rounds, killed {harms.done}")
    assert min(harms.done.values()) >= HARMS // 5
    assert while_serving == [] and service.doctor() == []
    assert os.listdir(service.state / "machines") == []
    with closing(sqlite3.connect(f"file:{service.state / 'runtime.db'}?mode=ro", uri=True)) as database:
        assert database.execute("select count(*) from tabs where closed = 0 or running or held != 0").fetchone() == (0,)
        assert database.execute("select count(*) from tabs").fetchone()[0] >= HARMS // 3


def mib_available() -> int:
    said = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(said["MemAvailable"].split()[0]) >> 10


def pss_mib(service: Outliving) -> int:
    """Memory of all machines, shared pages counted once."""
    total = 0
    for record in (service.state / "machines").glob("*/machine.json"):
        pid = json.loads(record.read_text())["vmm"]["pid"]
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total >> 10


@pytest.mark.timeout(TEST_S)
def test_a_host_full_of_paused_and_running_sandboxes_answers_from_each(service: Outliving) -> None:
    at_first = mib_available()

    def made(number: int) -> tuple[Sandbox, str]:
        sandbox = service.create(timeout_seconds=7200, idle_pause_seconds=0)
        sandbox.files.write("/workspace/number", str(number))
        return sandbox, sandbox.spawn(["python3", "-uc", MEMORY], stdin="pipe").id

    def answers(number: int, sandbox: Sandbox, memory: str) -> bool:
        sandbox.process(memory).write(f"{number}\n")
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        return sandbox.exec("cat number").stdout == str(number) and first_line(sandbox, memory) == digest

    paused = []
    for number in range(PAUSED):
        sandbox, memory = made(number)
        sandbox.pause()
        paused.append((number, sandbox, memory))
    until("all memory being written", lambda: not os.listdir(service.state / "machines"), 120)
    with_paused = mib_available()
    with ThreadPoolExecutor(4) as four:
        running = [(n, *one) for n, one in enumerate(four.map(made, range(RUNNING)))]
    with ThreadPoolExecutor(RUNNING) as all_at_once:
        running_answer = list(all_at_once.map(lambda one: answers(*one), running))
    figures = (pss_mib(service), at_first - mib_available())
    states = [service.again(sandbox).state for _, sandbox, _ in paused]
    began, paused_answer = time.monotonic(), []
    for one in paused:
        paused_answer.append(answers(*one))  # the write wakes it
        one[1].delete()
    took_ms = (time.monotonic() - began) * 1000 / PAUSED

    print(
        f"{PAUSED} paused took {at_first - with_paused} MiB of memory; {RUNNING} running have {figures[0]} MiB (Pss), "
        f"and with them the host has {figures[1]} MiB less; a wake with two answers and a delete took {took_ms:.0f} ms"
    )
    assert states == ["paused"] * PAUSED
    assert running_answer == [True] * RUNNING and paused_answer == [True] * PAUSED
    for _, sandbox, _ in running:
        assert service.again(sandbox).state == "running"
        sandbox.delete()
