"""What no sandbox may reach whatever its rules say: address ranges and ports, each with the reason that is told."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimed.core.network import Address, Network

_V4 = {
    "this network": ("0.0.0.0/8",),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    "carrier-grade NAT": ("100.64.0.0/10",),
    "loopback": ("127.0.0.0/8",),
    "link-local and metadata": ("169.254.0.0/16",),
    "metadata": ("168.63.129.16/32",),
    "protocol assignments": ("192.0.0.0/24",),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
    "6to4 relay": ("192.88.99.0/24",),
    "benchmarks and stand-in addresses": ("198.18.0.0/15",),
    "multicast": ("224.0.0.0/4",),
    "reserved": ("240.0.0.0/4",),
}
_V6 = {
    "unspecified": ("::/128",),
    "loopback": ("::1/128",),
    "IPv4-mapped": ("::ffff:0:0/96", "::ffff:0:0:0/96"),
    "IPv4-compatible": ("::/96",),
    "NAT64": ("64:ff9b::/96", "64:ff9b:1::/48"),
    "discard": ("100::/64",),
    "Teredo": ("2001::/32",),
    "protocol assignments": ("2001::/23",),
    "documentation": ("2001:db8::/32", "3fff::/20"),
    "6to4": ("2002::/16",),
    "segment routing": ("5f00::/16",),
    "private": ("fc00::/7",),
    "link-local": ("fe80::/10",),
    "site-local": ("fec0::/10",),
    "multicast": ("ff00::/8",),
}
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
REFUSED_RANGES: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(text), why) for table in (_V4, _V6) for why, texts in table.items() for text in texts
)
MAIL_PORTS = frozenset({25, 465, 587, 2525})
REFUSED_PORTS: Mapping[int, str] = {
    23: "telnet",
    53: "DNS other than the gateway's",
    111: "RPC",
    135: "RPC",
    **dict.fromkeys((137, 138, 139), "NetBIOS"),
    445: "SMB",
    **dict.fromkeys((194, *range(6660, 6670), 6697), "IRC"),
    **dict.fromkeys(MAIL_PORTS, "mail"),
}
REFUSED_NAMES: Mapping[str, str] = {
    "localhost": "loopback",
    "metadata": "metadata",
    "metadata.google.internal": "metadata",
    "instance-data": "metadata",
}


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The operator's part: exceptions to what is always refused."""

    open_ranges: tuple[Network, ...] = ()
    """Ranges that may be reached although they are refused by default, such as a private package mirror's."""
    open_ports: frozenset[int] = frozenset()
    refused: tuple[tuple[Network, str], ...] = field(default=REFUSED_RANGES, repr=False)

    def why_not_address(self, address: Address) -> str | None:
        """The reason for which no sandbox reaches this address, or None."""
        if any(address in network for network in self.open_ranges):
            return None
        for network, why in self.refused:
            if address in network:
                return f"{why} addresses are always refused ({network})"
        if address.version == 6 and address not in _GLOBAL_V6:
            return "addresses that are not global unicast are always refused"
        return None

    def why_not_port(self, port: int) -> str | None:
        if not 0 < port <= 65535:
            return f"there is no port {port}"
        if port in REFUSED_PORTS and port not in self.open_ports:
            return f"port {port} ({REFUSED_PORTS[port]}) is always refused"
        return None

    def why_not_name(self, name: str) -> str | None:
        why = "loopback" if name.endswith(".localhost") else REFUSED_NAMES.get(name)
        return f"{why} names are always refused" if why else None


def read_ranges(text: str) -> tuple[Network, ...]:
    """Comma-separated addresses and CIDR ranges. Raises ValueError naming the one that is wrong."""
    return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
