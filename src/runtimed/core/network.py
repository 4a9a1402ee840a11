"""What a sandbox may reach, as a value: reads rules, names each one that is wrong, and compares hosts with them.

Pure. Who is judged, and what is refused whatever the rules say, is decided in egress/policy.py.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Host = str | Address
"""A name in its canonical spelling, or an address."""

RULES_MAX = 256
"""Rules in one list: each is looked at for every connection."""
NAME_MAX_CHARS = 253
LABEL_MAX_CHARS = 63
PORT_MAX = 65535

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rule. `text` is how it is shown; a `port` of None is every port."""

    text: str
    name: str | None = None
    """Canonical; with `subdomains`, the name under which others are meant, not itself."""
    subdomains: bool = False
    network: Network | None = None
    port: int | None = None

    def covers_name(self, name: str, port: int) -> bool:
        if self.name is None or self.port not in (None, port):
            return False
        return name.endswith("." + self.name) if self.subdomains else name == self.name

    def covers_address(self, address: Address, port: int) -> bool:
        return self.network is not None and self.port in (None, port) and address in self.network

    def covers_all(self, version: int, port: int) -> bool:
        """Whether it is the range of every address of that IP version."""
        network = self.network
        return network is not None and network.version == version and network.prefixlen == 0 and self._at(port)

    def _at(self, port: int) -> bool:
        return self.port in (None, port)


@dataclass(frozen=True, kw_only=True)
class EgressRules:
    """`allow` None allows all, empty allows nothing; `deny` always wins; `connect` adds host:port."""

    internet: bool = True
    allow: tuple[Target, ...] | None = None
    deny: tuple[Target, ...] = ()
    connect: tuple[Target, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The rules as the wire protocol spells them."""
        shown: dict[str, object] = {"internet": self.internet}
        if self.allow is not None:
            shown["allow"] = [rule.text for rule in self.allow]
        for name, rules in (("deny", self.deny), ("connect", self.connect)):
            if rules:
                shown[name] = [rule.text for rule in rules]
        return shown


OPEN = EgressRules()
CLOSED = EgressRules(internet=False)


@dataclass(frozen=True, kw_only=True)
class WrittenRules:
    """Rules as somebody wrote them."""

    internet: bool
    allow: Sequence[str] | None = None
    deny: Sequence[str] | None = None
    connect: Sequence[str] | None = None


@dataclass
class _Reading:
    wrong: list[dict[str, str]] = field(default_factory=list)

    def targets(self, where: str, texts: Sequence[str]) -> tuple[Target, ...]:
        if len(texts) > RULES_MAX:
            self.wrong.append({"field": where, "message": f"must hold at most {RULES_MAX} rules"})
            return ()
        found = []
        for index, text in enumerate(texts):
            try:
                found.append(read_target(text))
                if where.endswith("connect") and found[-1].port is None:
                    raise ValueError(f"{text[:80]!r} must be host:port")
            except ValueError as problem:
                self.wrong.append({"field": f"{where}.{index}", "message": str(problem)})
        return tuple(found)


def read_rules(written: WrittenRules, *, field_name: str = "") -> tuple[EgressRules, list[dict[str, str]]]:
    """The rules, and every one that is wrong as {"field", "message"}; the rules count only when none is.

    `internet: false` with hosts to allow or to connect to means: those and nothing else.
    """
    reading, inside = _Reading(), field_name + "." if field_name else ""
    allow = None if written.allow is None else reading.targets(f"{inside}allow", written.allow)
    deny = reading.targets(f"{inside}deny", written.deny or ())
    connect = reading.targets(f"{inside}connect", written.connect or ())
    internet = written.internet
    if not internet and (allow or connect):
        internet, allow = True, allow or ()
    return EgressRules(internet=internet, allow=allow, deny=deny, connect=connect), reading.wrong


def read_target(text: str) -> Target:
    """A name, `*.name`, an address, a CIDR range, or one of them with `:port`.

    Raises:
        ValueError: it is none of them; the message says so and quotes it.
    """
    shown = repr(text[:80])
    wanted = text.strip().lower()
    port = None
    if (split := _WITH_PORT.fullmatch(wanted)) is not None:
        wanted, port = split["host"], int(split["port"])
        if not 1 <= port <= PORT_MAX:
            raise ValueError(f"{shown}: the port must be 1 to {PORT_MAX}")
    wanted = wanted[1:-1] if wanted.startswith("[") and wanted.endswith("]") else wanted
    suffix = "" if port is None else f":{port}"
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        pass
    else:
        shown_net = str(network if "/" in wanted else network.network_address)
        bracketed = f"[{shown_net}]" if port is not None and network.version == 6 else shown_net
        return Target(text=bracketed + suffix, network=network, port=port)
    subdomains = wanted.startswith("*.")
    try:
        name = canonical_name(wanted[2:] if subdomains else wanted)
    except ValueError:
        raise ValueError(f"{shown} is no name, *.name, address, CIDR range or host:port") from None
    return Target(text=("*." if subdomains else "") + name + suffix, name=name, subdomains=subdomains, port=port)


def canonical_name(text: str) -> str:
    """Lower case, ASCII, without the root's dot.

    Raises:
        ValueError: it is no DNS name. A name whose last label is a number is none: it would be read as an address.
    """
    name = text.removesuffix(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError("not a name") from None
    labels = name.split(".")
    if not name or len(name) > NAME_MAX_CHARS or any(len(label) > LABEL_MAX_CHARS for label in labels):
        raise ValueError("not a name")
    if not all(_LABEL.fullmatch(label) for label in labels) or _NUMBER.fullmatch(labels[-1]):
        raise ValueError("not a name")
    return name


def read_host(text: str) -> Host:
    """An address in its usual spelling (IPv6 also in brackets), else a name. Raises ValueError for anything else."""
    plain = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return canonical_name(text)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError("an address with a zone")
    return address
