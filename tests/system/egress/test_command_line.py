"""Rules, records and secrets on the command line, against real machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from withruntime import Sandbox

from .fixtures import EgressService
from .world import TestWorld

pytestmark = pytest.mark.system


def runtime(service: EgressService, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RUNTIME_API_URL": service.url, "RUNTIME_API_KEY": service.key}
    command = [sys.executable, "-m", "withruntime.cli", *words]
    return subprocess.run(command, env=env, input=given, capture_output=True, text=True, timeout=200, check=False)


def test_run_with_an_allow_list_names_the_rule_and_asks_nobody(egress_service: EgressService, world: TestWorld) -> None:
    world.forget()
    done = runtime(
        egress_service, "sandbox", "run", "--allow", "example.test", "--", "curl", "-sS", "https://other.test"
    )

    assert done.returncode != 0 and "other.test:443 was refused: not in allow" in done.stderr
    assert world.questions() == [] and world.packets() == []


def test_run_without_internet_but_one_connection(egress_service: EgressService) -> None:
    words = ("sandbox", "run", "--no-internet", "--connect", "allowed.test:80", "--", "curl", "-sS")

    assert runtime(egress_service, *words, "http://allowed.test/").stdout.startswith("hello from allowed.test")
    assert "not in allow" in runtime(egress_service, *words, "http://allowed.test:8080/").stdout


def test_network_shows_and_replaces_rules(egress_service: EgressService, fresh: Sandbox) -> None:
    changed = runtime(egress_service, "sandbox", "network", fresh.id, "--deny", "*.other.test", "--json")
    shown = runtime(egress_service, "sandbox", "network", fresh.id)

    assert json.loads(changed.stdout)["deny"] == ["*.other.test"] and "*.other.test" in shown.stdout
    wrong = runtime(egress_service, "sandbox", "network", fresh.id, "--allow", "a b")
    assert wrong.returncode != 0 and "'a b'" in wrong.stderr


def test_egress_shows_each_verdict(egress_service: EgressService, fresh: Sandbox) -> None:
    fresh.network.set(internet=True, allow=["allowed.test"])
    fresh.exec("curl -s -m 20 http://other.test/", timeout_ms=60_000)
    lines = runtime(egress_service, "sandbox", "egress", fresh.id, "--json").stdout.splitlines()

    assert any(r["host"] == "other.test" and not r["allowed"] for r in map(json.loads, lines))


def test_secrets_come_from_the_input_and_are_never_shown(egress_service: EgressService) -> None:
    value = "a-value-from-the-input"
    made = runtime(egress_service, "secrets", "set", "FROM_CLI", "--host", "api.test", given=value + "\n")
    listed = runtime(egress_service, "secrets", "ls", "--json")
    gone = runtime(egress_service, "secrets", "rm", "FROM_CLI")

    assert made.returncode == 0 and "rtsec_" in made.stdout and gone.returncode == 0
    assert "FROM_CLI" in listed.stdout and value not in made.stdout + made.stderr + listed.stdout
    assert runtime(egress_service, "secrets", "rm", "FROM_CLI").returncode == 1
