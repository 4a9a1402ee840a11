"""Gives each name a sandbox looked up an address that stands for it in that sandbox alone, and finds it again. Pure.

The address says which name a connection is for, so that the gateway need not guess it. It leads nowhere by itself.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections import OrderedDict, deque

from runtimed.core.network import Address

POOL = ipaddress.IPv4Network("198.18.0.0/15")
NAMES_MAX = 8192
"""Names remembered of one sandbox, the longest unused forgotten first: bounds memory."""
QUERIES_A_SECOND = 50
QUERIES_AT_ONCE = 200
"""A burst of a package manager looks up a few dozen names; a tunnel over DNS needs hundreds a second, for long."""
ODD_LABELS_A_MINUTE = 30
"""Different random-looking labels under one wildcard: data written into names looks so, hosts' names hardly ever."""
_ODD_LENGTH, _ODD_BITS, _LONG = 16, 3.2, 50


class StandIns:
    """The names of one sandbox and their addresses."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._address_of: OrderedDict[str, ipaddress.IPv4Address] = OrderedDict()
        self._name_of: dict[ipaddress.IPv4Address, str] = {}

    def address(self, name: str) -> ipaddress.IPv4Address:
        """The same for the same name while it is remembered."""
        known = self._address_of.get(name)
        if known is not None:
            self._address_of.move_to_end(name)
            return known
        if len(self._address_of) >= NAMES_MAX:
            _, forgotten = self._address_of.popitem(last=False)
            del self._name_of[forgotten]
        chosen = self._free(name)
        self._address_of[name] = chosen
        self._name_of[chosen] = name
        return chosen

    def name(self, address: Address) -> str | None:
        """The name that an address stands for; None when it stands for none (any more)."""
        found = self._name_of.get(address) if isinstance(address, ipaddress.IPv4Address) else None
        if found is not None:
            self._address_of.move_to_end(found)
        return found

    def _free(self, name: str) -> ipaddress.IPv4Address:
        digest = hashlib.blake2b(name.encode(), key=self._salt[:64], digest_size=8).digest()
        size = POOL.num_addresses - 2
        offset = int.from_bytes(digest, "big") % size
        while True:
            chosen = POOL[1 + offset % size]
            # The guest's own addresses: 198.18.255.0/24 is the dummy interface and the resolver.
            if chosen not in self._name_of and not (chosen.packed[1] == 18 and chosen.packed[2] == 255):
                return chosen
            offset += 1


class QueryLimit:
    """Whether a sandbox asks too much: a rate for all questions, and one for labels that look like data."""

    def __init__(self) -> None:
        self._tokens = float(QUERIES_AT_ONCE)
        self._at_s = 0.0
        self._odd: dict[str, deque[float]] = {}
        self._known: OrderedDict[str, None] = OrderedDict()

    def why_not(self, name: str, *, wildcard: str | None, now_s: float) -> str | None:
        """The reason to refuse, or None. `wildcard` is the rule's name when the name is allowed by `*.name`."""
        self._tokens = min(QUERIES_AT_ONCE, self._tokens + (now_s - self._at_s) * QUERIES_A_SECOND)
        self._at_s = now_s
        if self._tokens < 1:
            return f"more than {QUERIES_A_SECOND} names a second are looked up"
        self._tokens -= 1
        if wildcard is None or not looks_random(name.removesuffix("." + wildcard)) or name in self._known:
            return None
        seen = self._odd.setdefault(wildcard, deque())
        while seen and seen[0] < now_s - 60:
            seen.popleft()
        if len(seen) >= ODD_LABELS_A_MINUTE:
            return f"more than {ODD_LABELS_A_MINUTE} random-looking names a minute under *.{wildcard}"
        seen.append(now_s)
        self._known[name] = None
        if len(self._known) > NAMES_MAX:
            self._known.popitem(last=False)
        return None


def looks_random(labels: str) -> bool:
    """Whether the part of a name under a wildcard looks like data: very long, or with a label that nobody would say."""
    return len(labels) > _LONG or any(
        len(label) >= _ODD_LENGTH and _bits_a_character(label) >= _ODD_BITS for label in labels.split(".")
    )


def _bits_a_character(text: str) -> float:
    return -sum((share := text.count(c) / len(text)) * math.log2(share) for c in set(text))
