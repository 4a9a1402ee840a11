"""The pool of spares: who gets one, and who never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimed.core.errors import HostUnavailable
from runtimed.core.specs import Shape
from runtimed.core.wait import wait_for
from runtimed.node import spares as room
from runtimed.node.parts import Ready
from runtimed.node.spares import Kind, Spares, SpareSupply
from runtimed.node.vmm.base import Template

SMALL = Kind(image="default", shape=Shape(vcpu=1, memory_mib=512, disk_mib=3072))
TOOLS = Kind(image="tools", shape=SMALL.shape)


class Supply:
    """Makes spares of nothing, and remembers which were dropped."""

    def __init__(self) -> None:
        self.made: list[Ready] = []
        self.dropped: list[Ready] = []
        self.idle = True
        self.pressed = False
        self.failures = 0
        self.cannot: set[Kind] = set()
        self.keys = {SMALL: "now", TOOLS: "tools"}
        """Of each kind's template, as it is now."""

    async def current(self, kind: Kind) -> str | None:
        return self.keys[kind]

    async def make(self, kind: Kind) -> Ready:
        if self.failures or kind in self.cannot:
            self.failures = max(0, self.failures - 1)
            raise HostUnavailable("no room just now")
        closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        channel: Any = SimpleNamespace(closed=closed)
        plan: Any = SimpleNamespace(machine_id=str(len(self.made)))
        ready = Ready(plan=plan, template=Template(key=self.keys[kind], directory=Path("/t")), channel=channel)
        self.made.append(ready)
        return ready

    async def drop(self, ready: Ready) -> None:
        self.dropped.append(ready)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "QUIET_S", 0.001)
    monkeypatch.setattr(room, "RETRY_S", 0.001)
    monkeypatch.setattr(room, "LOOK_S", 0.001)


@pytest.fixture
def supply() -> Supply:
    return Supply()


def pool(supply: Supply, wanted: int, **more: int) -> Spares:
    return Spares(
        {SMALL: wanted, TOOLS: more.get("tools", 0)},
        SpareSupply(
            make=supply.make,
            drop=supply.drop,
            idle=lambda: supply.idle,
            pressed=lambda: supply.pressed,
            current=supply.current,
        ),
    )


async def full(spares: Spares, count: int, kind: Kind | None = None) -> None:
    async def there() -> bool | None:
        return spares.count(kind) == count or None

    await wait_for(f"{count} spares", there, within_s=5, every_s=0.002)


async def until(what: str, so: Callable[[], bool]) -> None:
    async def there() -> bool | None:
        return so() or None

    await wait_for(what, there, within_s=5, every_s=0.002)


async def test_a_taken_spare_is_replaced_and_never_handed_out_again(supply: Supply) -> None:
    spares = pool(supply, 2)
    spares.start()
    await full(spares, 2)

    first = spares.take("now")
    await full(spares, 2)

    assert first is supply.made[0]
    assert len(supply.made) == 3
    assert spares.take("now") is not first
    await spares.stop()


async def test_st_17_two_claimers_of_the_last_spare_get_one_between_them(supply: Supply) -> None:
    spares = pool(supply, 1)
    spares.start()
    await full(spares, 1)

    claims = [spares.take("now"), spares.take("now")]

    assert claims.count(None) == 1
    await spares.stop()


async def test_lk_09_a_spare_whose_machine_died_is_never_handed_out(supply: Supply) -> None:
    spares = pool(supply, 1)
    spares.start()
    await full(spares, 1)
    supply.made[0].channel.closed.set_result("the machine hung up")  # type: ignore[arg-type]

    assert spares.take("now") is None
    await spares.stop()
    assert supply.made[0] in supply.dropped


async def test_a_spare_of_an_old_template_is_dropped_and_not_handed_out(supply: Supply) -> None:
    spares = pool(supply, 1)
    spares.start()
    await full(spares, 1)

    assert spares.take("newer") is None
    await spares.stop()
    assert supply.made[0] in supply.dropped


async def test_a_spare_that_died_or_is_out_of_date_is_replaced_before_anybody_asks(supply: Supply) -> None:
    spares = pool(supply, 1)
    spares.start()
    await full(spares, 1)

    supply.made[0].channel.closed.set_result("the machine hung up")  # type: ignore[arg-type]
    await until("the dead one being replaced", lambda: len(supply.made) == 2 and spares.count() == 1)
    supply.keys[SMALL] = "newer"
    await until("the old one being replaced", lambda: len(supply.made) == 3 and spares.count() == 1)

    assert supply.dropped == supply.made[:2]
    assert spares.take("newer") is supply.made[2]
    await spares.stop()


async def test_several_images_and_shapes_have_spares_of_their_own(supply: Supply) -> None:
    spares = pool(supply, 2, tools=1)
    spares.start()
    await full(spares, 2, SMALL)
    await full(spares, 1, TOOLS)

    taken = spares.take("tools")

    assert taken is not None and taken.template.key == "tools"
    assert spares.take("tools") is None
    await full(spares, 1, TOOLS)
    await spares.stop()


async def test_one_kind_that_cannot_be_made_does_not_keep_the_others_waiting(supply: Supply) -> None:
    supply.cannot.add(SMALL)
    spares = pool(supply, 2, tools=1)
    spares.start()

    await full(spares, 1, TOOLS)
    supply.cannot.clear()
    await full(spares, 2, SMALL)

    await spares.stop()


async def test_spares_give_their_memory_back_under_pressure_and_come_back_after_it(supply: Supply) -> None:
    spares = pool(supply, 2, tools=1)
    spares.start()
    await full(spares, 3)

    supply.idle, supply.pressed = False, True
    await full(spares, 0)
    assert supply.dropped == [supply.made[2], supply.made[1], supply.made[0]]  # what is wanted least goes first
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert spares.count() == 0
    supply.idle, supply.pressed = True, False
    await full(spares, 3)

    await spares.stop()


async def test_a_start_that_needs_memory_takes_it_from_one_spare_at_a_time(supply: Supply) -> None:
    spares = pool(supply, 2)
    spares.start()
    await full(spares, 2)
    supply.idle = False

    assert [await spares.give_back() for _ in range(3)] == [True, True, False]
    assert len(supply.dropped) == 2
    await spares.stop()


async def test_no_spare_is_made_while_starts_are_under_way(supply: Supply) -> None:
    supply.idle = False
    spares = pool(supply, 1)
    spares.start()

    for _ in range(50):
        await asyncio.sleep(0.001)
    assert supply.made == []
    supply.idle = True
    await full(spares, 1)
    await spares.stop()


async def test_a_spare_that_could_not_be_made_is_tried_again(supply: Supply) -> None:
    supply.failures = 3
    spares = pool(supply, 1)
    spares.start()

    await full(spares, 1)

    await spares.stop()
    assert supply.dropped == supply.made


async def test_stopping_ends_every_spare_and_may_be_asked_twice(supply: Supply) -> None:
    spares = pool(supply, 2)
    spares.start()
    await full(spares, 2)

    await spares.stop()
    await spares.stop()

    assert supply.dropped == supply.made[::-1]
