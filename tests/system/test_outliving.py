"""Sandboxes on real microVMs that outlive a pause, a copy, and the death of their service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from withruntime import Runtime, Sandbox

pytestmark = [pytest.mark.system, pytest.mark.slow]

START_S = 600
COUNTER = "import time\nn = 0\nwhile True:\n    n += 1\n    print(n, flush=True)\n    time.sleep(0.1)"
SESSION = "import sys, uuid\nfor line in sys.stdin:\n    exec(line)\n    sys.stdout.flush()"
"""A Python that keeps its variables between the lines it is sent."""


@dataclass
class Outliving:
    """A service of its own that is killed and started again, and a client of the one that runs."""

    state: Path
    process: subprocess.Popen[bytes] | None = None
    client: Runtime | None = None
    sandboxes: list[str] = field(default_factory=list)

    def start(self) -> None:
        (self.state / "service.json").unlink(missing_ok=True)
        log = (self.state / "out.log").open("ab")
        line = [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(self.state), "--spares", "0"]
        self.process = subprocess.Popen(line, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not (self.state / "service.json").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the service did not answer: {self.said()}")
            time.sleep(0.05)
        known = json.loads((self.state / "service.json").read_text())
        self.client = Runtime(api_key=(self.state / "key").read_text().strip(), base_url=known["url"])

    def kill(self) -> None:
        """As a crash does."""
        assert self.process is not None and self.client is not None
        self.process.kill()
        self.process.wait()
        self.client.close()

    def end(self) -> None:
        """The service, and its sandboxes with it."""
        assert self.process is not None and self.client is not None
        self.client.close()
        self.process.send_signal(signal.SIGUSR1)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=300)

    def create(self, **fields: object) -> Sandbox:
        assert self.client is not None
        sandbox = self.client.sandboxes.create(**fields)
        self.sandboxes.append(sandbox.id)
        return sandbox

    def again(self, sandbox: Sandbox) -> Sandbox:
        """The same sandbox, over the service that runs now."""
        assert self.client is not None
        return self.client.sandboxes.get(sandbox.id)

    def doctor(self) -> list[dict[str, str]]:
        """What nobody owns."""
        line = [sys.executable, "-m", "runtimed", "doctor", "--json", "--state-dir", str(self.state)]
        told = json.loads(subprocess.run(line, capture_output=True, check=False, text=True).stdout)
        return [finding for finding in told["findings"] if finding["verdict"] == "left"]

    def said(self) -> str:
        return (self.state / "out.log").read_text()[-4000:]


@pytest.fixture(scope="module")
def outliving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outliving]:
    service = Outliving(tmp_path_factory.mktemp("outliving"))
    service.start()
    try:
        yield service
    finally:
        service.end()
    assert os.listdir(service.state / "machines") == [], service.said()


@pytest.fixture
def service(outliving: Outliving) -> Iterator[Outliving]:
    """The service, and nothing in it before and after."""
    yield outliving
    assert outliving.client is not None
    for snapshot in outliving.client.snapshots.list():
        outliving.client.snapshots.delete(snapshot["id"])
    for sandbox in outliving.client.sandboxes.list(include_stopped=True):
        sandbox.delete()
    left = {name: os.listdir(outliving.state / name) for name in ("machines", "kept", "snapshots", "layers", "bases")}
    assert not any(left.values()), f"{left}: {outliving.said()}"
    assert outliving.doctor() == []


def ran(sandbox: Sandbox, command: str) -> str:
    result = sandbox.exec(command)
    assert (result.exit_code, result.stderr) == (0, ""), result
    return result.stdout.strip()


def until(what: str, probe: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not probe():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {within_s:g} s")
        time.sleep(0.2)


def first_line(sandbox: Sandbox, process_id: str) -> str:
    return nth_line(sandbox, process_id, 0)


def nth_line(sandbox: Sandbox, process_id: str, number: int) -> str:
    """Line `number` of what a process has printed, once it is there: output comes in pieces of any size."""
    text = ""
    for event in sandbox.process(process_id).output(0, timeout_seconds=60):
        text += event.get("data", "")
        if text.count("\n") > number:
            return text.splitlines()[number]
    pytest.fail(f"line {number} was not printed: {text!r}")


def newest(sandbox: Sandbox, process_id: str) -> int:
    """The last number that a counter has printed."""
    assert sandbox.id
    for _ in range(100):
        info = sandbox.process(process_id).info
        if info.get("outputBytes", 0) > 0:
            break
        time.sleep(0.1)
    numbers = ""
    for event in sandbox.process(process_id).output(0):
        numbers += event.get("data", "")
        if len(numbers) >= sandbox.process(process_id).info["outputBytes"] - 8:
            break
    return int(numbers.split()[-1])


def test_sn_15_19_everything_is_there_after_a_pause_and_a_kill_of_the_service(service: Outliving) -> None:
    sandbox = service.create(env={"COLOUR": "blue"})
    sandbox.files.write("/workspace/note", "kept")
    counter = sandbox.spawn(["python3", "-c", COUNTER])
    session = sandbox.spawn(["python3", "-uc", SESSION], stdin="pipe")
    session.write("x = 41\n")
    sandbox.pause()
    until("the memory being written", lambda: service.again(sandbox).info["storedBytes"] > 0, 30)
    before = service.again(sandbox).info

    service.kill()
    service.start()
    sandbox = service.again(sandbox)
    clock_off_s = float(ran(sandbox, "date +%s.%N")) - time.time()
    sandbox.process(session.id).write("print('x is', x + 1)\n")
    said = first_line(sandbox, session.id)
    first = newest(sandbox, counter.id)

    assert before["state"] == "paused"
    assert ran(sandbox, "cat note; echo; echo $COLOUR") == "kept\nblue"
    assert abs(clock_off_s) < 5  # the answer itself takes a while; what the receipt says is exact
    assert said == "x is 42"
    until("the counter going on", lambda: newest(sandbox, counter.id) > first, 30)
    start = sandbox.starts()[-1]
    assert (start["cause"], start["how"], start["checks"]["entropyReseeded"]) == ("wake", "wake", True)
    assert abs(start["checks"]["clockSkewMs"]) < 500


def test_lk_01_running_machines_are_adopted_after_a_kill(service: Outliving) -> None:
    sandboxes = [service.create() for _ in range(3)]
    counters = [sandbox.spawn(["python3", "-c", COUNTER]) for sandbox in sandboxes]
    for number, sandbox in enumerate(sandboxes):
        sandbox.files.write("/workspace/number", str(number))
    before = [newest(sandbox, counter.id) for sandbox, counter in zip(sandboxes, counters, strict=True)]

    service.kill()
    service.start()

    for number, (sandbox, counter) in enumerate(zip(sandboxes, counters, strict=True)):
        again = service.again(sandbox)
        assert again.state == "running"
        assert ran(again, "cat number") == str(number)
        assert newest(again, counter.id) > before[number]
        assert [start["number"] for start in again.starts()] == [1]
    assert service.doctor() == []


def test_sn_09_forks_have_other_random_numbers_and_what_the_source_had(service: Outliving) -> None:
    sandbox = service.create()
    sandbox.files.write("/workspace/note", "kept")
    session = sandbox.spawn(["python3", "-uc", SESSION], stdin="pipe")
    session.write("import os, uuid; x = 7\n")

    copies = sandbox.fork(4, name="kid")

    told = []
    for copy in copies:
        copy.process(session.id).write("print(x, os.urandom(8).hex(), uuid.uuid4())\n")
        told.append(first_line(copy, session.id).split())
    assert [copy.info["name"] for copy in copies] == ["kid", "kid-1", "kid-2", "kid-3"]
    assert {line[0] for line in told} == {"7"}
    assert len({line[1] for line in told}) == len({line[2] for line in told}) == 4
    assert {ran(copy, "cat note; echo; hostname") for copy in copies} == {
        f"kept\n{copy.info['name']}" for copy in copies
    }
    assert ran(sandbox, "cat note") == "kept"
    for copy in copies:
        copy.delete()


@pytest.mark.parametrize("way", ["wake", "restart", "fork", "memory", "disk"])
def test_sn_11_the_network_policy_is_bound_by_every_way_to_start(service: Outliving, way: str) -> None:
    sandbox = service.create(network={"internet": False}, persistent=True)
    sandbox.files.write("/workspace/note", "kept")
    assert service.client is not None
    if way == "wake":
        sandbox.pause().wake()
        reached = sandbox
    elif way == "restart":
        reached = sandbox.stop().restart()
    elif way == "fork":
        reached = sandbox.fork(1)[0]
    else:
        kept = sandbox.snapshot(mode=way)
        reached = service.create(snapshot=kept["id"])

    status = reached.exec("curl -s -o /dev/null -w '%{http_code}' -m 20 http://example.com/").stdout
    page = reached.exec("curl -s -m 20 http://example.com/").stdout

    assert ran(reached, "cat note") == "kept"
    assert status == "403" and "internet" in page.lower(), page
    assert reached.info["network"]["internet"] is False


def test_a_lease_ends_a_sandbox_while_no_service_lives(service: Outliving) -> None:
    sandbox = service.create(timeout_seconds=60, on_lease_end="stop")
    sandbox.files.write("/workspace/note", "kept")
    machines = service.state / "machines"
    (machine,) = machines.iterdir()
    vmm = json.loads(next(machine.glob("*.json")).read_text())["vmm"]["pid"]
    began = time.monotonic()
    service.kill()

    until("the guard ending it", lambda: not Path(f"/proc/{vmm}").exists(), 90)
    lived_s = time.monotonic() - began
    service.start()

    after = service.again(sandbox)
    assert 45 < lived_s < 80
    assert (after.state, after.info["stopReason"]) == ("stopped", "lease_expired")
    assert after.restart().exec("cat note").stdout == "kept"


def test_a_machine_that_dies_is_settled_in_seconds_and_restarted_from_its_disk(service: Outliving) -> None:
    sandbox = service.create()
    sandbox.exec("echo kept > note && sync")
    (machine,) = (service.state / "machines").iterdir()
    vmm = json.loads(next(machine.glob("*.json")).read_text())["vmm"]["pid"]

    os.kill(vmm, signal.SIGKILL)
    until("the loss being noticed", lambda: service.again(sandbox).state == "stopped", 10)
    lost = service.again(sandbox).info
    sandbox.restart()

    assert (lost["stopReason"], lost["diskKept"]) == ("host_lost", True)
    assert ran(sandbox, "cat note") == "kept"
