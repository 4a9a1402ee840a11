"""Finding, starting and stopping the local service, with a small stand-in for it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from withruntime import Runtime, _local
from withruntime._errors import ServiceUnavailableError

STAND_IN = r"""
import fcntl, http.server, json, os, pathlib, sys, time
state, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
lock = (state / "service.lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(str(os.getpid()))
lock.flush()
with (state / "starts").open("a") as starts:
    starts.write("x")
if mode == "fail":
    sys.exit("runtimed: there is no QEMU on this machine; install qemu-system-x86")
if mode == "killed":
    os.kill(os.getpid(), 9)
if mode == "broken":
    raise ZeroDivisionError("no reason that anybody thought of")
(state / "progress").write_text("building the image\n")
while mode == "slow" and not (state / "go").exists():
    time.sleep(0.01)

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"key": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
(state / "key").write_text("rtcloud_local\n")
start = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
told = {"pid": os.getpid(), "startTime": start, "url": f"http://127.0.0.1:{server.server_port}", "version": "9"}
(state / "new").write_text(json.dumps(told))
(state / "new").rename(state / "service.json")
server.serve_forever()
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory whose service is the stand-in; whatever was started is ended."""
    folder = tmp_path / "state"
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.delenv("RUNTIME_API_URL")
    monkeypatch.delenv("RUNTIME_API_KEY")
    monkeypatch.setattr(
        _local, "service_argv", lambda at: [sys.executable, str(script), str(at), os.environ.get("STAND_IN", "well")]
    )
    yield folder
    if (service := _local.find(folder)) is not None:
        os.kill(service.pid, signal.SIGKILL)


def env() -> dict[str, str]:
    return dict(os.environ)


def starts(state: Path) -> int:
    return len((state / "starts").read_text())


def eventually(true: "callable", what: str) -> None:  # type: ignore[valid-type]
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within 20 s"
        time.sleep(0.01)


def test_a_client_without_an_address_starts_the_service_and_uses_its_key(state: Path):
    with Runtime() as client:
        assert client.me() == {"key": "Bearer rtcloud_local"}
        assert client.base_url == _local.find(state).url  # type: ignore[union-attr]

    assert state.stat().st_mode & 0o777 == 0o700


def test_a_proxy_of_the_environment_is_not_asked_for_the_local_service(state: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Runtime() as client:
        assert client.me() == {"key": "Bearer rtcloud_local"}


def test_many_clients_at_once_start_one_service(state: Path):
    with ThreadPoolExecutor(8) as pool:
        services = list(pool.map(lambda _: _local.ensure(env()), range(8)))

    assert len({service.pid for service in services}) == 1
    assert starts(state) == 1


def test_a_service_that_died_is_started_again_under_a_client_that_goes_on(state: Path):
    with Runtime() as client:
        client.me()
        first = _local.find(state)
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: not first.alive(), "the end of the service")

        assert client.me() == {"key": "Bearer rtcloud_local"}
    assert starts(state) == 2


def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_service(state: Path):
    state.mkdir()
    other = subprocess.Popen(["sleep", "60"])
    told = {"pid": other.pid, "startTime": 1, "url": "http://127.0.0.1:9", "version": "9"}
    (state / "service.json").write_text(json.dumps(told))

    assert _local.find(state) is None
    assert _local.stop(state) is None
    assert other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_file_that_says_nothing_useful_is_no_service(state: Path, junk: str):
    state.mkdir()
    (state / "service.json").write_text(junk)

    assert _local.find(state) is None


def test_a_start_that_fails_says_why_in_one_sentence(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "fail")
    with pytest.raises(ServiceUnavailableError, match="there is no QEMU on this machine") as failed:
        _local.ensure(env())

    assert "service.log" in (failed.value.hint or "")


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("fail", "there is no QEMU on this machine; install qemu-system-x86"),
        ("killed", "it was ended by SIGKILL."),
        ("broken", "it has a fault (ZeroDivisionError: no reason that anybody thought of)."),
    ],
)
def test_however_a_start_fails_the_reason_and_the_log_are_told(
    state: Path, monkeypatch: pytest.MonkeyPatch, mode: str, told: str
):
    monkeypatch.setenv("STAND_IN", mode)
    state.mkdir(exist_ok=True)
    (state / "service.log").write_text("runtimed: what an earlier start said\n" + "line\n" * 5)

    with pytest.raises(ServiceUnavailableError) as failed:
        _local.ensure(env())

    assert failed.value.message == f"The local service could not start: {told}"
    assert str(state / "service.log") in str(failed.value.hint)


def test_a_slow_start_tells_how_it_goes(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "slow")
    told: list[str] = []

    def hear(line: str) -> None:
        told.append(line)
        (state / "go").touch()

    _local.ensure(env(), report=hear)

    assert told[0] == "building the image"


def test_a_wait_that_nobody_wants_any_more_ends_and_the_start_goes_on(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "slow")
    give_up = threading.Event()
    give_up.set()
    with pytest.raises(ServiceUnavailableError) as ended:
        _local.ensure(env(), give_up=give_up)
    assert ended.value.code == "start_abandoned"
    eventually(lambda: _local.holder(state) is not None, "the start")
    assert _local.find(state) is None
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(_local.ensure, env())
        (state / "go").touch()

        assert second.result().pid == _local.holder(state)
    assert starts(state) == 1


def test_stopping_waits_for_the_end_and_can_be_asked_for_twice(state: Path):
    service = _local.ensure(env())

    assert _local.stop(state) == service.pid
    assert not service.alive()
    assert _local.stop(state) is None


def test_one_that_still_starts_can_be_stopped(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "slow")
    give_up = threading.Event()
    give_up.set()
    with pytest.raises(ServiceUnavailableError):
        _local.ensure(env(), give_up=give_up)
    eventually(lambda: _local.holder(state) is not None, "the start")

    assert _local.stop(state) is not None
    assert _local.holder(state) is None


def test_what_is_not_installed_is_named_with_the_way_to_get_it(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_local, "_SERVER_PACKAGES", ("no_such_package_here",))
    with pytest.raises(ServiceUnavailableError) as refused:
        _local.ensure(env())

    assert refused.value.code == "server_not_installed"
    assert "withruntime[server]" in (refused.value.hint or "")


def test_a_state_directory_that_cannot_be_made_is_named(state: Path, monkeypatch: pytest.MonkeyPatch):
    state.write_text("in the way")
    monkeypatch.setenv("RUNTIME_STATE_DIR", str(state / "below"))
    with pytest.raises(ServiceUnavailableError, match="cannot be made"):
        _local.ensure(env())


def test_where_the_state_is_kept(monkeypatch: pytest.MonkeyPatch):
    assert _local.state_dir({"RUNTIME_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert _local.state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/withruntime")
    assert _local.state_dir({}) == Path.home() / ".local/state/withruntime"


def test_a_dead_process_that_nobody_has_buried_counts_as_ended():
    child = subprocess.Popen(["true"])
    eventually(lambda: _local.process_start_time(child.pid) is None, "the child's end")
    child.wait()
