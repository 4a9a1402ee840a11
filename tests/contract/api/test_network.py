"""Network rules, records and secrets as a client sees them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from runtimed.core.egress import Happened
from runtimed.main import Service, build_service
from runtimed.settings import Settings
from runtimed.store.schema import idempotency

from .conftest import Api

VALUE = "a-secret-value-of-the-test"


def judge(service: Service, sandbox_id: str, *hosts: str) -> None:
    """The gateway refuses these, as it does for a guest."""
    for host in hosts:
        happened = Happened(what="connection", host=host, port=443, allowed=False, rule="not in allow")
        service.services.egress._parts.audit.write(sandbox_id, happened)  # type: ignore[attr-defined]


async def test_a_sandbox_without_rules_has_the_open_internet(api: Api) -> None:
    made = await api.create()
    shown = (await api.call("GET", f"/v1/sandboxes/{made['id']}/network")).json()

    assert (shown["sandboxId"], shown["internet"], shown["version"]) == (made["id"], True, 1)
    assert "allow" not in shown and shown["enforced"] is True and shown["enforcedVersion"] == 1
    assert 25 in shown["forbiddenPorts"] and shown["updatedAt"].endswith("Z")


async def test_rules_of_a_create_are_bound_before_its_machine_runs(api: Api) -> None:
    made = await api.create(network={"internet": True, "allow": ["A.test.", "10.0.0.1/8"], "connect": ["db.test:5432"]})
    shown = (await api.call("GET", f"/v1/sandboxes/{made['id']}/network")).json()

    assert shown["allow"] == ["a.test", "10.0.0.0/8"] and shown["connect"] == ["db.test:5432"]
    bound = api.service.services.egress.binding(made["id"])
    assert bound is not None and bound.rules.as_json()["allow"] == ["a.test", "10.0.0.0/8"]


async def test_a_put_replaces_all_rules_and_raises_the_version(api: Api) -> None:
    made = await api.create(network={"internet": True, "allow": ["a.test"]})
    path = f"/v1/sandboxes/{made['id']}/network"
    shown = (await api.call("PUT", path, {"internet": True, "deny": ["b.test"]})).json()

    assert (shown["version"], shown["deny"], shown.get("allow")) == (2, ["b.test"], None)
    bound = api.service.services.egress.binding(made["id"])
    assert bound is not None and bound.rules.allow is None


async def test_no_internet_with_a_list_is_shown_as_that_list(api: Api) -> None:
    made = await api.create(network={"internet": False, "allow": ["a.test"]})
    shown = (await api.call("GET", f"/v1/sandboxes/{made['id']}/network")).json()

    assert (shown["internet"], shown["allow"]) == (True, ["a.test"])


@pytest.mark.parametrize("where", ["create", "put"])
async def test_every_wrong_rule_is_named_and_nothing_changes(api: Api, where: str) -> None:
    rules = {"internet": True, "allow": ["fine.test", "a b"], "deny": ["https://x"], "connect": ["a.test"]}
    made = await api.create()
    if where == "create":
        reply, begin = await api.call("POST", "/v1/sandboxes", {"network": rules}), "network."
    else:
        reply, begin = await api.call("PUT", f"/v1/sandboxes/{made['id']}/network", rules), ""

    assert reply.status_code == 400
    fields = {issue["field"] for issue in reply.json()["error"]["details"]["issues"]}
    assert fields == {f"{begin}allow.1", f"{begin}deny.0", f"{begin}connect.0"}
    assert (await api.call("GET", f"/v1/sandboxes/{made['id']}/network")).json()["version"] == 1


async def test_a_stopped_sandbox_is_bound_to_nothing(api: Api) -> None:
    made = await api.create()
    await api.call("DELETE", f"/v1/sandboxes/{made['id']}")

    assert api.service.services.egress.binding(made["id"]) is None


async def test_another_account_sees_neither_rules_nor_records(api: Api) -> None:
    made = await api.create()
    _, narrow = await api.new_key(account_wide=False)
    for path in ("network", "egress"):
        reply = await api.http.get(f"/v1/sandboxes/{made['id']}/{path}", headers=narrow)
        assert reply.status_code == 404


async def test_records_come_in_order_and_go_on_after_a_sequence(api: Api) -> None:
    made = await api.create()
    judge(api.service, made["id"], "a.test", "b.test")
    first = (await api.call("GET", f"/v1/sandboxes/{made['id']}/egress?limit=1")).json()
    rest = (await api.call("GET", f"/v1/sandboxes/{made['id']}/egress?after={first['nextAfter']}")).json()

    assert [r["host"] for r in first["data"]] == ["a.test"] and [r["host"] for r in rest["data"]] == ["b.test"]
    assert rest["data"][0].keys() >= {"at", "what", "host", "port", "allowed", "rule", "bytesOut", "bytesIn"}


async def test_records_are_shown_after_a_restart_and_new_ones_come_after_them(api: Api, tmp_path: Path) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}/egress"
    judge(api.service, made["id"], "a.test", "b.test")
    before = (await api.call("GET", path)).json()
    await api.service.egress_log.close()

    settings = Settings(state_dir=tmp_path, cache_dir=tmp_path)
    again = await build_service(settings, node=api.node, database=api.database, clock=api.clock)
    transport = httpx.ASGITransport(again.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=api.http.headers) as http:
        shown = (await http.get(path)).json()
        judge(again, made["id"], "c.test")
        later = (await http.get(path, params={"after": shown["nextAfter"]})).json()
    await again.services.idempotency.close()

    assert shown == before and [r["host"] for r in shown["data"]] == ["a.test", "b.test"]
    assert [r["host"] for r in later["data"]] == ["c.test"] and later["nextAfter"] > shown["nextAfter"]


async def test_what_a_killed_service_had_shown_and_not_stored_hides_nothing_that_comes_later(
    api: Api, tmp_path: Path
) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}/egress"
    judge(api.service, made["id"], "a.test", "b.test")
    seen = (await api.call("GET", path)).json()["nextAfter"]

    settings = Settings(state_dir=tmp_path, cache_dir=tmp_path)
    again = await build_service(settings, node=api.node, database=api.database, clock=api.clock)
    judge(again, made["id"], "c.test")
    later = await again.services.egress_records.page(made["id"], after=seen, limit=10)
    await again.services.idempotency.close()

    assert [record.happened.host for record in later] == ["c.test"]


async def test_following_shows_what_is_stored_then_what_comes(api: Api, port: int) -> None:
    made = await api.create()
    judge(api.service, made["id"], "a.test")
    await api.service.egress_log.flush()
    judge(api.service, made["id"], "b.test")
    hosts = list[str]()
    url = f"http://127.0.0.1:{port}/v1/sandboxes/{made['id']}/egress?follow=true"
    async with (
        httpx.AsyncClient(headers={"Authorization": api.http.headers["Authorization"]}, timeout=10) as http,
        http.stream("GET", url) as reply,
    ):
        async for text in reply.aiter_lines():
            if not text:
                continue
            hosts.append(json.loads(text)["host"])
            if hosts[-1] == "b.test":
                judge(api.service, made["id"], "c.test")
                await api.service.egress_log.flush()
            if hosts[-1] == "c.test":
                break

    assert hosts == ["a.test", "b.test", "c.test"]


async def test_records_of_a_deleted_sandbox_are_removed(api: Api) -> None:
    made, other = await api.create(), await api.create()
    judge(api.service, made["id"], "a.test")
    judge(api.service, other["id"], "a.test")
    await api.call("DELETE", f"/v1/sandboxes/{made['id']}")
    await api.service.egress_log.flush()

    await api.service.egress_log.tidy()

    page = api.service.services.egress_records.page
    assert await page(made["id"], after=0, limit=10) == [] and len(await page(other["id"], after=0, limit=10)) == 1


async def test_a_secret_is_stored_sealed_and_its_value_is_in_no_answer(api: Api) -> None:
    body = {"value": VALUE, "hosts": ["api.test"], "header": "X-Key", "rules": [{"paths": ["/v1/*"]}]}
    stored = await api.call("PUT", "/v1/egress-secrets/KEY", body)
    listed = await api.call("GET", "/v1/egress-secrets")
    database = next(api.service.services.egress._parts.audit._path.parent.parent.glob("*.db"))  # type: ignore[attr-defined]

    assert stored.status_code == 200 and stored.json()["placeholder"].startswith("rtsec_")
    assert [s["name"] for s in listed.json()["secrets"]] == ["KEY"] and listed.json()["next"] is None
    assert VALUE not in stored.text + listed.text
    for path in database.parent.glob("*.db*"):
        assert VALUE.encode() not in path.read_bytes()


async def test_replacing_a_secret_keeps_its_placeholder(api: Api) -> None:
    first = (await api.call("PUT", "/v1/egress-secrets/KEY", {"value": "v1", "hosts": ["a.test"]})).json()
    second = (await api.call("PUT", "/v1/egress-secrets/KEY", {"value": "v2", "hosts": ["b.test"]})).json()

    assert first["placeholder"] == second["placeholder"] and second["hosts"] == ["b.test"]


async def test_sandboxes_see_placeholders_of_the_secrets_that_they_may_use(api: Api) -> None:
    await api.call("PUT", "/v1/egress-secrets/ONE", {"value": "v", "hosts": ["a.test"], "env": "FIRST"})
    await api.call("PUT", "/v1/egress-secrets/TWO", {"value": "v", "hosts": ["a.test"]})
    everything, narrowed, nothing = await api.create(), await api.create(secrets=["TWO"]), await api.create(secrets=[])
    seen = [api.service.services.egress.secrets_of(made["id"]) for made in (everything, narrowed, nothing)]

    assert [sorted(s.plan.variable for s in some) for some in seen] == [["FIRST", "TWO"], ["TWO"], []]
    assert narrowed["secrets"] == ["TWO"] and nothing["secrets"] == [] and everything["secrets"] is None


async def test_a_create_or_a_fork_that_names_an_unknown_secret_is_refused_with_the_field(api: Api) -> None:
    await api.call("PUT", "/v1/egress-secrets/ONE", {"value": "v", "hosts": ["a.test"]})
    create = await api.call("POST", "/v1/sandboxes", {"secrets": ["ONE", "TYPO", "OTHER"]})
    running = api.node.running()
    made = await api.create(secrets=["ONE"])
    fork = await api.call("POST", f"/v1/sandboxes/{made['id']}:fork", {"secrets": ["TYPO"]})

    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in (create, fork)] == [
        (400, "invalid_request"),
        (400, "invalid_request"),
    ]
    assert [issue["field"] for issue in create.json()["error"]["details"]["issues"]] == ["secrets.1", "secrets.2"]
    assert "TYPO" in fork.json()["error"]["message"]
    assert (running, api.node.running()) == (frozenset(), frozenset({made["id"]}))


@pytest.mark.parametrize("host", ["*.com", "*.COM.", "*.co.uk", "*.github.io:8443"])
async def test_a_secret_for_every_host_of_a_public_suffix_is_refused(api: Api, host: str) -> None:
    reply = await api.call("PUT", "/v1/egress-secrets/KEY", {"value": VALUE, "hosts": ["api.test", host]})

    (issue,) = reply.json()["error"]["details"]["issues"]
    assert (reply.status_code, issue["field"]) == (400, "hosts.1")
    assert "anybody can have a host under" in issue["message"]


async def test_what_a_request_held_cannot_be_tried_out_on_the_database(api: Api) -> None:
    body = {"value": VALUE, "hosts": ["a.test"]}
    first = await api.call("PUT", "/v1/egress-secrets/KEY", body, key="once")
    await api.service.services.idempotency.close()
    async with api.database.reading() as db:
        kept = (await db.execute(select(idempotency.c.request_hash))).scalar_one()
    sent = first.request.content
    again = await api.call("PUT", "/v1/egress-secrets/KEY", body, key="once")
    other = await api.call("PUT", "/v1/egress-secrets/KEY", {**body, "value": "x"}, key="once")

    assert kept != hashlib.sha256(b"PUT /v1/egress-secrets/KEY\n" + sent).hexdigest()
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert other.json()["error"]["code"] == "idempotency_key_reused"


async def test_two_secrets_in_one_variable_are_refused(api: Api) -> None:
    await api.call("PUT", "/v1/egress-secrets/ONE", {"value": "v", "hosts": ["a.test"]})
    reply = await api.call("PUT", "/v1/egress-secrets/TWO", {"value": "v", "hosts": ["a.test"], "env": "ONE"})

    assert reply.status_code == 409


@pytest.mark.parametrize("field", ["only", "githubApp", "git", "api"])
async def test_what_is_not_built_of_secrets_is_refused_by_name(api: Api, field: str) -> None:
    reply = await api.call("PUT", "/v1/egress-secrets/KEY", {"value": "v", "hosts": ["a.test"], field: {"x": 1}})

    assert reply.status_code == 501 and field in reply.json()["error"]["message"]
    assert (await api.call("GET", "/v1/egress-secrets")).json()["secrets"] == []


async def test_a_wrong_secret_names_its_fields_and_never_quotes_the_value(api: Api) -> None:
    reply = await api.call(
        "PUT", "/v1/egress-secrets/1BAD", {"value": VALUE + "\n", "hosts": ["a.test/path", "1.2.3.4"]}
    )

    fields = {issue["field"] for issue in reply.json()["error"]["details"]["issues"]}
    assert reply.status_code == 400 and fields == {"name", "value", "hosts.0", "hosts.1"}
    assert VALUE not in reply.text


async def test_a_read_only_key_changes_neither_rules_nor_secrets(api: Api) -> None:
    made = await api.create()
    _, headers = await api.new_key(kind="read_only")
    rules, secret = {"internet": False}, {"value": "v", "hosts": ["a.test"]}
    replies = [
        await api.http.put(f"/v1/sandboxes/{made['id']}/network", json=rules, headers=headers),
        await api.http.put("/v1/egress-secrets/KEY", json=secret, headers=headers),
        await api.http.delete("/v1/egress-secrets/KEY", headers=headers),
    ]

    assert [reply.status_code for reply in replies] == [403, 403, 403]


async def test_deleting_a_secret_twice_is_a_404_the_second_time(api: Api) -> None:
    await api.call("PUT", "/v1/egress-secrets/KEY", {"value": "v", "hosts": ["a.test"]})

    assert (await api.call("DELETE", "/v1/egress-secrets/KEY")).json()["deleted"] is True
    assert (await api.call("DELETE", "/v1/egress-secrets/KEY")).status_code == 404
