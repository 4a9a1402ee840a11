"""What the command line says to somebody who gets it wrong: before anything is done, and with the way out."""

import subprocess
import sys

import pytest
from scripted_server import ScriptedServer, answer, refusal


def runtime(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "withruntime.cli", *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, text=True, timeout=60)


@pytest.mark.parametrize("verb", ["stop", "rm", "pause", "wake", "restart"])
def test_of_several_sandboxes_none_is_touched_when_one_is_unknown(service: ScriptedServer, verb: str):
    service.on("GET", "/v1/sandboxes/b", refusal(404, "not_found"))
    service.on("GET", "/v1/sandboxes", answer({"data": [], "nextCursor": None}))

    done = runtime("sandbox", verb, "a", "b")

    assert (done.returncode, done.stdout) == (1, "")
    assert [request.method for request in service.requests if request.method != "GET"] == []


def test_what_was_done_is_told_although_what_came_after_it_failed(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/b", answer({"id": "b", "state": "paused"}))
    service.on("POST", "/v1/sandboxes/b:stop", refusal(409, "invalid_state"))

    done = runtime("sandbox", "stop", "a", "b")

    assert (done.returncode, done.stdout) == (1, "a\n")


@pytest.mark.parametrize("reference", ["", "a/b", "a:b", "..", "a b", "a%2Fb"])
@pytest.mark.parametrize("words", [("sandbox", "get"), ("snapshot", "get"), ("sandbox", "create", "--snapshot")])
def test_what_can_be_no_id_and_no_name_is_not_sent(service: ScriptedServer, words: tuple[str, ...], reference: str):
    done = runtime(*words, reference)

    assert (done.returncode, f"{reference!r} is no id and no name" in done.stderr) == (2, True)
    assert service.requests == []


def test_a_wrong_value_is_told_by_the_option_that_it_came_from(service: ScriptedServer):
    issues = [
        {"field": "network.allow.0", "message": "is wrong"},
        {"field": "env", "message": "is wrong"},
        {"field": "name", "message": "is wrong"},
    ]
    service.on("POST", "/v1/sandboxes", refusal(400, "invalid_request", details={"issues": issues}))

    told = runtime("sandbox", "create", "--allow", "x").stderr

    assert "error: --allow: is wrong; --env: is wrong; name: is wrong\n" in told


@pytest.mark.parametrize("verb", ["logs", "kill"])
def test_an_unknown_process_says_how_to_list_them(service: ScriptedServer, verb: str):
    service.on("GET", "/v1/sandboxes/a/processes/x", refusal(404, "process_not_found"))

    assert "hint: `runtime sandbox ps a` shows" in runtime("sandbox", verb, "a", "x").stderr


def test_a_secret_without_a_value_is_not_sent(service: ScriptedServer):
    done = runtime("secrets", "set", "KEY", "--host", "api.example", stdin="\n")

    assert (done.returncode, "input" in done.stderr) == (2, True)
    assert service.requests == []


@pytest.mark.parametrize("other", [("--json",), ("--requests", "24h")])
def test_csv_is_one_way_to_show_usage_and_not_two(service: ScriptedServer, other: tuple[str, ...]):
    assert runtime("usage", "--csv", *other).returncode == 2
    assert service.requests == []


@pytest.mark.parametrize("command", ["doctor", "image", "admin"])
def test_the_service_s_own_program_says_what_is_wrong_in_the_same_plain_way(command: str):
    done = runtime(command, "bogus")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert runtime(command, "-h").returncode == 0
