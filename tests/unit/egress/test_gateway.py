"""Connections through the gateway, over an in-memory channel to servers on loopback."""

from __future__ import annotations

import asyncio
import base64
import ssl

import dns.message
import dns.rcode
import pytest

from runtimed.core.clock import SystemClock
from runtimed.egress.ca import load_authority
from runtimed.wire.streams import StreamReset

from .conftest import SANDBOX, House, read_all, read_until
from .test_tls import hello_of


class Recorder:
    """A server that keeps what it gets and answers what it is told to."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> None:
        self.got, self.answer, self.connections = b"", answer, 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(65536):
            self.got += data
            if self.got.endswith(b"\r\n\r\n") or not self.answer.startswith(b"HTTP"):
                writer.write(self.answer)
        writer.close()


async def resolve(house: House, name: str, kind: str = "A") -> dns.message.Message:
    query = base64.b64encode(dns.message.make_query(name, kind).to_wire()).decode()
    stream = house.guest.open("egress.dns", {"query": query}, last=True)
    answer = await stream.receive()
    assert isinstance(answer, dict)
    return dns.message.from_wire(base64.b64decode(answer["answer"]))


async def test_a_machine_without_a_policy_reaches_nothing(house: House) -> None:
    server = Recorder()
    port = await house.serve(server)
    stream = house.tcp("127.0.0.1", port)

    with pytest.raises(StreamReset, match="no network policy"):
        await stream.receive()
    assert server.connections == 0


async def test_bytes_pass_untouched_both_ways_and_half_close_works(house: House) -> None:
    async def echo_after_end(reader, writer):
        writer.write(b"welcome ")
        writer.write(await reader.read())
        writer.close()

    house.bind()
    stream = house.tcp("127.0.0.1", await house.serve(echo_after_end))
    data = bytes(range(256)) * 4000
    await read_until(stream, b"welcome ")
    sending = asyncio.ensure_future(stream.send(data, last=True))

    assert await read_all(stream) == data
    await sending


async def test_a_name_is_reached_by_the_address_that_stands_for_it(house: House) -> None:
    server = Recorder()
    port = await house.serve(server)
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind(allow=["api.test"])
    answer = await resolve(house, "api.test")
    stream = house.tcp(answer.answer[0][0].address, port)
    await stream.send(b"GET /x HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")

    assert await read_all(stream) == server.answer
    assert [(it.host, it.allowed, it.rule) for it in house.told("connection")] == [
        ("api.test", True, "allow: api.test")
    ]


async def test_a_refused_name_does_not_exist_and_nobody_is_asked(house: House) -> None:
    house.bind(allow=["api.test"])
    answers = [await resolve(house, "other.test", kind) for kind in ("A", "AAAA", "HTTPS", "TXT")]

    assert {answer.rcode() for answer in answers} == {dns.rcode.NXDOMAIN}
    assert house.sockets.asked == []
    assert [(it.what, it.host, it.rule) for it in house.told()] == [("dns", "other.test", "not in allow")]


async def test_a_name_that_leads_to_a_refused_address_is_not_dialled(house: House) -> None:
    house.sockets.hosts["rebind.test"] = "169.254.169.254"
    house.bind()
    stream = house.proxy()
    await stream.send(b"CONNECT rebind.test:80 HTTP/1.1\r\nHost: rebind.test\r\n\r\n")

    assert b"403" in (answer := await read_all(stream)) and b"metadata" in answer


@pytest.mark.parametrize(
    "first",
    [
        b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n",
        b"CONNECT 1.1.1.1:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT [2606:4700::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
        b"GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
    ],
)
async def test_a_refused_request_to_the_proxy_is_a_403_with_the_rule(house: House, first: bytes) -> None:
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind(allow=["api.test"])
    stream = house.proxy()
    await stream.send(first)
    answer = await read_all(stream)

    assert answer.startswith(b"HTTP/1.1 403") and b"not in allow" in answer
    assert "other.test" not in house.sockets.asked


@pytest.mark.parametrize("target", ["0x7f.1:80", "2130706433:80", "127.1:80", "localhost:80", "a.test", "a.test:0"])
async def test_odd_targets_are_refused(house: House, target: str) -> None:
    house.bind()
    stream = house.proxy()
    await stream.send(f"CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert (await read_all(stream))[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403")
    assert house.sockets.asked == []


async def test_requests_of_one_proxy_connection_go_each_to_its_host(house: House) -> None:
    one, two = Recorder(), Recorder()
    ports = [await house.serve(one), await house.serve(two)]
    house.sockets.hosts.update({"one.test": "127.0.0.1", "two.test": "127.0.0.1"})
    house.bind(allow=["one.test", "two.test"])
    stream = house.proxy()
    for name, port in zip(("one.test", "two.test"), ports, strict=True):
        await stream.send(
            f"GET http://{name}:{port}/p?q HTTP/1.1\r\nHost: {name}:{port}\r\nProxy-Connection: k\r\n\r\n".encode()
        )
        await read_until(stream, b"ok")

    assert one.got.startswith(b"GET /p?q HTTP/1.1\r\nHost: one.test") and two.got.startswith(b"GET /p?q ")
    assert b"Proxy-" not in one.got
    await stream.send(b"GET http://three.test/ HTTP/1.1\r\nHost: three.test\r\n\r\n")
    assert b"403" in await read_all(stream)


@pytest.mark.parametrize(
    "first",
    [
        hello_of("other.test"),
        b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
        b"GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["sni", "host", "absolute", "connect in connect", "h2c"],
)
async def test_names_inside_a_connection_must_be_allowed_too(house: House, first: bytes) -> None:
    server = Recorder()
    port = await house.serve(server)
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind(allow=["api.test"])
    stream = house.proxy()
    await stream.send(f"CONNECT api.test:{port} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode())
    await read_until(stream, b"\r\n\r\n")
    await stream.send(first)
    await read_all(stream)

    assert server.got == b""
    assert any(not it.allowed for it in house.told())


async def test_each_request_of_a_plain_connection_is_judged(house: House) -> None:
    server = Recorder()
    port = await house.serve(server)
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind(allow=["api.test"])
    answer = await resolve(house, "api.test")
    stream = house.tcp(answer.answer[0][0].address, port)
    await stream.send(b"GET /1 HTTP/1.1\r\nHost: api.test\r\n\r\n")
    await read_until(stream, b"ok")
    await stream.send(b"GET /2 HTTP/1.1\r\nHost: other.test\r\n\r\n")

    assert (await read_all(stream)).startswith(b"HTTP/1.1 403") and b"/2" not in server.got


async def test_a_change_of_rules_closes_what_it_refuses_and_nothing_else(house: House) -> None:
    server = Recorder(b"echo")
    port = await house.serve(server)
    house.sockets.hosts.update({"keep.test": "127.0.0.1", "drop.test": "127.0.0.1"})
    house.bind()
    streams = {}
    for name in ("keep.test", "drop.test"):
        streams[name] = house.tcp((await resolve(house, name)).answer[0][0].address, port)
        await streams[name].send(b"\0hello")
        await read_until(streams[name], b"echo")
    house.bind(deny=["drop.test"])

    with pytest.raises(StreamReset, match=r"deny: drop\.test"):
        while await streams["drop.test"].receive() is not None:
            pass
    await streams["keep.test"].send(b"\0again")
    assert await read_until(streams["keep.test"], b"echo") == b"echo"


async def test_an_address_that_stands_for_no_name_is_refused(house: House) -> None:
    house.bind()
    stream = house.tcp("198.18.7.7", 80)
    await stream.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")

    assert b"stands for no name" in await read_all(stream)


async def test_connections_are_limited_with_a_reason(house: House) -> None:
    port = await house.serve(Recorder(b"x"))
    house.bind()
    held = [house.tcp("127.0.0.1", port) for _ in range(20)]
    for stream in held:
        await stream.send(b"\0")
        await read_until(stream, b"x")
    one_more = house.tcp("127.0.0.1", port)

    with pytest.raises(StreamReset, match="more than 20 connections"):
        await one_more.receive()
    assert house.told("limit")


# Interception.


class Guest:
    """A TLS client in the guest, over a CONNECT through the proxy."""

    def __init__(self, house: House, host: str, port: int, *, trust: str) -> None:
        self.house, self.host, self.port = house, host, port
        self.context = ssl.create_default_context(cadata=trust)

    async def __aenter__(self) -> Guest:
        self.stream = self.house.proxy()
        await self.stream.send(f"CONNECT {self.host}:{self.port} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
        answer = await read_until(self.stream, b"\r\n\r\n")
        assert b" 200 " in answer, answer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = self.context.wrap_bio(self._in, self._out, server_hostname=self.host)
        await self._do(self.tls.do_handshake)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stream.reset("cancelled", "done")

    async def _do(self, act, *arguments):
        async with asyncio.timeout(10):
            while True:
                try:
                    result = act(*arguments)
                except ssl.SSLWantReadError:
                    if out := self._out.read():
                        await self.stream.send(out)
                    item = await self.stream.receive()
                    if item is None:
                        self._in.write_eof()
                    else:
                        self._in.write(item)
                    continue
                if out := self._out.read():
                    await self.stream.send(out)
                return result

    async def ask(self, text: str, *, until: bytes = b"ok") -> bytes:
        await self._do(self.tls.write, text.encode())
        found = b""
        while until not in found:
            try:
                data = await self._do(self.tls.read, 65536)
            except (ssl.SSLError, StreamReset):
                break
            if not data:
                break
            found += data
        return found


def server_side(house: House, name: str) -> ssl.SSLContext:
    """A server of the test's, whose authority the gateway trusts."""
    folder = house.folder / "servers"
    folder.mkdir(exist_ok=True)
    authority = load_authority(folder, SystemClock())
    house.sockets.tls.load_verify_locations(cadata=authority.pem.decode())
    return authority.context(name)


async def intercepted(house: House, server: Recorder, **plan) -> tuple[int, str]:
    port = await house.serve(server, tls=server_side(house, "api.test"))
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    return port, house.secret(f"api.test:{port}", **plan)


async def test_the_value_goes_to_its_host_and_never_comes_back(house: House) -> None:
    server = Recorder()
    port, mark = await intercepted(house, server)
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        await guest.ask(f"GET /?k={mark} HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer {mark}\r\n\r\n")

    assert b"GET /?k=the-real-value-1 " in server.got and b"Bearer the-real-value-1\r\n" in server.got
    assert [it.secrets for it in house.told("request")] == [("KEY",)]
    assert "the-real-value-1" not in (house.folder / "egress.jsonl").read_text()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nxx the-real-value-1 ",
        b"HTTP/1.1 200 OK\r\nX-Echo: the-real-value-1\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n" + base64.b64encode(b"the-real-value-1"),
    ],
)
async def test_an_answer_that_holds_the_value_is_cut_and_reported(house: House, answer: bytes) -> None:
    port, mark = await intercepted(house, Recorder(answer))
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        found = await guest.ask(f"GET / HTTP/1.1\r\nHost: api.test\r\nX: {mark}\r\n\r\n")

    assert b"the-real" not in found and base64.b64encode(b"the-real-value-1") not in found
    assert [it.allowed for it in house.told("secret")] == [False]


async def test_se_09_a_new_value_counts_from_the_next_request_on_an_open_connection(house: House) -> None:
    server = Recorder()
    port, mark = await intercepted(house, server)
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        await guest.ask(f"GET /1 HTTP/1.1\r\nHost: api.test\r\nX: {mark}\r\n\r\n")
        house.secret(f"api.test:{port}", "the-second-value")
        await guest.ask(f"GET /2 HTTP/1.1\r\nHost: api.test\r\nX: {mark}\r\n\r\n")

    assert b"X: the-second-value" in server.got and server.connections == 1


async def test_se_03_bodies_are_byte_identical(house: House) -> None:
    server = Recorder()
    port, mark = await intercepted(house, server)
    body = "".join(f"1\r\n{c}\r\n" for c in f"{mark} in a body") + "0\r\n\r\n"
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        await guest.ask(f"POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n{body}")

    assert server.got.endswith(body.encode())


@pytest.mark.parametrize(
    ("request_text", "rule"),
    [
        ("TRACE / HTTP/1.1\r\nHost: api.test\r\n\r\n", b"TRACE"),
        ("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", b"other.test"),
        ("CONNECT x.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n", b"tunnel"),
    ],
)
async def test_some_requests_to_a_secret_host_are_refused(house: House, request_text: str, rule: bytes) -> None:
    server = Recorder()
    port, _ = await intercepted(house, server)
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        answer = await guest.ask(request_text, until=b"\n\n")

    assert b"403" in answer and rule in answer and server.got == b""


async def test_a_server_whose_certificate_is_not_valid_gets_nothing(house: House) -> None:
    server = Recorder()
    port = await house.serve(server, tls=server_side(house, "other.test"))
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    mark = house.secret(f"api.test:{port}")
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        answer = await guest.ask(f"GET / HTTP/1.1\r\nHost: api.test\r\nX: {mark}\r\n\r\n", until=b"\n\n")

    assert b"502" in answer and b"certificate of api.test" in answer and server.got == b""
    (failed,) = [it for it in house.told("connection") if it.failure]
    assert (failed.allowed, failed.rule) == (True, "internet: true")
    assert "the certificate of api.test is not valid" in failed.failure


@pytest.mark.parametrize(
    ("host", "why"),
    [("gone.test", "there is no host gone.test"), ("closed.test", "127.0.0.1 port 9 cannot be reached")],
)
async def test_an_allowed_connection_that_fails_is_told_with_its_rule_and_why(
    house: House, host: str, why: str
) -> None:
    house.sockets.hosts["closed.test"] = "127.0.0.1"
    house.bind(allow=["*.test"])
    stream = house.proxy()
    await stream.send(f"CONNECT {host}:9 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

    assert b"502" in await read_all(stream)
    (told,) = house.told()
    assert (told.what, told.host, told.port, told.allowed, told.rule) == ("connection", host, 9, True, "allow: *.test")
    assert why in told.failure


async def test_an_allowed_name_that_does_not_exist_is_told(house: House) -> None:
    house.bind(allow=["*.test"])
    answer = await resolve(house, "gone.test")

    assert answer.rcode() == dns.rcode.NXDOMAIN
    (told,) = house.told()
    assert (told.what, told.host, told.allowed, told.rule) == ("dns", "gone.test", True, "allow: *.test")
    assert told.failure == "there is no host gone.test"


async def test_a_silent_server_is_a_504_within_its_bound(house: House) -> None:
    house.gateway.response_s = 0.5
    server = Recorder(b"")
    port, _ = await intercepted(house, server)
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        answer = await guest.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n", until=b"\n\n")

    assert b"504" in answer and b"did not answer in 0.5 s" in answer
    (failed,) = [it for it in house.told("request") if it.failure]
    assert (failed.host, failed.allowed) == ("api.test", True) and "did not answer in 0.5 s" in failed.failure


async def test_se_13_a_host_without_a_secret_is_passed_through_untouched(house: House) -> None:
    server = Recorder()
    context = server_side(house, "free.test")
    port = await house.serve(server, tls=context)
    house.sockets.hosts["free.test"] = "127.0.0.1"
    house.bind()
    house.secret(f"api.test:{port}")
    trust = load_authority(house.folder / "servers", SystemClock()).pem.decode()
    async with Guest(house, "free.test", port, trust=trust) as guest:
        assert await guest.ask("GET / HTTP/1.1\r\nHost: free.test\r\nX: rtsec_KEY\r\n\r\n") == server.answer

    assert b"rtsec_KEY" in server.got


async def test_se_05_plain_http_never_carries_the_value(house: House) -> None:
    server = Recorder()
    port = await house.serve(server)
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    mark = house.secret(f"api.test:{port}")
    stream = house.proxy()
    await stream.send(f"GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test\r\nX: {mark}\r\n\r\n".encode())
    await read_until(stream, b"ok")

    assert mark.encode() in server.got and b"the-real-value-1" not in server.got


async def test_a_sandbox_without_the_use_of_secrets_is_not_intercepted(house: House) -> None:
    server = Recorder()
    port, _ = await intercepted(house, server)
    house.bind(secrets=frozenset())
    trust = load_authority(house.folder / "servers", SystemClock()).pem.decode()
    async with Guest(house, "api.test", port, trust=trust) as guest:
        await guest.ask("GET / HTTP/1.1\r\nHost: api.test\r\nX: rtsec_KEY\r\n\r\n")

    assert b"rtsec_KEY" in server.got and house.gateway.secrets_of(SANDBOX) == ()


async def test_a_websocket_passes_and_its_answers_are_guarded(house: House) -> None:
    async def websocket(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"the-real-value-1" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi")
        data = await reader.read(100)
        writer.write(b"\x81\x04" + data[:4])
        writer.write(b"\x81\x10the-real-value-1")

    port = await house.serve(websocket, tls=server_side(house, "api.test"))
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    mark = house.secret(f"api.test:{port}")
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        upgrade = "GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        assert (await guest.ask(f"{upgrade}X: {mark}\r\n\r\n", until=b"\x81\x02hi")).endswith(b"\x81\x02hi")
        rest = await guest.ask("ping", until=b"never")

    assert b"the-real" not in rest
    assert house.told("secret")


async def test_a_websocket_that_ends_in_the_beginning_of_a_value_loses_nothing(house: House) -> None:
    async def websocket(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nthe-real-value"
        )
        writer.close()

    port = await house.serve(websocket, tls=server_side(house, "api.test"))
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    house.secret(f"api.test:{port}")
    async with Guest(house, "api.test", port, trust=house.gateway.ca_pem) as guest:
        upgrade = "GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert (await guest.ask(upgrade, until=b"the-real-value")).endswith(b"\r\n\r\nthe-real-value")


async def test_an_answer_is_read_whole_before_the_connection_is_gone(house: House) -> None:
    """A reset that overtakes the end of an answer makes a program lose what it has not read yet."""
    port = await house.serve(Recorder())
    house.sockets.hosts["api.test"] = "127.0.0.1"
    house.bind()
    stream = house.proxy()
    request = f"GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"
    await stream.send(request.encode())
    await read_until(stream, b"ok")

    assert await stream.receive() is None
    stream.end()
