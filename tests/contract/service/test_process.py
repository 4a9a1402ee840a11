"""The service as its operator sees it: how it starts, refuses to start, stops, and what is left when it is killed."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from .conftest import Running, processes_of, run, until

Start = Callable[..., Running]


def test_a_service_says_where_it_is_and_hands_over_a_key_of_its_owner_only(start: Start) -> None:
    service = start()

    told = json.loads((service.state / "service.json").read_text())
    modes = {
        name: stat.S_IMODE((service.state / name).stat().st_mode) for name in ("service.json", "key", "runtime.db")
    }

    assert told.keys() == {"pid", "startTime", "url", "version"}
    assert set(modes.values()) == {0o600}
    with service.http() as http:
        assert http.get("/v1/me").status_code == 200


def test_a_command_runs_in_a_sandbox(start: Start) -> None:
    service = start()
    made = service.create()

    with service.http() as http:
        reply = http.post(f"/v1/sandboxes/{made['id']}:exec", json={"command": "echo $((6 * 7)); exit 3"})

    assert (reply.json()["stdout"], reply.json()["exitCode"]) == ("42\n", 3)


def test_a_second_service_on_the_same_folder_is_told_who_holds_it(start: Start) -> None:
    service = start()

    second = run("serve", "--state-dir", str(service.state), "--vmm", "fake")

    assert second.returncode == 1
    assert f"pid {service.process.pid}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("serve", "--state-dir", str(tmp_path), "--vmm", "fake", "--port", port)

    assert (ended.returncode, len(ended.stderr.strip().splitlines())) == (1, 1)
    assert port in ended.stderr and "--port" in ended.stderr


def test_wrong_settings_are_one_sentence_that_names_them_all(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("spares = -1\nnonsense = 1\n")

    ended = run("serve", "--state-dir", str(tmp_path), "--vmm", "xen")

    assert (ended.returncode, len(ended.stderr.strip().splitlines())) == (1, 1)
    for name in ("spares", "nonsense", "vmm"):
        assert name in ended.stderr


def test_a_database_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runtime.db").write_bytes(b"this is no database, whatever its name says" * 100)

    ended = run("serve", "--state-dir", str(tmp_path), "--vmm", "fake")

    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("runtimed: the database cannot be opened")


def test_a_stop_ends_every_machine_and_says_so_afterwards(start: Start) -> None:
    service = start()
    made = service.create()

    assert service.stop() == 0

    assert not (service.state / "service.json").exists()
    assert processes_of(service.state) == []
    assert list((service.state / "machines").iterdir()) == []
    again = start()
    with again.http() as http:
        after = http.get(f"/v1/sandboxes/{made['id']}").json()
    assert (after["state"], after["stopReason"]) == ("stopped", "host_stopped")
    assert again.key == service.key


def test_a_stop_ends_a_command_that_runs_with_a_typed_error(start: Start) -> None:
    service = start()
    made = service.create()
    with service.http() as http:
        body = {"command": "sleep 60", "stream": True}
        with http.stream("POST", f"/v1/sandboxes/{made['id']}:exec", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            service.process.send_signal(signal.SIGINT)
            told = [json.loads(line) for line in lines if line]

    assert service.process.wait(60) == 0
    assert told[-1]["type"] == "error"
    assert told[-1]["error"]["code"] in ("interrupted", "host_lost")


def test_what_a_killed_service_leaves_is_seen_and_ended_by_the_doctor(start: Start, tmp_path: Path) -> None:
    service = start()
    service.create()
    service.stop(signal.SIGKILL)
    where = ("--state-dir", str(service.state), "--cache-dir", str(tmp_path / "cache"), "--json")

    before = run("doctor", *where)
    fixed = run("doctor", *where, "--fix")
    after = run("doctor", *where)

    left = [f["line"] for f in json.loads(before.stdout)["findings"] if f["verdict"] == "left"]
    assert before.returncode == 1 and any("machine" in line for line in left)
    assert fixed.returncode == 0
    assert [f for f in json.loads(after.stdout)["findings"] if f["verdict"] == "left"] == []
    until("the machines' end", lambda: processes_of(service.state) == [])


def test_after_a_kill_the_next_service_knows_that_its_sandboxes_are_lost(start: Start) -> None:
    service = start()
    made = service.create(name="one")
    service.stop(signal.SIGKILL)

    again = start()

    with again.http() as http:
        after = http.get(f"/v1/sandboxes/{made['id']}").json()
    assert (after["state"], after["stopReason"]) == ("stopped", "host_lost")
    assert again.create(name="one")["state"] == "running"


def test_a_key_made_beside_a_running_service_works_until_it_is_revoked(start: Start) -> None:
    service = start()
    where = ("--state-dir", str(service.state))
    made = json.loads(run("admin", "key", "create", "ci", "--read-only", "--json", *where).stdout)

    with service.http() as http:
        http.headers["Authorization"] = f"Bearer {made['key']}"
        assert http.get("/v1/sandboxes").status_code == 200
        assert http.post("/v1/sandboxes", json={}).status_code == 403

        assert run("admin", "key", "revoke", made["id"], *where).returncode == 0

        until("the key being refused", lambda: http.get("/v1/sandboxes").status_code == 401, within_s=1.5)
    listed = json.loads(run("admin", "key", "ls", "--json", *where).stdout)["data"]
    assert {key["name"]: key["revokedAt"] is None for key in listed} == {"local": True, "ci": False}
    assert made["key"] not in run("admin", "key", "ls", "--json", *where).stdout


def test_an_image_that_is_not_there_is_refused_and_leaves_no_sandbox(start: Start) -> None:
    service = start()

    with service.http() as http:
        reply = http.post("/v1/sandboxes", json={"image": "nope"}, headers={"Prefer": "wait=60"})
        listed = http.get("/v1/sandboxes", params={"includeStopped": "true"}).json()["data"]

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "image_not_found")
    assert listed == []
