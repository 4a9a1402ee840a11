"""The gateway's only sockets: looks names up, dials addresses that were judged, and speaks TLS with servers."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.resolver

from runtimed.core.network import Address
from runtimed.egress.pipes import READ_BYTES, ServerBroken

RESOLVE_WITHIN_S = 8.0
CONNECT_WITHIN_S = 10.0
TLS_WITHIN_S = 10.0
_PROXY_ANSWER_MAX_BYTES = 16 * 1024


class Unreachable(Exception):
    """A connection did not come about. `status` is how HTTP says it: 502, or 504 when nobody answered in time."""

    def __init__(self, message: str, *, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class NoSuchName(Unreachable):
    """The name does not exist, or has no address."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the gateway reaches the world; the operator's settings."""

    nameservers: tuple[str, ...] = ()
    """`address` or `address#port`; none is the host's own resolver."""
    upstream_proxy: tuple[str, int] | None = None
    """An HTTP proxy that every connection goes through, and never around."""
    extra_roots_pem: str = ""
    """Certificates trusted beside the host's own."""


class UpstreamPipe:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader, self._writer, self.address = reader, writer, address

    async def read(self) -> bytes:
        try:
            return await self._reader.read(READ_BYTES)
        except (OSError, ssl.SSLError) as gone:
            raise ServerBroken(f"the server's connection broke: {gone}") from gone

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, ssl.SSLError, RuntimeError) as gone:
            raise ServerBroken(f"the server's connection broke: {gone}") from gone

    async def end(self) -> None:
        try:
            if self._writer.can_write_eof():
                self._writer.write_eof()
        except (OSError, RuntimeError) as gone:
            raise ServerBroken(f"the server's connection broke: {gone}") from gone

    @property
    def gone(self) -> bool:
        """Whether the server has hung up."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Hang up once everything that was written has left."""
        self._writer.close()

    def abort(self) -> None:
        """Hang up now."""
        self._writer.transport.abort()

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Verify the server's certificate for `name` and go on in TLS. Raises Unreachable."""
        try:
            await self._writer.start_tls(context, server_hostname=name, ssl_handshake_timeout=TLS_WITHIN_S)
        except ssl.SSLCertVerificationError as wrong:
            raise Unreachable(f"the certificate of {name} is not valid: {wrong.verify_message}") from wrong
        except TimeoutError:
            raise Unreachable(f"{name} did not finish a TLS handshake in {TLS_WITHIN_S:g} s", status=504) from None
        except (OSError, ssl.SSLError) as wrong:
            raise Unreachable(f"the TLS handshake with {name} failed: {wrong.strerror or wrong}") from wrong


class Sockets:
    """Resolves and dials. Judges nothing: whoever dials has judged the address."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._resolver = _resolver(network.nameservers)
        self.tls = ssl.create_default_context()
        self.tls.set_alpn_protocols(["http/1.1"])
        if network.extra_roots_pem:
            self.tls.load_verify_locations(cadata=network.extra_roots_pem)

    async def resolve(self, name: str) -> list[Address]:
        """Every address of the name, IPv4 first.

        Raises:
            NoSuchName: it has none.
            Unreachable: nobody answered in time.
        """
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                found = await (self._ask_host(name) if self._resolver is None else self._ask(self._resolver, name))
        except TimeoutError:
            raise Unreachable(f"the DNS did not answer for {name} in {RESOLVE_WITHIN_S:g} s", status=504) from None
        if not found:
            raise NoSuchName(f"there is no host {name}")
        return sorted(found, key=lambda address: address.version)

    async def dial(self, addresses: Sequence[Address], port: int) -> UpstreamPipe:
        """Connect to the first address that answers. Raises Unreachable."""
        last: Unreachable | None = None
        for address in addresses:
            try:
                return await self._dial(address, port)
            except Unreachable as failure:
                last = failure
        raise last or Unreachable("there is no address to connect to")

    async def _dial(self, address: Address, port: int) -> UpstreamPipe:
        proxy = self._network.upstream_proxy
        host, at = proxy if proxy is not None else (str(address), port)
        told = f"{address} port {port}" if proxy is None else f"the upstream proxy {host}:{at}"
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                reader, writer = await asyncio.open_connection(host, at, limit=READ_BYTES)
        except TimeoutError:
            raise Unreachable(f"{told} did not answer in {CONNECT_WITHIN_S:g} s", status=504) from None
        except OSError as failure:
            raise Unreachable(f"{told} cannot be reached: {_reason(failure)}") from failure
        writer.transport.set_write_buffer_limits(high=READ_BYTES)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if proxy is not None:
            await self._through_proxy(reader, writer, address, port)
        return UpstreamPipe(reader, writer, address)

    async def _through_proxy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address, port: int
    ) -> None:
        """Ask the proxy for the address that was judged, not for a name that it would look up itself."""
        target = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        try:
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            async with asyncio.timeout(CONNECT_WITHIN_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as failure:
            writer.transport.abort()
            raise Unreachable("the upstream proxy did not answer as a proxy does") from failure
        status = head.split(b" ", 2)[1:2]
        if len(head) > _PROXY_ANSWER_MAX_BYTES or status != [b"200"]:
            writer.transport.abort()
            raise Unreachable(f"the upstream proxy refused {target}")

    async def _ask_host(self, name: str) -> list[Address]:
        loop = asyncio.get_running_loop()
        try:
            # The final dot keeps the host's search list out of it.
            found = await loop.getaddrinfo(name + ".", None, type=socket.SOCK_STREAM)
        except socket.gaierror as failure:
            if failure.errno in (socket.EAI_AGAIN, socket.EAI_FAIL):
                raise Unreachable(f"the DNS did not answer for {name}", status=504) from failure
            raise NoSuchName(f"there is no host {name}") from failure
        return list(dict.fromkeys(ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found))

    async def _ask(self, resolver: dns.asyncresolver.Resolver, name: str) -> list[Address]:
        found: list[Address] = []
        for kind in ("A", "AAAA"):
            try:
                answer = await resolver.resolve(name + ".", kind, search=False, raise_on_no_answer=False)
            except dns.resolver.NXDOMAIN as none:
                raise NoSuchName(f"there is no host {name}") from none
            except (dns.exception.DNSException, OSError) as failure:
                raise Unreachable(f"the DNS did not answer for {name}", status=504) from failure
            found += [ipaddress.ip_address(record.address) for record in answer.rrset or ()]
        return found


def is_own(address: Address) -> bool:
    """Whether this is an address of the host itself: asked of the kernel's routes, without sending anything."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == address


def _resolver(nameservers: Sequence[str]) -> dns.asyncresolver.Resolver | None:
    if not nameservers:
        return None
    resolver = dns.asyncresolver.Resolver(configure=False)
    plain = [server.partition("#") for server in nameservers]
    resolver.nameservers = [address for address, _, _ in plain]
    resolver.nameserver_ports = {address: int(port) for address, _, port in plain if port}
    resolver.lifetime, resolver.timeout = RESOLVE_WITHIN_S, RESOLVE_WITHIN_S / 3
    return resolver


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure)
