"""A gateway with a guest on the other end of an in-memory channel, and servers of the test's on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimed.core.clock import SystemClock
from runtimed.core.egress import EgressBinding
from runtimed.core.ids import AccountId, SandboxId
from runtimed.core.network import WrittenRules, read_rules
from runtimed.core.secrets import SecretPlan, SecretRecord
from runtimed.egress.audit import Audit
from runtimed.egress.bound import EgressLimits
from runtimed.egress.ca import load_authority
from runtimed.egress.gateway import Gateway, GatewayParts
from runtimed.egress.ranges import Ground, read_ranges
from runtimed.egress.secrets.sealing import Sealer
from runtimed.egress.sockets import Network, NoSuchName, Sockets
from runtimed.wire import frames
from runtimed.wire.streams import Link, Stream

SANDBOX = SandboxId("6c3f7a52-2b8f-4c7e-9a55-0d6c4a6f2b11")
ACCOUNT = AccountId("6c3f7a52-2b8f-4c7e-9a55-0d6c4a6f2b22")


class NamedSockets(Sockets):
    """Names of the test, each with an address; every question is written down."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.hosts: dict[str, str] = {}
        self.asked: list[str] = []

    async def resolve(self, name):
        self.asked.append(name)
        if name not in self.hosts:
            raise NoSuchName(f"there is no host {name}")
        return [ipaddress.ip_address(self.hosts[name])]


class ClosedInTest(Exception):
    """The guest's stream was reset."""


@dataclass
class House:
    """Everything a test needs."""

    gateway: Gateway
    sockets: NamedSockets
    guest: Link
    folder: Path
    servers: list[asyncio.Server] = field(default_factory=list)
    opened: list[Stream] = field(default_factory=list)
    """The host's ends of the guest's streams."""

    def bind(self, *, secrets=None, **rules) -> None:
        read, wrong = read_rules(WrittenRules(**{"internet": True, **rules}))
        assert wrong == []
        self.gateway.bind(SANDBOX, EgressBinding(account_id=ACCOUNT, rules=read, secrets=secrets))

    def secret(self, host: str, value: str = "the-real-value-1", *, name: str = "KEY", **plan) -> str:
        mark = f"rtsec_{name}"
        record = SecretRecord(
            id=name,
            account_id=ACCOUNT,
            plan=SecretPlan(name=name, hosts=(host,), **plan),
            placeholder=mark,
            sealed=self.gateway.seal(name, value),
            created_at_s=0,
            updated_at_s=0,
        )
        self.gateway.put_secret(record)
        return mark

    async def serve(self, handler: Callable, *, tls: ssl.SSLContext | None = None) -> int:
        """A server on loopback; its port."""
        server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
        self.servers.append(server)
        return server.sockets[0].getsockname()[1]

    def proxy(self) -> Stream:
        return self.guest.open("egress.open", {"via": "proxy"})

    def tcp(self, host: str, port: int) -> Stream:
        return self.guest.open("egress.open", {"via": "tcp", "host": host, "port": port})

    def told(self, what: str | None = None) -> list:
        found = [r.happened for r in self.gateway.records(SANDBOX, after=0, limit=1000)]
        return [it for it in found if what in (None, it.what)]


async def read_all(stream: Stream) -> bytes:
    """Until the end or the reset."""
    found = b""
    try:
        async with asyncio.timeout(10):
            while (item := await stream.receive()) is not None:
                found += item
    except (frames.ProtocolViolation, Exception) as gone:
        if isinstance(gone, TimeoutError):
            raise
    return found


async def read_until(stream: Stream, mark: bytes) -> bytes:
    found = b""
    async with asyncio.timeout(10):
        while mark not in found:
            item = await stream.receive()
            assert item is not None, found
            found += item
    return found


def joined(opened: Callable[[Stream], None]) -> Link:
    """The guest's end of a channel whose host end calls `opened`."""
    loop = asyncio.get_running_loop()
    ends: dict[bool, Link] = {}
    greeted = frames.Connection(host=True), frames.Connection(host=False)

    def make(host: bool) -> Link:
        return Link(
            greeted[0 if host else 1],
            write=lambda data: loop.call_soon(ends[not host].feed, bytes(data)) and None,
            opened=opened if host else lambda stream: None,
            greeted=lambda hello: None if host else greeted[1].hello(hello.nonce, {}),
        )

    ends[True], ends[False] = make(True), make(False)
    greeted[0].hello(bytes(16), {})
    ends[True].flush()
    return ends[False]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    sockets = NamedSockets(Network())
    gateway = Gateway(
        GatewayParts(
            clock=SystemClock(),
            ground=Ground(open_ranges=read_ranges("127.0.0.0/8")),
            sockets=sockets,
            authority=load_authority(tmp_path, SystemClock()),
            sealer=Sealer(bytes(32)),
            audit=Audit(tmp_path / "egress.jsonl", now_s=SystemClock().now_s, failed=pytest.fail),
            limits=EgressLimits(connections=20),
            response_s=3,  # a busy host answers late
        )
    )
    opened: list[Stream] = []

    def guest_opened(stream: Stream) -> None:
        opened[:] = [*opened[-9:], stream]
        gateway.opened(SANDBOX, stream)

    made = House(gateway, sockets, joined(guest_opened), tmp_path, opened=opened)
    await asyncio.sleep(0)
    yield made
    for server in made.servers:
        server.close()
