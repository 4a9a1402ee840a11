"""The commands that keep sandboxes and bring them back, against a scripted service."""

import json
import subprocess
import sys

import pytest
from scripted_server import ScriptedServer, answer, refusal

START = {
    "number": 1,
    "cause": "create",
    "how": "spare",
    "askedAt": "2026-11-29T18:00:00.000Z",
    "stepsMs": {"policyBound": 0.1, "restored": 2.0, "ready": 15.25},
    "firstCommandMs": None,
    "checks": {"clockSkewMs": -1.5, "entropyReseeded": True, "policyVersion": 1},
}


def runtime(*words: str) -> subprocess.CompletedProcess[str]:
    """A command leaves its process at once, so it has one of its own."""
    command = [sys.executable, "-m", "withruntime.cli", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True, timeout=60)


def ran(*words: str) -> str:
    done = runtime(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("verb", ["pause", "wake", "restart"])
def test_a_verb_prints_the_ids_of_what_it_moved(service: ScriptedServer, verb: str):
    service.on("POST", f"/v1/sandboxes/a:{verb}", answer({"id": "a", "state": "running"}))

    assert ran("sandbox", verb, "a") == "a"


def test_a_fork_prints_each_copy_and_sends_what_was_named(service: ScriptedServer):
    copies = [{"id": "b", "state": "running"}, {"id": "c", "state": "running"}]
    service.on("POST", "/v1/sandboxes/a:fork", answer({"sandboxes": copies}))

    told = ran("sandbox", "fork", "a", "-n", "2", "--name", "kid", "--label", "k=v", "--secret", "TOKEN")

    (sent,) = service.sent("POST", "/v1/sandboxes/a:fork")
    assert told.split() == ["b", "c"]
    assert sent.json == {"count": 2, "name": "kid", "labels": {"k": "v"}, "secrets": ["TOKEN"]}


def test_a_fork_that_keeps_its_moment_says_as_what(service: ScriptedServer):
    made = {"sandboxes": [{"id": "b", "state": "running"}], "snapshot": {"id": "s", "state": "ready"}}
    service.on("POST", "/v1/sandboxes/a:fork", answer(made))

    told = runtime("sandbox", "fork", "a", "--keep-snapshot")

    assert (told.stdout.strip(), "snapshot s" in told.stderr) == ("b", True)
    assert json.loads(ran("sandbox", "fork", "a", "--keep-snapshot", "--name", "kid", "--json")) == made
    first, second = (sent.json for sent in service.sent("POST", "/v1/sandboxes/a:fork"))
    assert first == {"count": 1, "keepSnapshot": True}
    assert second == {"count": 1, "name": "kid", "keepSnapshot": True}


@pytest.mark.parametrize("verb", ["wake", "restart"])
@pytest.mark.parametrize(
    ("lease", "said"),
    [
        (
            {"endsAt": "2026-11-30T01:30:00.000Z", "onTimeout": "pause"},
            "until 2026-11-30T01:30:00.000Z, then it is paused",
        ),
        ({"endsAt": "2026-11-30T01:30:00.000Z", "onTimeout": "delete"}, "then it is deleted"),
        ({"endsAt": None, "onTimeout": "pause"}, "its lease renews itself"),
    ],
)
def test_a_new_lease_is_told_with_its_end(service: ScriptedServer, verb: str, lease: dict, said: str):
    service.on("POST", f"/v1/sandboxes/a:{verb}", answer({"id": "a", "state": "running", **lease}))

    done = runtime("sandbox", verb, "a")

    assert (done.stdout, said in done.stderr) == ("a\n", True)


def test_a_snapshot_prints_its_id_and_is_listed_and_removed(service: ScriptedServer):
    kept = {"id": "s", "state": "ready", "mode": "disk", "name": "ready", "sourceSandboxId": "a"}
    service.on("POST", "/v1/sandboxes/a:snapshot", answer(kept))
    service.on("GET", "/v1/snapshots", answer({"data": [kept], "nextCursor": None}))
    service.on("GET", "/v1/snapshots/s", answer(kept))
    service.on("POST", "/v1/snapshots/s:delete", answer({**kept, "state": "deleted"}))

    assert ran("sandbox", "snapshot", "a", "--mode", "disk", "--days", "7") == "s"
    assert json.loads(ran("snapshot", "ls", "--json")) == [kept]
    assert ran("snapshot", "rm", "s") == "s"


def test_starts_are_shown_as_a_table_and_as_the_services_own_json(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a/starts", answer({"data": [START]}))

    table = ran("sandbox", "get", "a", "--starts")

    assert json.loads(ran("sandbox", "get", "a", "--starts", "--json")) == [START]
    assert all(word in table for word in ("create", "spare"))


def test_an_update_sends_what_was_named_and_nothing_else(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:update", answer({"id": "a", "state": "running"}))
    service.on("POST", "/v1/sandboxes/a:retention", answer({"id": "a", "state": "running"}))

    ran("sandbox", "update", "a", "--idle-pause", "0", "--no-auto-wake", "--at-end", "stop", "--days", "7")

    (sent,) = service.sent("POST", "/v1/sandboxes/a:update")
    assert sent.json == {"idlePauseSeconds": 0, "autoWake": False, "onTimeout": "stop"}
    assert service.sent("POST", "/v1/sandboxes/a:retention")[0].json == {"days": 7}


def test_an_update_of_nothing_is_wrong_usage(service: ScriptedServer):
    assert runtime("sandbox", "update", "a").returncode == 2
    assert service.requests == []


def test_a_create_may_begin_from_a_snapshot_and_say_what_its_lease_does(service: ScriptedServer):
    service.on("GET", "/v1/snapshots/s", answer({"id": "s", "state": "ready", "name": None}))

    ran("sandbox", "create", "--snapshot", "s", "--at-end", "delete", "--idle-pause", "60", "--persistent")

    (sent,) = service.sent("POST", "/v1/sandboxes")
    assert sent.json == {"snapshot": "s", "onLeaseEnd": "delete", "idlePauseSeconds": 60, "persistent": True}


def named(service: ScriptedServer, *snapshots: dict) -> None:
    """A service that has these snapshots and finds one by its name only in the list."""
    service.on("GET", "/v1/snapshots/ready", refusal(404, "snapshot_not_found"))
    service.on("GET", "/v1/snapshots", answer({"data": list(snapshots), "nextCursor": None}))


def test_the_name_of_a_ready_snapshot_stands_for_its_id(service: ScriptedServer):
    kept = {"id": "s2", "state": "ready", "name": "ready"}
    named(service, {"id": "s1", "state": "failed", "name": "ready"}, kept)
    service.on("POST", "/v1/snapshots/s2:delete", answer({**kept, "state": "deleted"}))

    ran("sandbox", "create", "--snapshot", "ready")
    shown = json.loads(ran("snapshot", "get", "ready", "--json"))
    gone = ran("snapshot", "rm", "ready")

    assert (shown, gone) == (kept, "s2")
    assert service.sent("POST", "/v1/sandboxes")[0].json == {"snapshot": "s2"}
    assert service.sent("GET", "/v1/snapshots")[0].query == {"name": ["ready"]}


@pytest.mark.parametrize("words", [("sandbox", "create", "--snapshot"), ("snapshot", "get"), ("snapshot", "rm")])
def test_a_name_of_two_snapshots_is_refused_with_their_ids(service: ScriptedServer, words: tuple[str, ...]):
    named(service, *({"id": one, "state": "ready", "name": "ready"} for one in ("s1", "s2")))

    done = runtime(*words, "ready")

    assert done.returncode == 1
    assert "2 snapshots are called 'ready': s1, s2" in done.stderr
    assert service.sent("POST", ".*") == []


def test_a_name_of_no_ready_snapshot_says_what_there_is(service: ScriptedServer):
    named(service, {"id": "s1", "state": "capturing", "name": "ready"})

    assert "s1 is capturing" in runtime("sandbox", "create", "--snapshot", "ready").stderr

    named(service)

    assert "`runtime snapshot ls` shows" in runtime("snapshot", "rm", "ready").stderr
    assert service.sent("POST", ".*") == []


def test_a_stopped_sandbox_that_holds_its_name_is_found_by_it(service: ScriptedServer):
    old = {"id": "old", "name": "box", "state": "stopped", "diskKept": False}
    holder = {"id": "a", "name": "box", "state": "stopped", "diskKept": True}
    service.on("GET", "/v1/sandboxes", answer({"data": [old, holder], "nextCursor": None}))
    service.on("POST", "/v1/sandboxes/a:restart", answer({**holder, "state": "running"}))

    assert ran("sandbox", "restart", "box") == "a"


def test_after_a_stop_the_last_that_had_the_name_is_removed_by_it(service: ScriptedServer):
    ended = [{"id": name, "name": "box", "state": "stopped", "diskKept": False} for name in ("older", "a")]
    service.on("GET", "/v1/sandboxes", answer({"data": ended, "nextCursor": None}))

    assert ran("sandbox", "rm", "box") == "a"
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1
