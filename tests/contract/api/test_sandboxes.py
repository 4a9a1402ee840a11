"""The sandbox resource as a client sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Api

OBJECT_KEYS = {
    *("id", "kind", "accountId", "name", "labels", "state", "status", "stopReason", "region", "image", "snapshot"),
    *("vcpu", "memoryMiB", "diskMiB", "cpu", "cpuFloorMillis", "funding", "timeoutSeconds", "onLeaseEnd", "onTimeout"),
    *("idlePauseSeconds", "autoWake", "persistent", "pausable", "envNames", "secrets", "volumes", "createdAt"),
    *("readyAt", "pausedAt", "endedAt", "updatedAt", "lastActiveAt", "expiresAt", "endsAt", "pausedExpiresAt"),
    *("chargedMicros", "heldMicros", "diskKept"),
}
"""Section 2.4 of the wire protocol, but for what only some answers have."""


async def test_an_empty_create_gives_the_defaults(api: Api) -> None:
    made = await api.create()

    assert made.keys() >= OBJECT_KEYS
    assert (made["state"], made["vcpu"], made["memoryMiB"], made["diskMiB"]) == ("running", 2, 4096, 4096)
    assert (made["timeoutSeconds"], made["onLeaseEnd"], made["funding"]) == (1800, "pause", "paid")


async def test_without_prefer_a_create_answers_at_once(api: Api) -> None:
    api.node.start_gate = asyncio.Event()

    reply = await api.call("POST", "/v1/sandboxes", {})

    assert (reply.status_code, reply.json()["state"]) == (201, "starting")


async def test_values_of_the_environment_are_in_no_answer(api: Api) -> None:
    reply = await api.call("POST", "/v1/sandboxes", {"env": {"TOKEN": "sesame"}})

    assert reply.json()["envNames"] == ["TOKEN"]
    assert "sesame" not in reply.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volumes", [{"volumeId": "v", "path": "/x"}]),
        ("spreadFrom", ["x"]),
        ("tailscale", {"authKeySecret": "x"}),
    ],
)
async def test_what_is_not_built_is_refused_by_name(api: Api, field: str, value: Any) -> None:
    reply = await api.call("POST", "/v1/sandboxes", {field: value})

    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["retryable"]) == (501, "unavailable", False)
    assert error["details"]["fields"] == [field]
    assert field in error["message"]
    assert api.node.running() == frozenset()


@pytest.mark.parametrize(
    "body",
    [
        {"network": {"internet": False}},
        {"volumes": [], "secrets": [], "spreadFrom": [], "persistent": False, "idlePauseSeconds": 0, "cpu": "shared"},
        {"funding": "trial"},
        {"pausable": True, "autoWake": False, "cpuFloorMillis": 0},
    ],
)
async def test_saying_what_is_so_anyway_is_fine(api: Api, body: dict[str, Any]) -> None:
    assert (await api.create(**body))["state"] == "running"


@pytest.mark.parametrize("seconds", [0, -1, 59, 86_401, 1.5, "600", None, True, 10**30])
async def test_ex_09_a_timeout_that_means_nothing_names_the_field(api: Api, seconds: Any) -> None:
    reply = await api.call("POST", "/v1/sandboxes", {"timeoutSeconds": seconds})

    assert reply.status_code == 400
    assert [issue["field"] for issue in reply.json()["error"]["details"]["issues"]] == ["timeoutSeconds"]
    assert api.node.running() == frozenset()


async def test_every_wrong_field_is_named_at_once(api: Api) -> None:
    body = {
        "vcpu": 0,
        "memoryMiB": "4096",
        "diskMiB": 1,
        "name": "-x",
        "labels": {"a": 1},
        "env": {"1A": "x"},
        "user": "nobody",
        "nonsense": 1,
        "network": {"internet": "no", "more": 1},
    }

    reply = await api.call("POST", "/v1/sandboxes", body)

    fields = {issue["field"] for issue in reply.json()["error"]["details"]["issues"]}
    assert reply.status_code == 400
    assert fields == {
        *("vcpu", "memoryMiB", "diskMiB", "name", "labels.a", "env", "user", "nonsense"),
        *("network.internet", "network.more"),
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"getOrCreate": True}, "name"),
        ({"image": "a", "snapshot": "b"}, "snapshot"),
        ({"cpuFloorMillis": 9000}, "cpuFloorMillis"),
        ({"cpuFloorMillis": -1}, "cpuFloorMillis"),
        ({"cpuFloorMillis": 500, "cpu": "reserved"}, "cpuFloorMillis"),
        ({"vcpu": 1, "cpuFloorMillis": 1001}, "cpuFloorMillis"),
        ({"funding": "trial", "cpuFloorMillis": 251}, "cpuFloorMillis"),
        ({"region": "mars"}, "region"),
        ({"name": "6cc1954f-1965-4f85-86a9-eaa6d0364713"}, "name"),
        ({"env": {"A": "x\0y"}}, "env.A"),
        ({"labels": {"a:b": "x"}}, "labels"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"env": {"A": "x" * 40_000}}, "env"),
        ({"image": ""}, "image"),
    ],
)
async def test_fields_that_do_not_go_together_name_the_one_to_change(
    api: Api, body: dict[str, Any], field: str
) -> None:
    reply = await api.call("POST", "/v1/sandboxes", body)

    assert reply.status_code == 400
    assert [issue["field"] for issue in reply.json()["error"]["details"]["issues"]] == [field]


@pytest.mark.parametrize("text", [b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"name": "\\ud800"}', b'{"vcpu": NaN}'])
async def test_a_body_that_is_no_object_is_a_bad_request(api: Api, text: bytes) -> None:
    reply = await api.http.post("/v1/sandboxes", content=text, headers={"Content-Type": "application/json"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")


async def test_a_full_host_is_refused_with_when_to_ask_again(api: Api) -> None:
    api.node.memory_mib = 4096
    await api.create()

    reply = await api.call("POST", "/v1/sandboxes", {})

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_capacity")
    assert reply.headers["Retry-After"] == "1"
    assert reply.json()["error"]["retryAfterMs"] == 1000


async def test_more_than_the_host_could_ever_give_is_the_caller_s_error(api: Api) -> None:
    api.node.memory_mib = 4096

    reply = await api.call("POST", "/v1/sandboxes", {"memoryMiB": 8192})

    assert (reply.status_code, reply.json()["error"]["details"]["issues"][0]["field"]) == (400, "memoryMiB")


async def test_a_long_poll_answers_when_the_state_is_reached(api: Api) -> None:
    api.node.start_gate = asyncio.Event()
    made = (await api.call("POST", "/v1/sandboxes", {})).json()
    async with asyncio.TaskGroup() as group:
        query = {"waitFor": "running", "timeoutSeconds": 10}
        waiting = group.create_task(api.call("GET", f"/v1/sandboxes/{made['id']}", params=query))
        api.node.start_gate.set()

    assert waiting.result().json()["state"] == "running"


async def test_a_long_poll_answers_what_is_when_its_time_is_over(api: Api) -> None:
    made = await api.create()

    reply = await api.call("GET", f"/v1/sandboxes/{made['id']}", params={"waitFor": "stopped", "timeoutSeconds": 0})

    assert (reply.status_code, reply.json()["state"]) == (200, "running")


async def test_a_list_filters_by_state_label_and_name(api: Api) -> None:
    one = await api.create(name="one", labels={"team": "a", "url": "http://x"})
    await api.create(labels={"team": "b"})

    async def ids(**query: Any) -> list[str]:
        reply = await api.call("GET", "/v1/sandboxes", params=query)
        assert reply.status_code == 200, reply.text
        return [sandbox["id"] for sandbox in reply.json()["data"]]

    assert await ids(label=["team:a", "url:http://x"]) == [one["id"]]
    assert await ids(name="one") == [one["id"]]
    assert await ids(state="paused") == []
    assert len(await ids(state=["starting", "running"])) == 2


async def test_a_list_is_walked_by_its_cursor(api: Api) -> None:
    made = [(await api.create())["id"] for _ in range(5)]
    seen, cursor = [], None
    for _ in range(10):
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.call("GET", "/v1/sandboxes", params=query)).json()
        seen += [sandbox["id"] for sandbox in page["data"]]
        if (cursor := page["nextCursor"]) is None:
            break

    assert sorted(seen) == sorted(made)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "state=lost", "label=x", "stat=running", "cursor=x"])
async def test_a_wrong_query_is_a_bad_request(api: Api, query: str) -> None:
    reply = await api.call("GET", f"/v1/sandboxes?{query}")

    issues = reply.json()["error"]["details"]["issues"]
    assert (reply.status_code, issues[0]["field"].split(".")[0]) == (400, query.split("=")[0])


async def test_delete_works_twice_and_then_there_is_none(api: Api) -> None:
    made = await api.create(name="one", labels={"a": "b"})
    first = await api.call("DELETE", f"/v1/sandboxes/{made['id']}")
    again = await api.call("DELETE", f"/v1/sandboxes/{made['id']}")

    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["labels"]) == ("deleted", {"a": "b"})
    for reply in (
        await api.call("GET", f"/v1/sandboxes/{made['id']}"),
        await api.call("POST", f"/v1/sandboxes/{made['id']}:stop", {}),
        await api.exec(made["id"], command="true"),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


async def test_a_stopped_sandbox_says_so_to_whoever_wants_in(api: Api) -> None:
    made = await api.create()
    stop = await api.http.post(f"/v1/sandboxes/{made['id']}:stop", json={}, headers={"Prefer": "wait=60"})

    reply = await api.exec(made["id"], command="true")

    assert (stop.json()["state"], stop.json()["stopReason"]) == ("stopped", "requested")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "sandbox_stopped")


async def test_verbs_on_one_sandbox(api: Api) -> None:
    path = f"/v1/sandboxes/{(await api.create())['id']}"

    extended = (await api.call("POST", f"{path}:extend", {"seconds": 60})).json()
    updated = (await api.call("POST", f"{path}:update", {"name": "new", "onTimeout": "delete"})).json()
    cleared = (await api.call("POST", f"{path}:update", {"name": None})).json()
    kept = (await api.call("POST", f"{path}:retention", {"days": 7})).json()

    assert extended["endsAt"] > extended["createdAt"]
    assert (updated["name"], updated["onLeaseEnd"]) == ("new", "delete")
    assert cleared["name"] is None
    assert kept["retentionDays"] == 7


@pytest.mark.parametrize("verb", ["resize", "switch-image"])
async def test_verbs_that_are_not_built_say_so(api: Api, verb: str) -> None:
    made = await api.create()

    reply = await api.call("POST", f"/v1/sandboxes/{made['id']}:{verb}", {})

    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "unavailable")


async def test_waking_one_that_is_awake_is_not_paused(api: Api) -> None:
    reply = await api.call("POST", f"/v1/sandboxes/{(await api.create())['id']}:wake", {})

    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_paused")
