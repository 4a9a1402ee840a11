"""Money over the API: what is refused, held, charged, given back, shown and noted."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from runtimed.admin_work import Operator
from runtimed.billing.pricebook import default_book
from runtimed.billing.quote import worst_case
from runtimed.billing.rating import Terms
from runtimed.core import ledger
from runtimed.core.errors import InvalidRequest
from runtimed.core.ids import AccountId, KeyId
from runtimed.core.ledger import Entry
from runtimed.core.money import Micros
from runtimed.store.audit import AuditQuery
from runtimed.store.books import AccountTerms, Books
from runtimed.store.money_schema import audit_lines
from runtimed.store.operator_views import OperatorViews

from .conftest import Api

LEASE_S = 1800
WORST = worst_case(Terms(rates=default_book().periods[-1].rates, vcpu=2, memory_mib=4096), LEASE_S * 1000)


async def bound(api: Api, *, day: int | None = None, credit: int | None = None, places: int | None = None) -> KeyId:
    """Give the account and its key limits. Answers the key."""
    me = (await api.http.get("/v1/me")).json()
    books, key = Books(api.database), KeyId(me["credentialId"])
    async with books.open(me["orgId"]) as opened:
        await opened.set_terms(AccountTerms(prepaid=credit is not None, sandboxes_max=places))
        await opened.set_day_limit(key, None if day is None else Micros(day))
        if credit:
            target = ledger.credit(me["orgId"])
            grant = {"key": "g", "at_s": 0.0, "reason": "grant", "account_id": me["orgId"]}
            await opened.post([Entry(source=ledger.GRANTED, target=target, amount=credit, **grant)])  # type: ignore[arg-type]
    return key


async def test_a_sandbox_holds_its_lease_charges_its_use_and_gives_the_rest_back(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(600)
    stopped = (await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})).json()

    assert (made["chargedMicros"], made["heldMicros"]) == (0, WORST)
    assert (stopped["chargedMicros"], stopped["heldMicros"]) == (31_250 // 6, 0)
    assert (await api.http.get(f"/v1/sandboxes/{made['id']}")).json()["chargedMicros"] == 31_250 // 6
    assert await Books(api.database).problems() == []


async def test_a_running_sandbox_is_charged_as_it_goes(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    shown = (await api.http.get(f"/v1/sandboxes/{made['id']}")).json()

    assert shown["chargedMicros"] == 520
    assert shown["heldMicros"] == WORST - 520


async def test_a_hundred_creates_at_once_with_a_limit_for_seven_make_seven_sandboxes(api: Api) -> None:
    await bound(api, day=7 * WORST)
    replies = await asyncio.gather(*(api.http.post("/v1/sandboxes", json={}) for _ in range(100)))
    made = [reply.json() for reply in replies if reply.status_code == 201]
    refused = [reply.json()["error"] for reply in replies if reply.status_code != 201]

    assert len(made) == 7
    assert {(e["status"], e["code"]) for e in refused} == {(402, "spending_limit_reached")}
    assert "hint" in refused[0]
    assert len((await api.http.get("/v1/sandboxes")).json()["data"]) == 7
    limits = (await api.http.get("/v1/limits")).json()
    assert limits["daily"]["usedMicros"] == str(7 * WORST)
    assert limits["daily"]["remainingMicros"] == "0"

    for sandbox in made:
        await api.http.delete(f"/v1/sandboxes/{sandbox['id']}")
    assert (await api.http.get("/v1/limits")).json()["daily"]["heldMicros"] == "0"
    assert await Books(api.database).problems() == []


@pytest.mark.parametrize(
    ("bounds", "body", "status", "code"),
    [
        ({}, {"maxCostMicros": WORST - 1}, 409, "budget_exceeded"),
        ({}, {"maxTotalCostMicros": 0}, 409, "budget_exceeded"),
        ({"credit": 100}, {"funding": "paid"}, 402, "insufficient_funds"),
        ({"day": WORST - 1}, {}, 402, "spending_limit_reached"),
        ({"places": 0}, {}, 429, "quota_exceeded"),
        ({}, {"maxCostMicros": -1}, 400, "invalid_request"),
        ({}, {"maxCostMicros": 10**30}, 400, "invalid_request"),
        ({}, {"maxTotalCostMicros": 1.5}, 400, "invalid_request"),
        ({}, {"funding": "gift"}, 400, "invalid_request"),
    ],
)
async def test_what_may_not_be_paid_starts_nothing_and_charges_nothing(
    api: Api, bounds: dict[str, int], body: dict[str, Any], status: int, code: str
) -> None:
    await bound(api, **bounds)
    reply = await api.http.post("/v1/sandboxes", json=body)

    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert api.node.specs == {}
    assert (await api.http.get("/v1/sandboxes?includeStopped=true")).json()["data"] == []
    assert await Books(api.database).open_tabs() == []


async def test_a_refusal_over_places_is_one_that_clients_wait_for(api: Api) -> None:
    await bound(api, places=1)
    first = await api.create()
    refused = await api.http.post("/v1/sandboxes", json={})
    await api.http.delete(f"/v1/sandboxes/{first['id']}")

    assert refused.json()["error"]["code"] == "quota_exceeded"
    assert "retryable" not in refused.json()["error"]
    await api.create()


async def test_the_trial_runs_out_and_never_becomes_credit(api: Api) -> None:
    await bound(api, credit=10**9)
    for _ in range(2):
        await api.create(funding="trial", timeoutSeconds=86_400)
    reply = await api.http.post("/v1/sandboxes", json={"funding": "trial", "timeoutSeconds": 86_400})
    limits = (await api.http.get("/v1/limits")).json()

    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "trial_exhausted")
    assert (limits["trial"]["totalMs"], limits["trial"]["availableMs"]) == (180_000_000, 7_200_000)
    assert limits["credit"]["availableMicros"] == str(10**9)


async def test_a_trial_sandbox_costs_nothing_and_gives_its_hours_back(api: Api) -> None:
    made = await api.create(funding="trial")
    held = (await api.http.get("/v1/limits")).json()["trial"]
    await api.clock.advance(60)
    stopped = (await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})).json()

    assert (made["heldMicros"], stopped["chargedMicros"], stopped["trial"]) == (0, 0, True)
    assert held["heldMs"] == held["usedMs"] == LEASE_S * 1000
    after = (await api.http.get("/v1/limits")).json()["trial"]
    assert (after["usedMs"], after["heldMs"]) == (60_000, 0)


async def test_extending_past_the_limit_is_refused_and_the_lease_stays(api: Api) -> None:
    await bound(api, day=WORST)
    made = await api.create()
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:extend", json={"seconds": 3600})
    now = (await api.http.get(f"/v1/sandboxes/{made['id']}")).json()

    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "spending_limit_reached")
    assert (now["endsAt"], now["heldMicros"]) == (made["endsAt"], WORST)


async def test_a_sandbox_that_has_spent_its_cap_is_ended_with_that_reason(api: Api) -> None:
    made = await api.create(maxTotalCostMicros=1000)
    await api.clock.advance(200)
    await api.service.metering.reconcile()
    ended = (await api.http.get(f"/v1/sandboxes/{made['id']}?waitFor=stopped&timeoutSeconds=10")).json()

    assert (ended["stopReason"], ended["chargedMicros"], ended["heldMicros"]) == ("lifetime_cap", 1000, 0)


async def test_a_cap_can_be_set_raised_and_lifted_but_not_below_what_is_held(api: Api) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}:update"
    low = await api.http.post(path, json={"maxTotalCostMicros": WORST - 1})
    fits = await api.http.post(path, json={"maxTotalCostMicros": WORST})
    lifted = await api.http.post(path, json={"maxTotalCostMicros": None})

    assert low.status_code == 400
    assert low.json()["error"]["details"]["issues"][0]["field"] == "maxTotalCostMicros"
    assert (fits.status_code, lifted.status_code) == (200, 200)


async def test_a_daily_limit_below_what_is_spent_and_held_is_refused_with_its_field(api: Api) -> None:
    key = await bound(api)
    await api.create()
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    operator = Operator(api.database, api.clock)
    with pytest.raises(InvalidRequest) as refused:
        await operator.limit_key(key, f"{(WORST - 1) / 10**6:.6f}")
    fits = await operator.limit_key(key, f"{WORST / 10**6:.6f}")

    assert refused.value.details["issues"][0]["field"] == "daily-limit"  # type: ignore[index]
    assert fits["dailyLimitMicros"] == WORST


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_a_clock_that_jumps_changes_neither_charge_nor_lease(api: Api, jump_s: int) -> None:
    made = await api.create(timeoutSeconds=900, onLeaseEnd="stop")
    await api.clock.advance(300)
    await api.service.metering.reconcile()
    api.clock._now_s += jump_s
    await api.service.leases.reconcile()
    await api.clock.advance(300)
    await api.service.metering.reconcile()
    running = (await api.http.get(f"/v1/sandboxes/{made['id']}")).json()
    await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})
    receipt = (await api.http.get(f"/v1/sandboxes/{made['id']}/receipt")).json()

    assert running["state"] == "running"
    assert (receipt["runningSeconds"], receipt["totalMicros"]) == (600, 31_250 // 6)


async def test_a_create_that_fails_costs_nothing(api: Api) -> None:
    from runtimed.core.errors import StartFailed

    api.node.start_error = StartFailed("it does not boot")
    reply = await api.http.post("/v1/sandboxes", json={}, headers={"Prefer": "wait=10"})
    sandbox_id = reply.json()["error"]["details"]["sandboxId"]
    record = (await api.http.get(f"/v1/sandboxes/{sandbox_id}")).json()

    assert (record["stopReason"], record["chargedMicros"], record["heldMicros"]) == ("startup_failed", 0, 0)


@pytest.mark.parametrize("credit", [None, 10**6])
async def test_a_key_and_the_operator_are_shown_the_same_money(api: Api, credit: int | None) -> None:
    await bound(api, credit=credit)
    await api.create()
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    shown = (await api.http.get("/v1/limits")).json()["credit"]
    (view,) = await OperatorViews(api.database).accounts()

    assert int(shown["heldMicros"]) == view.held == WORST - 520
    assert int(shown["owedMicros"]) == view.owed == (0 if credit else 520)
    assert int(shown["availableMicros"] or 0) == view.credit == (credit - WORST if credit else 0)


async def test_what_was_owed_stays_owed_when_the_account_begins_to_pay_before(api: Api) -> None:
    await api.create()
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    await bound(api, credit=10**6)
    shown = (await api.http.get("/v1/limits")).json()["credit"]
    (view,) = await OperatorViews(api.database).accounts()

    assert (int(shown["owedMicros"]), int(shown["availableMicros"])) == (view.owed, view.credit) == (520, 10**6)


async def test_a_repeated_create_is_one_sandbox_and_one_bill(api: Api) -> None:
    first = await api.call("POST", "/v1/sandboxes", {}, key="k1")
    again = await api.call("POST", "/v1/sandboxes", {}, key="k1")

    assert first.json()["id"] == again.json()["id"]
    assert len(await Books(api.database).open_tabs()) == 1


async def test_a_receipt_has_lines_that_sum_to_its_entries(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(900)
    await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})
    receipt = (await api.http.get(f"/v1/sandboxes/{made['id']}/receipt")).json()
    entries = await Books(api.database).entries(made["id"])

    assert receipt["final"]
    assert receipt["totalMicros"] == sum(line["micros"] for line in receipt["lines"]) == 31_250 // 4
    assert receipt["totalMicros"] == sum(e.amount for e in entries if e.reason == "charge")
    assert receipt["lines"] == [
        {
            "what": "memory reserved",
            "quantity": "1",
            "unit": "GiB-hour",
            "usdPerUnit": "0.0078125",
            "micros": 31_250 // 4,
        }
    ]
    assert receipt["waitedShare"] == 1.0


async def test_the_receipt_of_a_deleted_sandbox_is_there_for_who_may_see_it_and_nothing_else_of_it(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(900)
    await api.http.delete(f"/v1/sandboxes/{made['id']}")
    _, other = await api.new_key(account_wide=False)
    path = f"/v1/sandboxes/{made['id']}/receipt"

    receipt = await api.http.get(path)

    assert (receipt.status_code, receipt.json()["totalMicros"], receipt.json()["final"]) == (200, 31_250 // 4, True)
    assert (await api.http.get(path, headers=other)).status_code == 404
    assert (await api.http.get(f"/v1/sandboxes/{made['id']}")).status_code == 404


async def test_usage_sums_what_was_used_and_exports_it_as_csv(api: Api) -> None:
    made = await api.create(name="worker")
    await api.clock.advance(600)
    await api.service.metering.reconcile()
    usage = (await api.http.get("/v1/usage")).json()
    export = (await api.http.get("/v1/usage/export")).json()
    rows = list(csv.DictReader(io.StringIO(export["csv"])))

    assert usage["spentMicros"] == str(31_250 // 6)
    assert usage["spent"] == usage["spentMicros"]
    assert (usage["resources"][0]["id"], usage["resources"][0]["name"]) == (made["id"], "worker")
    assert sum(float(row["running_seconds"]) for row in rows) == 600
    assert sum(int(row["micros"]) for row in export["data"]) == 31_250 // 6
    assert export["nextCursor"] is None


async def test_an_export_comes_in_pages_without_gap_or_repeat(api: Api) -> None:
    for _ in range(3):
        await api.create()
    for _ in range(3):
        await api.clock.advance(60)
        await api.service.metering.reconcile()
    whole = (await api.http.get("/v1/usage/export")).json()["data"]
    pages, cursor = [], None
    while True:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await api.http.get("/v1/usage/export", params=query)).json()
        pages += page["data"]
        if (cursor := page["nextCursor"]) is None:
            break

    assert pages == whole
    assert len(whole) == 9


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/usage?since=yesterday", "since"),
        ("/v1/usage?since=2026-01-01T00:00:00", "since"),  # without an offset it could be anywhere
        ("/v1/usage?since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z", "since"),
        ("/v1/usage?since=2000-01-01T00:00:00Z", "since"),
        ("/v1/usage/export?cursor=nonsense", "cursor"),
        ("/v1/usage/export?limit=0", "limit"),
        ("/v1/usage/requests?range=1y", "range"),
        ("/v1/audit?limit=-1", "limit"),
        ("/v1/audit?colour=red", "colour"),
    ],
)
async def test_a_wrong_query_is_refused_naming_the_field(api: Api, path: str, field: str) -> None:
    reply = await api.http.get(path)

    assert reply.status_code == 400
    assert [issue["field"] for issue in reply.json()["error"]["details"]["issues"]] == [field]


async def test_a_key_that_is_not_account_wide_sees_only_its_own(api: Api) -> None:
    await api.create()
    _, own = await api.new_key(account_wide=False)
    mine = (await api.http.post("/v1/sandboxes", json={}, headers={**own, "Prefer": "wait=10"})).json()
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    usage = (await api.http.get("/v1/usage", headers=own)).json()
    audit = (await api.http.get("/v1/audit", headers=own)).json()

    assert [use["id"] for use in usage["resources"]] == [mine["id"]]
    assert [event["target"] for event in audit["events"]] == [mine["id"]]


async def test_every_change_is_noted_with_who_when_from_where_and_its_request(api: Api) -> None:
    created = await api.http.post("/v1/sandboxes", json={"vcpu": 1}, headers={"Prefer": "wait=10"})
    sandbox_id = created.json()["id"]
    await api.exec(sandbox_id, command="TOKEN=secret python3 -c 'print(1)' --password hunter2")
    await api.exec(sandbox_id, argv=["/usr/bin/env", "true"])
    await api.http.get(f"/v1/sandboxes/{sandbox_id}")
    await api.http.post("/v1/sandboxes", json={"vcpu": 99})
    await api.http.delete(f"/v1/sandboxes/{sandbox_id}")
    events = (await api.http.get("/v1/audit")).json()["events"]
    key = (await api.http.get("/v1/me")).json()["credentialId"]

    assert [(e["action"], e["outcome"]) for e in reversed(events)] == [
        ("sandbox.create", "done"),
        ("command.run", "done"),
        ("command.run", "done"),
        ("sandbox.create", "refused 400"),
        ("sandbox.delete", "done"),
    ]
    first, shell, argv = events[4], events[3], events[2]
    assert (first["target"], first["actor"]) == (sandbox_id, f"key:{key}")
    assert first["requestId"] == created.headers["x-request-id"]
    assert first["address"] == "127.0.0.1"
    assert first["details"] == {"image": "default", "vcpu": 1, "memoryMiB": 4096}
    assert (shell["details"]["program"], shell["details"]["exitCode"]) == ("bash", 0)
    assert argv["details"]["program"] == "env"
    assert "hunter2" not in str(events)
    assert "secret" not in str(events)
    assert await api.service.services.auditor.problems() == []


async def test_a_streamed_command_is_noted_with_its_exit_code(api: Api) -> None:
    made = await api.create()
    reply = await api.exec(made["id"], argv=["ls"], stream=True)
    assert reply.status_code == 200
    (event,) = (await api.http.get("/v1/audit?action=command.run")).json()["events"]

    assert (event["details"]["program"], event["details"]["exitCode"]) == ("ls", 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_who_was_told_that_a_command_is_over_finds_it_noted(api: Api, stream: bool) -> None:
    made = await api.create()
    account, auditor = AccountId(api.account_id), api.service.services.auditor
    seen = []

    async def asking(scope: Any, receive: Any, send: Any) -> None:
        async def send_then_ask(message: Any) -> None:
            await send(message)
            if b"exitCode" in message.get("body", b""):  # the client has just read how it went
                page = await auditor.page(AuditQuery(account_id=account, action="command.run"))
                seen.append([line.event.details["exitCode"] for line in page])

        await api.service.app(scope, receive, send_then_ask)

    headers = {"Authorization": api.http.headers["Authorization"]}
    transport = httpx.ASGITransport(asking)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        await http.post(f"/v1/sandboxes/{made['id']}:exec", json={"argv": ["ls"], "stream": stream})

    assert seen == [[0]]
    assert len((await api.http.get("/v1/audit?action=command.run")).json()["events"]) == 1


async def test_a_repeat_is_not_noted_again(api: Api) -> None:
    await api.call("POST", "/v1/sandboxes", {}, key="k1")
    await api.call("POST", "/v1/sandboxes", {}, key="k1")

    assert len((await api.http.get("/v1/audit?action=sandbox.create")).json()["events"]) == 1


async def test_the_log_is_read_in_pages_and_an_edited_line_is_found(api: Api) -> None:
    for _ in range(5):
        await api.create()
    first = (await api.http.get("/v1/audit?limit=3")).json()
    rest = (await api.http.get(f"/v1/audit?limit=3&before={first['next']}")).json()
    async with api.database.writing() as db:
        await db.execute(update(audit_lines).where(audit_lines.c.number == 2).values(actor="key:nobody"))

    checked = (await api.http.get("/v1/audit/verify")).json()
    group = (await api.http.get("/v1/audit?action=sandbox.")).json()

    assert [e["number"] for e in [*first["events"], *rest["events"]]] == [5, 4, 3, 2, 1]
    assert rest["next"] is None
    assert len(group["events"]) == 5
    assert (checked["clean"], checked["lines"]) == (False, 5)
    assert [problem["number"] for problem in checked["problems"]] == [2]


async def test_requests_are_counted_with_their_refusals(api: Api) -> None:
    await api.create()
    await api.http.post("/v1/sandboxes", json={"vcpu": 99})
    shown = (await api.http.get("/v1/usage/requests")).json()
    creates = next(o for o in shown["operations"] if o["operation"] == "POST /v1/sandboxes")

    assert (creates["requests"], creates["failed"]) == ("2", "1")


async def test_a_read_only_key_reads_money_and_audit_and_is_refused_every_change(api: Api) -> None:
    """Walks the API's own document, so that a new route cannot be forgotten."""
    made = await api.create()
    _, reader = await api.new_key(kind="read_only")
    for path in ("/v1/usage", "/v1/limits", "/v1/audit", "/v1/sandboxes", "/v1/usage/export", "/v1/usage/requests"):
        assert (await api.http.get(path, headers=reader)).status_code == 200, path
    assert (await api.http.get(f"/v1/sandboxes/{made['id']}/receipt", headers=reader)).status_code == 200
    paths = (await api.http.get("/v1/openapi.json")).json()["paths"]
    changing = [
        (method, path) for path, methods in paths.items() for method in methods if method not in ("get", "head")
    ]
    for method, path in changing:
        there = path.replace("{sandbox_id}", made["id"])
        reply = await api.http.request(method.upper(), there, headers=reader, json={})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden"), (method, path)

    assert len(changing) >= 20
    assert (await api.http.get(f"/v1/sandboxes/{made['id']}")).json()["state"] == "running"
