"""Commands through the API: results, streams, repeats, and machines that go away."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from runtimed.api import answering
from runtimed.core.commands import Command
from runtimed.core.wait import wait_for
from runtimed.sim.guest import Scripted

from .conftest import Api


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.text.splitlines() if line.strip()]


async def test_a_string_runs_under_bash_and_a_list_without_a_shell(api: Api) -> None:
    made = await api.create()

    await api.exec(made["id"], command="echo $HOME", cwd="/tmp", env={"A": "$(id)"}, user="root", stdin="é")
    await api.exec(made["id"], argv=["echo", "$HOME"], timeoutMs=5)

    first, second = api.guest(made["id"]).sim_processes.started
    assert (first.argv, first.cwd, first.user) == (("bash", "-c", "echo $HOME"), "/tmp", "root")
    assert (first.env, first.stdin, first.timeout_ms) == ({"A": "$(id)"}, "é".encode(), 60_000)
    assert (second.argv, second.timeout_ms, second.user) == (("echo", "$HOME"), 5, None)


async def test_a_non_zero_exit_and_a_timeout_are_results(api: Api) -> None:
    api.script(exit_code=None, signal=9, timed_out=True, output=[("stderr", b"x")])
    made = await api.create()

    reply = await api.exec(made["id"], command="sleep 10")

    assert reply.status_code == 200
    assert {k: reply.json()[k] for k in ("exitCode", "timedOut", "stdout", "stderr", "stderrTruncated")} == {
        "exitCode": -9,
        "timedOut": True,
        "stdout": "",
        "stderr": "x",
        "stderrTruncated": False,
    }


async def test_output_that_is_not_text_survives_as_bytes(api: Api) -> None:
    api.script(output=[("stdout", b"a\xff\xfe\n")])
    made = await api.create()

    body = (await api.exec(made["id"], command="x")).json()

    assert body["stdout"] == "a\ufffd\ufffd\n"
    assert base64.b64decode(body["stdoutBase64"]) == b"a\xff\xfe\n"
    assert "stderrBase64" not in body


async def test_more_output_than_an_answer_holds_is_said_with_its_amount(api: Api) -> None:
    api.script(output=[("stdout", b"x" * 100_000)])
    made = await api.create()

    short = (await api.exec(made["id"], command="x")).json()
    long = (await api.exec(made["id"], command="x", timeoutMs=61_000)).json()

    assert (len(short["stdout"]), short["stdoutTruncated"], short["stdoutBytes"]) == (65_536, True, 100_000)
    assert (len(long["stdout"]), long["stdoutTruncated"]) == (100_000, False)


async def test_a_stream_starts_counts_bytes_and_ends_with_the_exit(api: Api) -> None:
    api.script(output=[("stdout", "é".encode()), ("stderr", b"\xc3"), ("stdout", b"b")], exit_code=7)
    made = await api.create()

    told = events(await api.exec(made["id"], command="x", stream=True))

    assert [e["type"] for e in told] == ["start", "stdout", "stderr", "stdout", "exit"]
    assert [e["offset"] for e in told[1:4]] == [0, 2, 3]
    assert "base64" not in told[1]
    assert base64.b64decode(told[2]["base64"]) == b"\xc3"
    assert told[4]["exitCode"] == 7
    assert api.guest(made["id"]).sim_processes.started[0].timeout_ms == 86_400_000


async def test_a_repeat_of_a_command_runs_nothing_twice(api: Api) -> None:
    made = await api.create()
    first = await api.exec(made["id"], command="echo hi", key="k")
    again = await api.exec(made["id"], command="echo hi", key="k")

    assert again.json() == first.json() | {"replayed": True}
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(api.guest(made["id"]).sim_processes.started) == 1


async def test_a_repeat_while_the_first_runs_joins_it(api: Api) -> None:
    gate = asyncio.Event()
    api.script(gate=gate, output=[("stdout", b"hi")])
    made = await api.create()
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(api.exec(made["id"], command="x", key="k")) for _ in range(5)]
        await _until_started(api, made["id"])
        gate.set()

    assert {task.result().json()["stdout"] for task in asked} == {"hi"}
    assert len(api.guest(made["id"]).sim_processes.started) == 1


async def test_the_same_key_for_another_command_is_refused(api: Api) -> None:
    made = await api.create()
    await api.exec(made["id"], command="echo hi", key="k")

    reply = await api.exec(made["id"], command="echo ho", key="k")

    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_a_repeat_of_a_stream_is_a_stream_of_the_same_process_from_its_first_byte(api: Api) -> None:
    api.script(output=[("stdout", b"abc")])
    made = await api.create()
    first = events(await api.exec(made["id"], command="x", stream=True, key="k"))
    again = events(await api.exec(made["id"], command="x", stream=True, key="k"))

    assert again[0] == {"type": "start", "processId": first[0]["processId"], "replayed": True}
    assert again[1:] == first[1:]
    assert len(api.guest(made["id"]).sim_processes.started) == 1


async def test_a_refusal_is_not_kept_for_the_repeat(api: Api) -> None:
    api.node.memory_mib = 4096
    made = await api.create()
    refused = await api.call("POST", "/v1/sandboxes", {}, key="k")
    await api.call("DELETE", f"/v1/sandboxes/{made['id']}")

    again = await api.call("POST", "/v1/sandboxes", {}, key="k")

    assert (refused.status_code, again.status_code) == (503, 201)
    assert "replayed" not in again.json()


async def test_st_19_a_create_repeated_after_a_restart_answers_the_same_sandbox(api: Api) -> None:
    first = await api.call("POST", "/v1/sandboxes", {}, key="k")
    await api.service.services.idempotency.close()
    assert not api.service.services.idempotency._runs  # known to the store alone

    again = await api.call("POST", "/v1/sandboxes", {}, key="k")

    assert again.json()["id"] == first.json()["id"]
    assert len(api.node.running()) == 1


async def test_ex_39_a_machine_that_goes_away_is_an_error_and_never_an_exit_code(api: Api) -> None:
    api.script(gate=asyncio.Event())
    made = await api.create()
    async with asyncio.TaskGroup() as group:
        buffered = group.create_task(api.exec(made["id"], command="x"))
        streamed = group.create_task(api.exec(made["id"], command="x", stream=True))
        await _until_started(api, made["id"], 2)
        await api.node.kill(made["id"])  # type: ignore[arg-type]

    assert (buffered.result().status_code, buffered.result().json()["error"]["code"]) == (502, "outcome_unknown")
    assert buffered.result().json()["error"]["details"]["processId"]
    last = events(streamed.result())[-1]
    assert (last["type"], last["error"]["code"], last["cursor"]) == ("error", "host_lost", 0)


async def test_a_fault_of_ours_tells_the_request_id_and_nothing_else(api: Api) -> None:
    def broken(command: Command) -> Scripted:
        raise ZeroDivisionError("sesame")

    api.node.script = broken
    made = await api.create()

    reply = await api.exec(made["id"], command="x")

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (500, "internal_error")
    assert error["requestId"] == reply.headers["x-request-id"]
    assert "sesame" not in reply.text and "ZeroDivision" not in reply.text


async def test_too_many_calls_at_once_are_refused_before_they_run(api: Api) -> None:
    gate = asyncio.Event()
    api.script(gate=gate)
    made = await api.create()
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(api.exec(made["id"], command="x")) for _ in range(4)]
        await _until_started(api, made["id"], 4)
        refused = await api.exec(made["id"], command="x")
        gate.set()

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "guest_busy")
    assert {task.result().status_code for task in running} == {200}
    assert (await api.exec(made["id"], command="x")).status_code == 200


async def test_ex_53_a_long_silent_command_sends_its_headers_early_and_its_result_intact(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LATE_AFTER_S", 0.02)
    gate = asyncio.Event()
    api.script(gate=gate, output=[("stdout", b"done")])
    made = await api.create()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(api.exec(made["id"], command="x", timeoutMs=600_000))
        await _until_started(api, made["id"])
        await asyncio.sleep(0.05)
        gate.set()

    reply = asked.result()
    assert reply.headers["Runtime-Late-Answer"] == "true"
    assert reply.text.startswith(" ")
    assert json.loads(reply.text)["stdout"] == "done"


async def test_an_error_in_a_late_answer_is_the_only_thing_in_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "LATE_AFTER_S", 0.02)
    api.script(gate=asyncio.Event())
    made = await api.create()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(api.exec(made["id"], command="x"))
        await _until_started(api, made["id"])
        await asyncio.sleep(0.05)
        await api.node.kill(made["id"])  # type: ignore[arg-type]

    body = json.loads(asked.result().text)
    assert (asked.result().status_code, body.keys()) == (200, {"error"})
    assert (body["error"]["code"], body["error"]["status"]) == ("outcome_unknown", 502)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({"command": "x", "argv": ["x"]}, "command"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["a", "b\0c"]}, "argv.1"),
        ({"command": "a\0b"}, "command"),
        ({"command": "x", "cwd": "relative"}, "cwd"),
        ({"command": "x", "timeoutMs": 0}, "timeoutMs"),
        ({"command": "x", "timeoutMs": 86_400_001}, "timeoutMs"),
        ({"command": "x", "env": {"A=B": "x"}}, "env"),
        ({"command": "x", "env": {"A": 1}}, "env.A"),
        ({"command": "x", "stdin": "a", "stdinBase64": "YQ=="}, "stdinBase64"),
        ({"command": "x", "stdinBase64": "not base64"}, "stdinBase64"),
        ({"command": "x", "user": "bob"}, "user"),
        ({"command": "x" * (128 * 1024)}, "command"),
        ({"command": "x", "shell": True}, "shell"),
    ],
)
async def test_a_wrong_command_names_its_field_and_runs_nothing(api: Api, body: dict[str, Any], field: str) -> None:
    made = await api.create()

    reply = await api.exec(made["id"], **body)

    assert reply.status_code == 400
    assert [issue["field"] for issue in reply.json()["error"]["details"]["issues"]] == [field]
    assert api.guest(made["id"]).sim_processes.started == []


async def _until_started(api: Api, sandbox_id: str, count: int = 1) -> None:
    async def started() -> bool | None:
        return len(api.guest(sandbox_id).sim_processes.started) >= count or None

    await wait_for("commands being started", started, within_s=5, every_s=0.005)
