"""Makes the gateway that the settings ask for, with its keys in the state folder beside the database."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from runtimed.core.clock import Clock
from runtimed.core.network import PORT_MAX, read_target
from runtimed.egress.audit import Audit
from runtimed.egress.bound import EgressLimits
from runtimed.egress.ca import load_authority
from runtimed.egress.gateway import Gateway, GatewayParts
from runtimed.egress.ranges import REFUSED_PORTS, Ground, read_ranges
from runtimed.egress.secrets.sealing import CannotOpen, Sealer, load_key
from runtimed.egress.sockets import Network, Sockets
from runtimed.settings import CommandError, Settings

_log = logging.getLogger(__name__)


def make_gateway(settings: Settings, clock: Clock) -> Gateway:
    """Raises CommandError naming the setting or the file that is of no use."""
    folder = settings.state_dir / "egress"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        parts = GatewayParts(
            clock=clock,
            ground=_ground(settings),
            sockets=Sockets(_network(settings)),
            authority=load_authority(folder, clock),
            sealer=Sealer(load_key(folder / "sealing.key")),
            audit=Audit(folder / "egress.jsonl", now_s=clock.now_s, failed=_log.error),
            limits=EgressLimits(
                connections=settings.egress_connections,
                new_a_second=settings.egress_new_a_second,
                bytes_total=settings.egress_gib_max << 30,
            ),
            response_s=settings.egress_response_s,
        )
    except (ValueError, CannotOpen) as wrong:
        raise CommandError(str(wrong)) from wrong
    return Gateway(parts)


def make_sealer(settings: Settings) -> Sealer:
    """For values that are stored, under the key of this service. Raises CommandError when there is no such key."""
    return Sealer(_key(settings))


def fingerprint_key(settings: Settings) -> bytes:
    """Tells request bodies apart, so that the database alone says nothing of them. Raises CommandError."""
    return hmac.digest(_key(settings), b"fingerprints of requests", "sha256")


def _key(settings: Settings) -> bytes:
    folder = settings.state_dir / "egress"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return load_key(folder / "sealing.key")
    except CannotOpen as wrong:
        raise CommandError(str(wrong)) from wrong


def forbidden_ports(settings: Settings) -> list[int]:
    """Ports that no sandbox reaches."""
    return sorted(REFUSED_PORTS.keys() - _ports(settings))


def _ground(settings: Settings) -> Ground:
    try:
        ranges = read_ranges(settings.egress_open_ranges)
    except ValueError as wrong:
        raise ValueError(f"egress_open_ranges: {wrong}") from wrong
    return Ground(open_ranges=ranges, open_ports=_ports(settings))


def _ports(settings: Settings) -> frozenset[int]:
    parts = [part.strip() for part in settings.egress_open_ports.split(",") if part.strip()]
    if not all(part.isdigit() and 0 < int(part) <= PORT_MAX for part in parts):
        raise CommandError("egress_open_ports: must be ports, separated by commas")
    return frozenset(int(part) for part in parts)


def _network(settings: Settings) -> Network:
    proxy: tuple[str, int] | None = None
    if settings.egress_upstream_proxy:
        target = read_target(settings.egress_upstream_proxy)
        if target.port is None or target.subdomains:
            raise ValueError("egress_upstream_proxy: must be host:port")
        host = target.name or str(target.network and target.network.network_address)
        proxy = (host, target.port)
    roots = ""
    if settings.egress_extra_roots:
        try:
            roots = Path(settings.egress_extra_roots).read_text()
        except (OSError, UnicodeDecodeError) as wrong:
            raise ValueError(f"egress_extra_roots: {settings.egress_extra_roots} cannot be read") from wrong
    servers = tuple(part.strip() for part in settings.egress_nameservers.split(",") if part.strip())
    return Network(nameservers=servers, upstream_proxy=proxy, extra_roots_pem=roots)
