"""Money over pause, wake, fork and restart: no lease is held for what does not run, and every copy pays for itself."""

from __future__ import annotations

from runtimed.billing.pricebook import default_book
from runtimed.billing.quote import worst_case
from runtimed.billing.rating import Terms
from runtimed.core.ids import KeyId
from runtimed.core.money import Micros
from runtimed.store.books import Books

from .conftest import Api

LEASE_S = 1800
WORST = worst_case(Terms(rates=default_book().periods[-1].rates, vcpu=2, memory_mib=4096), LEASE_S * 1000)


async def limit(api: Api, micros: int | None) -> None:
    me = (await api.http.get("/v1/me")).json()
    async with Books(api.database).open(me["orgId"]) as books:
        await books.set_day_limit(KeyId(me["credentialId"]), None if micros is None else Micros(micros))


async def seen(api: Api, sandbox_id: str) -> tuple[str, int, int]:
    shown = (await api.http.get(f"/v1/sandboxes/{sandbox_id}")).json()
    return shown["state"], shown["chargedMicros"], shown["heldMicros"]


async def verb(api: Api, sandbox_id: str, name: str) -> int:
    reply = await api.http.post(f"/v1/sandboxes/{sandbox_id}:{name}", headers={"Prefer": "wait=10"})
    return reply.status_code


async def test_a_pause_gives_the_lease_back_and_a_wake_holds_a_new_one(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(600)
    assert await verb(api, made["id"], "pause") == 200
    state, charged, held = await seen(api, made["id"])
    await api.clock.advance(6000)
    assert await verb(api, made["id"], "wake") == 200
    _, _, woken = await seen(api, made["id"])

    assert (state, charged) == ("paused", 31_250 // 6)
    assert held < WORST // 100  # for a day of what it stores
    assert WORST <= woken <= WORST + 1


async def test_a_wake_past_the_limit_is_refused_and_it_sleeps_on(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(600)
    await verb(api, made["id"], "pause")
    await limit(api, WORST)  # less than a lease is left of it
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:wake", headers={"Prefer": "wait=10"})
    state, charged, _ = await seen(api, made["id"])

    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "spending_limit_reached")
    assert (state, charged) == ("paused", 31_250 // 6)


async def test_a_command_that_would_wake_it_past_the_limit_says_so(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(600)
    await verb(api, made["id"], "pause")
    await limit(api, WORST)
    reply = await api.exec(made["id"], command="echo hi")

    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "spending_limit_reached")


async def test_each_copy_of_a_fork_has_a_tab_of_its_own(api: Api) -> None:
    made = await api.create()
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:fork", json={"count": 2})
    copies = [copy["id"] for copy in reply.json()["sandboxes"]]

    assert [(await seen(api, copy))[2] for copy in copies] == [WORST, WORST]
    assert len(await Books(api.database).open_tabs()) == 3


async def test_a_fork_that_cannot_be_paid_whole_makes_no_copy_and_holds_nothing(api: Api) -> None:
    made = await api.create()
    await limit(api, 2 * WORST)
    reply = await api.http.post(f"/v1/sandboxes/{made['id']}:fork", json={"count": 3})

    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "spending_limit_reached")
    assert [tab.sandbox_id for tab in await Books(api.database).open_tabs()] == [made["id"]]
    assert len((await api.http.get("/v1/sandboxes")).json()["data"]) == 1


async def test_a_machine_that_dies_is_settled_at_once(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(60)
    await api.node.kill(made["id"])
    ended = (await api.http.get(f"/v1/sandboxes/{made['id']}?waitFor=stopped&timeoutSeconds=10")).json()

    assert (ended["stopReason"], ended["chargedMicros"]) == ("host_lost", 520)
    assert ended["heldMicros"] < WORST // 100  # nothing, or a day of the disk that is kept


async def test_whatever_happened_the_books_balance_once_all_are_deleted(api: Api) -> None:
    made = await api.create()
    await api.http.post(f"/v1/sandboxes/{made['id']}:fork", json={"count": 2})
    await api.clock.advance(60)
    await verb(api, made["id"], "pause")
    await api.clock.advance(60)
    await verb(api, made["id"], "wake")
    await api.clock.advance(60)
    await api.service.metering.reconcile()
    for sandbox in (await api.http.get("/v1/sandboxes?includeStopped=true")).json()["data"]:
        assert (await api.http.delete(f"/v1/sandboxes/{sandbox['id']}")).status_code == 200
    books = Books(api.database)

    assert await books.open_tabs() == []
    assert await books.problems() == []
