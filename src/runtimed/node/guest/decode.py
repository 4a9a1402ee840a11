"""Reads what a guest answered, field by field: a guest is not trusted to send the right types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from runtimed.node.channel import REQUEST_WITHIN_S, Channel
from runtimed.wire.frames import Json, ProtocolViolation

T = TypeVar("T")


class Reply:
    """A JSON object of a guest. Every reader raises ProtocolViolation when the field is not what it must be."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ProtocolViolation("the agent's answer is no object")
        self._value: Json = value

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def integer(self, name: str) -> int:
        value = self._value.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
            raise ProtocolViolation(f"the agent's answer has no integer {name}")
        return value

    def integer_or_none(self, name: str) -> int | None:
        return None if self._value.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        value = self._value.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ProtocolViolation(f"the agent's answer has no number {name}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        return None if self._value.get(name) is None else self.number(name)

    def boolean(self, name: str) -> bool:
        value = self._value.get(name)
        if not isinstance(value, bool):
            raise ProtocolViolation(f"the agent's answer has no truth value {name}")
        return value

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str):
            raise ProtocolViolation(f"the agent's answer has no text {name}")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._value.get(name) is None else self.text(name)

    def items(self, name: str) -> list[object]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise ProtocolViolation(f"the agent's answer has no list {name}")
        return value

    def integers(self, name: str, count: int) -> list[int]:
        found = [item for item in self.items(name) if isinstance(item, int) and 0 <= item < 1 << 63]
        if len(found) != count or len(self.items(name)) != count:
            raise ProtocolViolation(f"the agent's answer has no {count} integers {name}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        found = tuple(item for item in self.items(name) if isinstance(item, str))
        if len(found) != len(self.items(name)):
            raise ProtocolViolation(f"the agent's answer has no texts {name}")
        return found

    def inner(self, name: str) -> Reply:
        return Reply(self._value.get(name))

    def inner_or_none(self, name: str) -> Reply | None:
        return None if self._value.get(name) is None else self.inner(name)


async def ask(
    channel: Channel, method: str, params: Json, decode: Callable[[Reply], T], *, within_s: float = REQUEST_WITHIN_S
) -> T:
    """Ask once and read the answer. An answer of the wrong shape closes the channel. Raises as Channel.request."""
    answer = await channel.request(method, params, within_s=within_s)
    with channel.told():
        return decode(Reply(answer))
