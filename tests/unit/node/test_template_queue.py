"""Templates of new shapes: made one at a time, when nothing starts, and each once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtimed.core.errors import StartFailed
from runtimed.core.specs import Shape
from runtimed.core.wait import wait_for
from runtimed.node import template_queue
from runtimed.node.template_queue import TemplateQueue

SMALL, LARGE = Shape(vcpu=1, memory_mib=512, disk_mib=3072), Shape(vcpu=2, memory_mib=2048, disk_mib=4096)


class Image:
    image_id = "i"
    name = "default"


class Making:
    """Makes nothing, and remembers what was asked."""

    def __init__(self) -> None:
        self.idle = True
        self.made: list[Shape] = []
        self.fails: set[Shape] = set()
        self.at_once = self.most_at_once = 0
        self.queue = TemplateQueue(self.make, idle=lambda: self.idle)

    async def make(self, image: Any, shape: Shape) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.made.append(shape)
        if shape in self.fails:
            raise StartFailed("it did not boot")

    def want(self, shape: Shape) -> None:
        image: Any = Image()
        self.queue.want(image, shape)

    async def until_made(self, count: int) -> None:
        async def there() -> bool | None:
            return len(self.made) == count or None

        await wait_for(f"{count} templates", there, within_s=5, every_s=0.002)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_queue, "QUIET_S", 0.001)


async def test_each_shape_is_made_once_and_one_at_a_time() -> None:
    making = Making()
    for shape in (SMALL, LARGE, SMALL, LARGE):
        making.want(shape)

    await making.until_made(2)
    await making.queue.stop()

    assert (making.made, making.most_at_once) == ([SMALL, LARGE], 1)


async def test_nothing_is_made_while_a_start_is_under_way() -> None:
    making = Making()
    making.idle = False
    making.want(SMALL)

    for _ in range(20):
        await asyncio.sleep(0.001)
    assert making.made == []
    making.idle = True
    await making.until_made(1)
    await making.queue.stop()


async def test_one_that_fails_keeps_no_other_from_being_made_and_is_made_when_it_is_wanted_again() -> None:
    making = Making()
    making.fails.add(SMALL)
    making.want(SMALL)
    making.want(LARGE)
    await making.until_made(2)

    making.fails.clear()
    making.want(SMALL)
    await making.until_made(3)

    assert making.made == [SMALL, LARGE, SMALL]
    await making.queue.stop()


async def test_stopping_makes_no_more_and_may_be_asked_twice() -> None:
    making = Making()
    making.idle = False
    making.want(SMALL)

    await making.queue.stop()
    await making.queue.stop()
    making.idle = True

    assert making.made == []
