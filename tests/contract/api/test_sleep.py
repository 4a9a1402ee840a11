"""Pause, wake, restart, fork, starts and snapshots, as a client sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtimed.core.errors import NoCapacity, StartFailed
from runtimed.core.wait import wait_for

from .conftest import Api

WAIT = {"Prefer": "wait=10"}


async def verb(api: Api, made: dict[str, Any], name: str, body: Any = None) -> dict[str, Any]:
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:{name}", json=body or {}, headers=WAIT)
    assert reply.status_code in (200, 201), reply.text
    return reply.json()  # type: ignore[no-any-return]


async def refused(api: Api, made: dict[str, Any], name: str, body: Any = None) -> tuple[int, str]:
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:{name}", json=body or {}, headers=WAIT)
    return reply.status_code, reply.json()["error"]["code"]


async def test_a_sandbox_is_paused_at_its_lease_and_when_idle_unless_told_otherwise(api: Api) -> None:
    default = await api.create()
    persistent = await api.create(persistent=True)
    short = await api.create(idlePauseSeconds=5)

    assert (default["onLeaseEnd"], default["idlePauseSeconds"], default["autoWake"]) == ("pause", 300, True)
    assert (persistent["idlePauseSeconds"], persistent["endsAt"]) == (0, None)
    assert short["idlePauseSeconds"] == 60


async def test_a_paused_sandbox_says_so_and_a_command_wakes_it(api: Api) -> None:
    made = await api.create()

    asleep = await verb(api, made, "pause")
    ran = await api.exec(made["id"], command="echo hello")
    awake = (await api.call("GET", f"/v1/sandboxes/{made['id']}")).json()

    assert (asleep["state"], asleep["stopReason"], asleep["endsAt"]) == ("paused", "requested", None)
    assert asleep["pausedAt"] is not None and asleep["pausedExpiresAt"] > asleep["pausedAt"]
    assert ran.json()["stdout"] == "hello\n"
    assert (awake["state"], awake["stopReason"], awake["pausedAt"]) == ("running", None, None)


async def test_files_and_processes_wake_it_too(api: Api) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}"
    for call in (
        lambda: api.http.put(f"{path}/files/content", params={"path": "/workspace/f"}, content=b"x"),
        lambda: api.http.get(f"{path}/files/content", params={"path": "/workspace/f"}),
        lambda: api.http.get(f"{path}/processes"),
    ):
        await verb(api, made, "pause")

        assert (await call()).status_code == 200


async def test_without_auto_wake_a_command_is_refused(api: Api) -> None:
    made = await api.create(autoWake=False)
    await verb(api, made, "pause")

    reply = await api.exec(made["id"], command="true")

    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "sandbox_paused")


async def test_waking_one_that_is_awake_is_not_paused(api: Api) -> None:
    assert await refused(api, await api.create(), "wake") == (409, "not_paused")


async def test_a_wake_may_name_its_lease(api: Api) -> None:
    made = await api.create(timeoutSeconds=600)
    await verb(api, made, "pause")

    woken = await verb(api, made, "wake", {"timeoutSeconds": 90})

    assert woken["timeoutSeconds"] == 90


async def test_a_repeated_pause_or_wake_is_answered_once(api: Api) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}"
    pause, wake = WAIT | {"Idempotency-Key": "p"}, WAIT | {"Idempotency-Key": "w"}
    replies = [await api.http.post(f"{path}:pause", json={}, headers=pause) for _ in range(2)]
    again = [await api.http.post(f"{path}:wake", json={}, headers=wake) for _ in range(2)]

    assert [reply.status_code for reply in replies + again] == [200] * 4
    assert [reply.json().get("replayed", False) for reply in replies + again] == [False, True, False, True]
    assert api.node.faults.reached.count("wake") == 1


async def test_without_room_a_wake_says_that_asking_again_helps(api: Api) -> None:
    made = await api.create()
    await verb(api, made, "pause")
    api.node.faults.errors["wake"] = NoCapacity("full", retry_after_ms=1000)

    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:wake", json={}, headers=WAIT)

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_capacity")
    assert int(reply.headers["Retry-After"]) >= 1


async def test_a_stopped_persistent_sandbox_is_restarted_from_its_disk(api: Api) -> None:
    made = await api.create(persistent=True, name="one")
    stopped = await verb(api, made, "stop")
    taken = await api.call("POST", "/v1/sandboxes", {"name": "one"})

    restarted = await verb(api, made, "restart")

    assert (stopped["state"], stopped["diskKept"]) == ("stopped", True)
    told = taken.json()["error"]
    assert (told["code"], made["id"] in told["message"]) == ("name_taken", True)
    # The hint is read by users of the command line too, which has no such field.
    assert "getOrCreate" not in told["hint"]
    assert (restarted["state"], restarted["diskKept"], restarted["startup"]["how"]) == ("running", False, "cold")
    assert await refused(api, made, "restart") == (409, "not_stopped")


async def test_what_cannot_be_restarted_says_why(api: Api) -> None:
    made = await api.create()
    await verb(api, made, "stop")

    assert await refused(api, made, "restart") == (409, "sandbox_stopped")
    assert await refused(api, made, "pause") == (409, "sandbox_stopped")
    assert await refused(api, made, "fork") == (409, "sandbox_stopped")
    assert await refused(api, made, "snapshot") == (409, "sandbox_stopped")


async def test_copies_are_answered_running_with_names_of_their_own(api: Api) -> None:
    made = await api.create(labels={"a": "1"})

    forked = await verb(api, made, "fork", {"count": 2, "name": "kid", "keepSnapshot": True})
    one = await verb(api, made, "fork")

    assert [(c["name"], c["state"], c["labels"]) for c in forked["sandboxes"]] == [
        ("kid", "running", {"a": "1"}),
        ("kid-1", "running", {"a": "1"}),
    ]
    assert [c["secrets"] for c in forked["sandboxes"]] == [[], []]
    assert (forked["snapshot"]["state"], forked["snapshot"]["sourceSandboxId"]) == ("ready", made["id"])
    assert len(one["sandboxes"]) == 1 and "snapshot" not in one


@pytest.mark.parametrize("count", [0, 17, "two"])
async def test_a_fork_makes_one_to_sixteen(api: Api, count: Any) -> None:
    reply = await api.call("POST", f"/v1/sandboxes/{(await api.create())['id']}:fork", {"count": count})

    assert (reply.status_code, reply.json()["error"]["details"]["issues"][0]["field"]) == (400, "count")


async def test_the_starts_of_a_sandbox_are_its_receipts(api: Api) -> None:
    made = await api.create()
    await api.exec(made["id"], command="true")
    await verb(api, made, "pause")
    await verb(api, made, "wake")

    starts = (await api.call("GET", f"/v1/sandboxes/{made['id']}/starts")).json()["data"]

    assert [(start["number"], start["cause"]) for start in starts] == [(1, "create"), (2, "wake")]
    for start in starts:
        assert "policyBound" in start["stepsMs"]
        assert start["checks"] == {"clockSkewMs": 0.0, "entropyReseeded": True, "policyVersion": 1}


async def test_a_snapshot_is_taken_listed_changed_used_and_deleted(api: Api) -> None:
    made = await api.create(vcpu=1, memoryMiB=512)
    body = {"name": "ready", "labels": {"a": "1"}, "retentionDays": 7, "mode": "disk"}
    kept = await verb(api, made, "snapshot", body)
    path = f"/v1/snapshots/{kept['id']}"

    listed = (await api.call("GET", f"/v1/snapshots?sandboxId={made['id']}")).json()
    changed = (await api.call("POST", f"{path}:update", {"name": None, "labels": {}})).json()
    longer = (await api.call("POST", f"{path}:extend", {"retentionDays": 90})).json()
    copy = await api.create(snapshot=kept["id"])
    deleted = (await api.call("POST", f"{path}:delete", {})).json()

    assert (kept["state"], kept["mode"], kept["shape"]) == (
        "ready",
        "disk",
        {"vcpu": 1, "memoryMiB": 512, "diskMiB": 4096},
    )
    assert [one["id"] for one in listed["data"]] == [kept["id"]]
    assert (changed["name"], changed["labels"]) == (None, {})
    assert longer["expiresAt"] > kept["expiresAt"]
    assert (copy["snapshot"], copy["vcpu"], copy["memoryMiB"]) == (kept["id"], 1, 512)
    assert deleted["state"] == "deleted"
    gone = await api.call("GET", path)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "snapshot_not_found")


async def test_a_snapshot_that_is_not_there_cannot_be_begun_from(api: Api) -> None:
    reply = await api.call("POST", "/v1/sandboxes", {"snapshot": "nothing"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "snapshot_not_found")
    assert (await api.call("GET", "/v1/sandboxes?includeStopped=true")).json()["data"] == []


async def test_a_read_only_key_changes_nothing(api: Api) -> None:
    made = await api.create()
    _, headers = await api.new_key(kind="read_only")

    for name in ("pause", "wake", "restart", "fork", "snapshot"):
        reply = await api.http.post(f"/v1/sandboxes/{made['id']}:{name}", json={}, headers=headers)
        assert reply.status_code == 403
    assert (await api.http.get("/v1/snapshots", headers=headers)).status_code == 200


async def test_a_command_near_the_end_of_the_lease_is_told(api: Api) -> None:
    made = await api.create(timeoutSeconds=120)
    early = (await api.exec(made["id"], command="true")).json()
    await api.clock.advance(90)

    late = (await api.exec(made["id"], command="true")).json()
    streamed = (await api.exec(made["id"], command="true", stream=True)).text.splitlines()[0]

    assert "leaseEndsInSeconds" not in early
    assert late["leaseEndsInSeconds"] == 30
    assert '"leaseEndsInSeconds":30' in streamed


async def test_one_that_holds_the_name_is_answered_woken(api: Api) -> None:
    made = await api.create(name="one")
    await verb(api, made, "pause")

    held = await api.create(name="one", getOrCreate=True)

    assert (held["id"], held["state"], held["reused"]) == (made["id"], "running", True)


async def test_a_change_of_the_idle_pause_and_of_what_the_lease_does_is_kept(api: Api) -> None:
    made = await api.create()

    changed = await verb(
        api, made, "update", {"idlePauseSeconds": 0, "onTimeout": "stop", "persistent": True, "autoWake": False}
    )

    assert (changed["idlePauseSeconds"], changed["onLeaseEnd"], changed["persistent"]) == (0, "stop", True)
    assert (changed["autoWake"], changed["endsAt"]) == (False, None)


async def test_a_start_that_takes_long_says_what_it_does_and_one_that_failed_why(api: Api) -> None:
    api.node.start_gate = asyncio.Event()
    made = (await api.call("POST", "/v1/sandboxes", {})).json()
    path = f"/v1/sandboxes/{made['id']}"
    booting = (await api.call("GET", path)).json()
    api.node.start_error = StartFailed("its agent never answered")
    api.node.start_gate.set()
    failed = (await api.call("GET", f"{path}?waitFor=running&timeoutSeconds=10")).json()

    assert (made["state"], made["progress"], booting["progress"]) == ("starting", "booting", "booting")
    assert (failed["state"], failed["stopReason"], failed["progress"]) == ("stopped", "startup_failed", None)
    assert (failed["startError"], failed["pauseError"]) == ("its agent never answered", None)


async def test_a_command_that_a_pause_cuts_off_is_interrupted_and_the_same_request_brings_its_result(api: Api) -> None:
    api.script(output=[("stdout", b"done")], gate=(gate := asyncio.Event()))
    made = await api.create()
    ask = {"command": "x"}
    asked = asyncio.get_running_loop().create_task(api.call("POST", f"/v1/sandboxes/{made['id']}:exec", ask, key="k"))

    async def started() -> bool | None:
        return bool(api.node.guests[made["id"]].sim_processes.started) or None  # type: ignore[index]

    await wait_for("the command", started, within_s=5)
    await verb(api, made, "pause")
    cut = (await asked).json()["error"]
    again = asyncio.get_running_loop().create_task(api.call("POST", f"/v1/sandboxes/{made['id']}:exec", ask, key="k"))
    gate.set()

    assert (cut["code"], cut["retryable"], cut["details"]["cursor"]) == ("interrupted", False, 0)
    assert (await again).json()["stdout"] == "done"
    assert len(api.node.guests[made["id"]].sim_processes.started) == 1  # type: ignore[index]


async def test_a_disk_snapshot_takes_a_larger_disk_and_refuses_a_smaller_one(api: Api) -> None:
    made = await api.create(diskMiB=5000)
    kept = await verb(api, made, "snapshot", {"mode": "disk"})

    larger = await api.create(snapshot=kept["id"], diskMiB=6000, memoryMiB=512, vcpu=1)
    smaller = await api.call("POST", "/v1/sandboxes", {"snapshot": kept["id"], "diskMiB": 4000})

    assert (larger["diskMiB"], larger["memoryMiB"], larger["vcpu"]) == (6000, 512, 1)
    (issue,) = smaller.json()["error"]["details"]["issues"]
    assert (smaller.status_code, issue["field"]) == (400, "diskMiB")
    assert "at least 5000" in issue["message"]
