"""What the gateway costs: bytes a second against a plain stream of the channel, small requests, the memory it takes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.rrset

from bench.figures import Figure, of, ratio
from bench.host import rss_mib, service
from bench.work import _Peak
from runtimed.core.clock import SystemClock
from runtimed.core.files import WriteOptions
from runtimed.core.ids import SandboxId, new_id
from runtimed.core.specs import MachineSpec
from runtimed.egress.ca import load_authority
from runtimed.host import DEFAULT_SHAPE, make_host
from runtimed.settings import Settings
from withruntime import Runtime, Sandbox

MIB = 1 << 20
BULK_MIB, LONG_MIB = 64, 1024
CONNECTIONS, REQUESTS = 500, 200
NAME = "bench.test"
PIECE = os.urandom(MIB)

RAW = """
import socket, sys, time
host, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.create_connection(("127.0.0.1", 10800))
s.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
assert b" 200 " in s.recv(4096)
if sys.argv[4] == "tls":
    import ssl
    s = ssl.create_default_context().wrap_socket(s, server_hostname=host)
    s.sendall(f"GET /{size} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
else:
    s.sendall(b"\\0" + str(size).encode() + b"\\n")
b, n, t = bytearray(1 << 18), 0, time.perf_counter()
while k := s.recv_into(b): n += k
assert n >= size, n
print(n / (1 << 20) / (time.perf_counter() - t))
"""
SMALL = """
import http.client, json, sys, time
c = http.client.HTTPConnection("127.0.0.1", 10800)
took = []
for _ in range(int(sys.argv[2])):
    t = time.perf_counter()
    c.request("GET", f"http://127.0.0.1:{sys.argv[1]}/100", headers={"Host": "127.0.0.1"})
    c.getresponse().read()
    took.append((time.perf_counter() - t) * 1000)
print(json.dumps(took))
"""
HELD = """
import socket, sys, time
held = []
for i in range(int(sys.argv[2])):
    while True:
        s = socket.create_connection(("127.0.0.1", 10800))
        s.sendall(f"CONNECT 127.0.0.1:{sys.argv[1]} HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n".encode())
        try:
            if b" 200 " in s.recv(4096): break
        except OSError: pass
        time.sleep(0.05)
    held.append(s)
print("held", flush=True)
time.sleep(3600)
"""


def measure(runs: int) -> list[Figure]:
    few = max(3, runs // 10)
    with tempfile.TemporaryDirectory() as folder, _world(Path(folder)) as ports, _settings(Path(folder), ports):
        plain = asyncio.run(_plain(few))
        with service(spares=0) as running, Runtime(api_key=running.key, base_url=running.url) as client:
            with client.sandboxes.create() as box:
                for name, text in (("raw", RAW), ("small", SMALL), ("held", HELD)):
                    box.files.write(f"/tmp/{name}.py", text)
                passed = [_number(box, f"raw.py 127.0.0.1 {ports['raw']} {BULK_MIB * MIB} raw") for _ in range(few)]
                direct_tls = [
                    _number(box, f"raw.py {NAME} {ports['tls']} {BULK_MIB * MIB} tls", trust=folder) for _ in range(few)
                ]
                client.secrets.set(
                    "BENCH", value="a value that is nowhere in the answer", hosts=[f"{NAME}:{ports['tls']}"]
                )
                cut = [_number(box, f"raw.py {NAME} {ports['tls']} {BULK_MIB * MIB} tls") for _ in range(few)]
                small = json.loads(_run(box, f"small.py {ports['http']} {REQUESTS}"))
                peak = _Peak(running.pid)
                _number(box, f"raw.py 127.0.0.1 {ports['raw']} {LONG_MIB * MIB} raw")
                long_mib = peak.stop()
                before = rss_mib(running.pid)
                _hold(box, ports["raw"])
                held_mib = rss_mib(running.pid) - before
    aim_pass, aim_cut = ">= 0.8 of a plain stream", ">= 0.5 of a plain stream"
    return [
        ratio("egress_pass_ratio", passed, plain, aim=aim_pass),
        ratio("egress_intercept_ratio", cut, plain, aim=aim_cut),
        ratio("egress_intercept_tls_ratio", cut, direct_tls, aim="reported", note="against TLS that passes untouched"),
        of("egress_small_p50_ms", small, aim="reported"),
        Figure(
            key="egress_small_p99_ms",
            p50=of("", small, aim="").p99,
            p99=of("", small, aim="").p99,
            runs=len(small),
            aim="reported",
        ),
        of("egress_500_conn_mib", [held_mib], aim="< 64", note=f"{CONNECTIONS} open connections"),
        of("egress_1gib_mib", [long_mib], aim="< 16", note="largest resident size less that before"),
    ]


def _run(box: Sandbox, words: str, *, trust: str | None = None) -> str:
    env = {}
    if trust is not None:
        box.files.write("/tmp/roots.pem", (Path(trust) / "egress-ca.pem").read_bytes())
        env = {"SSL_CERT_FILE": "/tmp/roots.pem"}
    done = box.exec(f"python3 /tmp/{words}", timeout_ms=600_000, env=env)
    if done.exit_code:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _number(box: Sandbox, words: str, *, trust: str | None = None) -> float:
    return float(_run(box, words, trust=trust))


def _hold(box: Sandbox, port: int) -> None:
    box.spawn(f"python3 /tmp/held.py {port} {CONNECTIONS} > /tmp/held.out 2>&1")
    deadline = time.monotonic() + 120
    while "held" not in box.exec("cat /tmp/held.out").stdout:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{CONNECTIONS} connections were not open within 120 s: {box.exec('cat /tmp/held.out')}")
        time.sleep(0.5)


async def _plain(runs: int) -> list[float]:
    """MiB a second of the same bytes on a stream of the channel alone, into the guest's memory."""

    async def bytes_of() -> AsyncIterator[bytes]:
        for _ in range(BULK_MIB):
            yield PIECE

    rates = []
    with tempfile.TemporaryDirectory(prefix="runtime-bare-") as folder:
        settings = Settings(state_dir=Path(folder), spares=0)
        node = await make_host(settings, SystemClock(), lambda line: None)
        try:
            await node.prepare()
            spec = MachineSpec(
                sandbox_id=SandboxId(new_id()), image=settings.image, shape=DEFAULT_SHAPE, hostname="plain", user="root"
            )
            await node.start(spec)
            guest = node.guest(spec.sandbox_id)
            for _ in range(runs):
                began = time.perf_counter()
                await guest.files.write("/dev/shm/plain", bytes_of(), WriteOptions(size=BULK_MIB * MIB, user="root"))
                rates.append(BULK_MIB / (time.perf_counter() - began))
                await guest.files.remove("/dev/shm/plain", recursive=False, user="root")
            await node.stop(spec.sandbox_id)
        finally:
            await node.close()
    return rates


@contextmanager
def _settings(folder: Path, ports: dict[str, int]) -> Iterator[None]:
    """The service that is started meanwhile may reach this host's loopback, and asks the resolver below."""
    path = folder / "config.toml"
    path.write_text(
        'egress_open_ranges = "127.0.0.0/8"\n'
        f'egress_nameservers = "127.0.0.1#{ports["dns"]}"\n'
        f'egress_extra_roots = "{folder / "egress-ca.pem"}"\n'
        f"egress_connections = {CONNECTIONS}\negress_new_a_second = 1000\n"
    )
    os.environ["RUNTIME_CONFIG"] = str(path)
    try:
        yield
    finally:
        del os.environ["RUNTIME_CONFIG"]


@contextmanager
def _world(folder: Path) -> Iterator[dict[str, int]]:
    """Servers on loopback, in a thread of their own; their ports."""
    ports: dict[str, int] = {}
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> None:
        tls = load_authority(folder, SystemClock()).context(NAME)
        for name, handler, context in (("raw", _raw, None), ("http", _http, None), ("tls", _http, tls)):
            server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
            ports[name] = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_datagram_endpoint(_Names, local_addr=("127.0.0.1", 0))
        ports["dns"] = transport.get_extra_info("sockname")[1]
        ready.set()
        await asyncio.Event().wait()

    thread = threading.Thread(target=lambda: _until_stopped(loop, serve()), daemon=True)
    thread.start()
    if not ready.wait(10):
        raise TimeoutError("the bench's own servers did not start within 10 s")
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _until_stopped(loop: asyncio.AbstractEventLoop, work) -> None:
    serving = loop.create_task(work)
    loop.run_forever()
    serving.cancel()
    loop.run_until_complete(asyncio.gather(serving, return_exceptions=True))


class _Names(asyncio.DatagramProtocol):
    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data, addr) -> None:
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        asked = question.question[0]
        if asked.rdtype == 1:
            answer.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "A", "127.0.0.1"))
        self.transport.sendto(answer.to_wire(), addr)


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    source = io.BytesIO(PIECE)
    while size > 0:
        source.seek(0)
        piece = source.read(min(size, MIB))
        writer.write(piece)
        await writer.drain()
        size -= len(piece)


async def _raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    line = await reader.readline()
    if line:
        await _send(writer, int(line[1:]))
    writer.close()


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.split(b" ")[1].rsplit(b"/", 1)[-1])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            await _send(writer, size)
            if b"Connection: close" in head:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()
