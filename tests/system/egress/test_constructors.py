"""A policy holds by every way a machine can start: created, woken, forked, from a snapshot, restarted, adopted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from withruntime import Sandbox

from .fixtures import EgressService
from .world import TestWorld

pytestmark = pytest.mark.system

RULES = {"internet": True, "allow": ["allowed.test"]}
ASK = "curl -s -m 20 http://allowed.test/; curl -s -m 20 http://other.test/; curl -s -m 20 --noproxy '*' http://198.51.100.20/"


@contextmanager
def created(service: EgressService) -> Iterator[Sandbox]:
    with service.sandbox(network=RULES) as sandbox:
        yield sandbox


@contextmanager
def woken(service: EgressService) -> Iterator[Sandbox]:
    with created(service) as sandbox:
        sandbox.pause()
        sandbox.wake()
        yield sandbox


@contextmanager
def narrowed_while_paused(service: EgressService) -> Iterator[Sandbox]:
    with service.sandbox() as sandbox:
        sandbox.pause()
        sandbox.network.set(**RULES)
        sandbox.wake()
        yield sandbox


@contextmanager
def forked(service: EgressService) -> Iterator[Sandbox]:
    with created(service) as sandbox:
        copy = sandbox.fork()
        try:
            yield copy
        finally:
            copy.delete()


@contextmanager
def from_snapshot(service: EgressService) -> Iterator[Sandbox]:
    with created(service) as sandbox:
        kept = sandbox.snapshot()
        copy = service.sandbox(snapshot=kept["id"])
        try:
            yield copy
        finally:
            copy.delete()


@contextmanager
def restarted(service: EgressService) -> Iterator[Sandbox]:
    with service.sandbox(network=RULES, persistent=True) as sandbox:
        sandbox.stop()
        sandbox.restart()
        yield sandbox


@pytest.mark.parametrize(
    "way", [created, woken, narrowed_while_paused, forked, from_snapshot, restarted], ids=lambda way: way.__name__
)
def test_sn_11_the_policy_holds(egress_service: EgressService, world: TestWorld, way: Callable) -> None:
    with way(egress_service) as sandbox:
        world.forget()
        said = sandbox.exec(ASK, timeout_ms=100_000).stdout

        assert "hello from allowed.test" in said and said.count("not in allow") == 2, said
        assert {p["to"] for p in world.packets()} == {"198.51.100.10"} and set(world.questions()) == {"allowed.test"}


def test_a_fork_cannot_use_a_secret_of_its_source(egress_service: EgressService, world: TestWorld) -> None:
    egress_service.client.secrets.set("FORKED", value="value-of-the-source-only", hosts=["api.test"])
    ask = 'curl -sSk -m 30 -H "X-Key: $MARK" https://api.test/x'
    try:
        with egress_service.sandbox() as source:
            mark = source.exec("printenv FORKED").stdout.strip()
            source.exec(ask, env={"MARK": mark}, timeout_ms=60_000)
            assert b"value-of-the-source-only" in world.last_request("api.test")
            copy = source.fork()
            try:
                assert copy.exec("printenv FORKED").stdout == ""
                copy.exec(ask, env={"MARK": mark}, timeout_ms=60_000)
            finally:
                copy.delete()

        assert mark.encode() in world.last_request("api.test")
    finally:
        egress_service.client.secrets.delete("FORKED")
