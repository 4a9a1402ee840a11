"""CPU that is guaranteed: taken, shown, paid also when it is not used, and never promised twice."""

from __future__ import annotations

import asyncio

import pytest

from .conftest import Api

WAITING = 31_250
"""An hour of 2 vCPU and 4 GiB that wait, in microdollars."""
VCPU_HOUR = 17_500


@pytest.mark.parametrize(
    ("asked", "shown", "micros"),
    [
        ({}, ("shared", 50), WAITING),
        ({"cpuFloorMillis": 500}, ("shared", 500), WAITING + VCPU_HOUR // 2),
        ({"cpuFloorMillis": 0}, ("shared", 0), WAITING),
        ({"cpu": "reserved"}, ("reserved", 2000), WAITING + 2 * VCPU_HOUR),
        ({"cpuFloorMillis": 2000}, ("reserved", 2000), WAITING + 2 * VCPU_HOUR),
    ],
)
async def test_a_floor_is_shown_and_paid_only_where_it_was_asked_for(
    api: Api, asked: dict[str, object], shown: tuple[str, int], micros: int
) -> None:
    made = await api.create(timeoutSeconds=3600, onLeaseEnd="stop", idlePauseSeconds=0, **asked)
    await api.clock.advance(3600)
    ended = (await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})).json()

    assert (made["cpu"], made["cpuFloorMillis"]) == shown
    assert (ended["chargedMicros"], ended["heldMicros"]) == (micros, 0)


async def test_a_floor_takes_no_more_aside_than_all_vcpus_busy(api: Api) -> None:
    plain, reserved = await api.create(), await api.create(cpu="reserved")

    assert plain["heldMicros"] == reserved["heldMicros"]


async def test_a_receipt_says_that_a_floor_was_paid(api: Api) -> None:
    made = await api.create(cpuFloorMillis=500)
    await api.clock.advance(600)
    await api.http.post(f"/v1/sandboxes/{made['id']}:stop", headers={"Prefer": "wait=10"})
    receipt = (await api.http.get(f"/v1/sandboxes/{made['id']}/receipt")).json()

    assert "floor of 500" in receipt["lines"][0]["what"]
    assert receipt["cpuSeconds"] == 0  # as it was measured
    assert receipt["totalMicros"] == sum(line["micros"] for line in receipt["lines"])


async def test_no_more_is_guaranteed_than_the_host_has(api: Api) -> None:
    api.node.cores = 3
    first = await api.create(cpu="reserved")
    too_much = await api.call("POST", "/v1/sandboxes", {"cpu": "reserved"})
    plain = await api.create()
    fits = await api.create(cpuFloorMillis=1000)
    await api.http.post(f"/v1/sandboxes/{first['id']}:stop", headers={"Prefer": "wait=10"})
    again = await api.create(cpu="reserved")

    assert (too_much.status_code, too_much.json()["error"]["code"]) == (503, "no_capacity")
    assert "1000 thousandths of a core" in too_much.json()["error"]["message"]
    assert [s["state"] for s in (plain, fits, again)] == ["running"] * 3


async def test_a_pause_gives_a_floor_back_and_a_wake_asks_for_it_again(api: Api) -> None:
    api.node.cores = 2
    first = await api.create(cpu="reserved")
    await api.http.post(f"/v1/sandboxes/{first['id']}:pause", headers={"Prefer": "wait=10"})
    second = await api.create(cpu="reserved")
    refused = await api.http.post(f"/v1/sandboxes/{first['id']}:wake", json={}, headers={"Prefer": "wait=10"})
    await api.http.delete(f"/v1/sandboxes/{second['id']}")
    woken = await api.http.post(f"/v1/sandboxes/{first['id']}:wake", json={}, headers={"Prefer": "wait=10"})

    assert refused.json()["error"]["code"] == "no_capacity"
    assert (woken.json()["state"], woken.json()["cpu"]) == ("running", "reserved")


async def test_a_pause_that_is_still_being_written_keeps_its_floor(api: Api) -> None:
    api.node.cores, api.node.write_s = 2, 60.0
    first = await api.create(cpu="reserved")
    await api.http.post(f"/v1/sandboxes/{first['id']}:pause", headers={"Prefer": "wait=10"})
    early = await api.call("POST", "/v1/sandboxes", {"cpu": "reserved"})
    woken = await api.http.post(f"/v1/sandboxes/{first['id']}:wake", json={}, headers={"Prefer": "wait=10"})

    assert early.json()["error"]["code"] == "no_capacity"
    assert woken.json()["state"] == "running"


async def test_a_copy_has_its_sources_floor(api: Api) -> None:
    made = await api.create(cpuFloorMillis=1500)
    copies = (await api.call("POST", f"/v1/sandboxes/{made['id']}:fork", {})).json()["sandboxes"]

    assert [copy["cpuFloorMillis"] for copy in copies] == [1500]
    assert api.node.specs[copies[0]["id"]].cpu_floor_millis == 1500


async def test_what_no_host_could_guarantee_names_the_field(api: Api) -> None:
    api.node.cores = 2
    reply = await api.call("POST", "/v1/sandboxes", {"vcpu": 4, "cpu": "reserved"})

    assert reply.status_code == 400
    assert [issue["field"] for issue in reply.json()["error"]["details"]["issues"]] == ["cpuFloorMillis"]


async def test_creates_at_once_are_never_promised_more_than_there_is(api: Api) -> None:
    api.node.cores = 5
    asked = (api.http.post("/v1/sandboxes", json={"cpu": "reserved"}) for _ in range(20))
    codes = [reply.status_code for reply in await asyncio.gather(*asked)]

    assert (codes.count(201), codes.count(503)) == (2, 18)
