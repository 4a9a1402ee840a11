"""A world behind documentation addresses and a service whose gateway may reach it, both for the whole run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from withruntime import Runtime, Sandbox

from .world import RANGES, TestWorld, named, why_not
from .world_server import RESOLVER

START_S = 600


@dataclass
class EgressService:
    """A service of the tests' own, and the client that talks to it."""

    process: subprocess.Popen[bytes]
    state: Path
    client: Runtime
    url: str
    key: str

    def sandbox(self, **options) -> Sandbox:
        return self.client.sandboxes.create(**options)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestWorld]:
    if (why := why_not()) is not None:
        pytest.skip(why)
    name, link = named(os.getpid())
    made = TestWorld(folder=tmp_path_factory.mktemp("world"), name=name, link=link)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def egress_service(world: TestWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressService]:
    state = tmp_path_factory.mktemp("egress-state")
    configure(state, world)
    process, known = start_service(state)
    key = (state / "key").read_text().strip()
    client = Runtime(api_key=key, base_url=known["url"])
    try:
        yield EgressService(process, state, client, known["url"], key)
    finally:
        client.close()
        stop_service(process)


def configure(state: Path, world: TestWorld, more: str = "") -> None:
    """The operator's settings: the documentation ranges are open, and the world's resolver and authority are used."""
    (state / "config.toml").write_text(
        f'egress_open_ranges = "{",".join(RANGES)}"\n'
        f'egress_nameservers = "{RESOLVER}"\n'
        f'egress_extra_roots = "{world.roots}"\n'
        "egress_response_s = 5\n"
        f"spares = 0\n{more}"
    )


def start_service(state: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    log = (state / "out.log").open("ab")
    command = [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--end-sandboxes"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + START_S
    while not (state / "service.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the service did not answer: {(state / 'out.log').read_text()[-4000:]}")
        time.sleep(0.1)
    return process, json.loads((state / "service.json").read_text())


def stop_service(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def roomy(egress_service: EgressService) -> Iterator[Sandbox]:
    """One sandbox that many tests use, each setting its own rules."""
    with egress_service.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def fresh(roomy: Sandbox, world: TestWorld) -> Sandbox:
    """That sandbox with the open internet and a world that has forgotten what arrived."""
    roomy.network.set(internet=True)
    world.forget()
    return roomy
