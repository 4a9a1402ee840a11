"""The world of the egress tests, inside a network namespace: DNS, servers, and a record of every packet that arrives.

python world_server.py FOLDER    (with certificates in FOLDER; writes FOLDER/packets, FOLDER/questions, FOLDER/ready)
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import sys
from pathlib import Path

import dns.message
import dns.rcode
import dns.rrset

ADDRESSES = {
    "allowed.test": ["198.51.100.10"],
    "sub.allowed.test": ["198.51.100.10"],
    "other.test": ["198.51.100.20"],
    "api.test": ["198.51.100.30"],
    "second.test": ["198.51.100.31"],
    "proxy.test": ["198.51.100.40"],
    "expired.test": ["198.51.100.50"],
    "silent.test": ["198.51.100.51"],
    "index.test": ["198.51.100.60"],
    "dual.test": ["198.51.100.10", "2001:db8:1::10"],
    "six.test": ["2001:db8:1::10"],
    "metadata.test": ["169.254.169.254"],
    "private.test": ["10.1.2.3"],
    "loop.test": ["127.0.0.1"],
    "mapped.test": ["::ffff:198.51.100.20"],
}
RESOLVER = "198.51.100.53"
RAW_PORTS = (22, 5432, 8080)


class World:
    """Everything that listens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packets = (folder / "packets").open("a", buffering=1)
        self._questions = (folder / "questions").open("a", buffering=1)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        sniffer.setblocking(False)
        loop.add_reader(sniffer, self._sniff, sniffer)
        await loop.create_datagram_endpoint(lambda: Resolver(self), local_addr=(RESOLVER, 53))
        for host in ("0.0.0.0", "::"):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            await asyncio.start_server(self.http, host, 80, family=family)
            await asyncio.start_server(self.http, host, 443, family=family, ssl=self._tls())
            await asyncio.start_server(self.http, host, 8443, family=family, ssl=self._tls())
        await asyncio.start_server(self.proxy, "198.51.100.40", 3128)
        for port in RAW_PORTS:
            await asyncio.start_server(self.echo, "0.0.0.0", port)
        (self.folder / "ready").write_text("ready")
        await asyncio.Event().wait()

    def _tls(self) -> ssl.SSLContext:
        """One context a name, chosen by SNI."""

        def context(name: str) -> ssl.SSLContext:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            made.load_cert_chain(self.folder / f"{name}.pem")
            return made

        contexts = {path.stem: context(path.stem) for path in self.folder.glob("*.test.pem")}
        first = context("allowed.test")

        def choose(tls: ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            if name in contexts:
                tls.context = contexts[name]

        first.sni_callback = choose  # type: ignore[assignment]
        return first

    def _sniff(self, sniffer: socket.socket) -> None:
        try:
            while True:
                data, (_, protocol, kind, *_) = sniffer.recvfrom(65536)
                if kind != socket.PACKET_OUTGOING and protocol in (0x0800, 0x86DD):
                    self._packets.write(json.dumps(described(data, protocol)) + "\n")
        except BlockingIOError:
            return

    def asked(self, name: str, kind: str) -> None:
        self._questions.write(json.dumps({"name": name, "kind": kind}) + "\n")

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An open HTTP proxy, as somebody might run one on an allowed host."""
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1].decode()
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(ADDRESSES.get(host, [host])[0], int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, back))
            group.create_task(copy(there, writer))

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
                body = await body_of(reader, fields)
                writer.write(self.answer(method, target, fields, body, head))
                await writer.drain()
                if fields.get("connection") == "close":
                    writer.close()
                    return
                if fields.get("upgrade"):
                    await self.echo(reader, writer)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, method: str, target: str, fields: dict[str, str], body: bytes, head: bytes) -> bytes:
        name = fields.get("host", "").split(":")[0]
        path = target.split("?")[0]
        if name == "silent.test":
            return b""
        if fields.get("upgrade"):
            return b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        if path == "/redirect":
            return response(302, b"", more="Location: https://second.test/landed\r\n")
        if path == "/echo":
            return response(200, head + body)
        if path == "/big":
            return response(200, b"x" * (10 << 20))
        if path.startswith("/x.git/") and "authorization" not in fields:
            return response(401, b"", more="WWW-Authenticate: Basic realm=x\r\n")
        if name == "index.test":
            return self.index(path)
        (self.folder / f"last-{name}").write_bytes(head + body)
        return response(200, f"hello from {name} to {method} {target}\n".encode())

    def index(self, path: str) -> bytes:
        """A Python package index with one package."""
        wheel = next(self.folder.glob("*.whl"))
        if path.rstrip("/") == "/simple/runtime-sample":
            link = f'<!DOCTYPE html><html><body><a href="/files/{wheel.name}">{wheel.name}</a></body></html>'
            return response(200, link.encode(), content_type="text/html")
        if path == f"/files/{wheel.name}":
            return response(200, wheel.read_bytes())
        return response(404, b"")


class Resolver(asyncio.DatagramProtocol):
    """Authoritative for everything, and remembers every question."""

    def __init__(self, world: World) -> None:
        self.world = world

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr) -> None:
        question = dns.message.from_wire(data)
        asked = question.question[0]
        name = asked.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(asked.rdtype)
        self.world.asked(name, kind)
        if name == "dead.test":
            return
        answer = dns.message.make_response(question)
        known = ADDRESSES.get(name) or (["198.51.100.10"] if name.endswith(".wild.test") else None)
        if known is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        for address in known or ():
            if (":" in address) == (kind == "AAAA") and kind in ("A", "AAAA"):
                answer.answer.append(dns.rrset.from_text(asked.name, 5, "IN", kind, address))
        self.transport.sendto(answer.to_wire(), addr)


async def body_of(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    if fields.get("transfer-encoding") == "chunked":
        found = b""
        while not found.endswith(b"0\r\n\r\n"):
            found += await reader.read(65536)
        return found
    return b""


def response(status: int, body: bytes, *, more: str = "", content_type: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def described(packet: bytes, protocol: int) -> dict[str, object]:
    """Where a packet goes, and how many bytes of its user's it carries."""
    if protocol == 0x0800:
        size = (packet[0] & 15) * 4
        kind, source, target = packet[9], socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
        packet = packet[: struct.unpack("!H", packet[2:4])[0]]
    else:
        size, kind = 40, packet[6]
        source = socket.inet_ntop(socket.AF_INET6, packet[8:24])
        target = socket.inet_ntop(socket.AF_INET6, packet[24:40])
    rest, port, carried = packet[size:], 0, len(packet) - size
    if kind in (6, 17) and len(rest) >= 8:
        port = struct.unpack("!H", rest[2:4])[0]
        carried = len(rest) - (8 if kind == 17 else (rest[12] >> 4) * 4)
    mark = rest[8:].decode("latin-1") if kind == 17 and port == 9 else ""
    return {"kind": kind, "from": source, "to": target, "port": port, "bytes": carried, "mark": mark}


if __name__ == "__main__":
    asyncio.run(World(Path(sys.argv[1])).run())
