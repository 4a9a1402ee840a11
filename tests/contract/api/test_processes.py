"""Processes: started, read by position, written to, signalled."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from runtimed.core.commands import Output, PtySize
from runtimed.core.ids import ProcessId

from .conftest import Api


async def spawn(api: Api, sandbox_id: str, **body: Any) -> dict[str, Any]:
    reply = await api.call("POST", f"/v1/sandboxes/{sandbox_id}/processes", body)
    assert reply.status_code == 201, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def test_a_spawned_process_is_answered_at_once_and_listed(api: Api) -> None:
    api.script(gate=asyncio.Event())
    made = await api.create()

    process = await spawn(api, made["id"], argv=["sleep", "60"])
    listed = (await api.http.get(f"/v1/sandboxes/{made['id']}/processes")).json()["data"]

    assert (process["kind"], process["state"], process["command"]) == ("process", "running", "sleep 60")
    assert (process["timeoutMs"], process["stdinOpen"], process["pty"]) == (86_400_000, False, False)
    assert [p["id"] for p in listed] == [process["id"]]


async def test_a_long_command_is_shown_to_its_first_256_characters(api: Api) -> None:
    made = await api.create()

    process = await spawn(api, made["id"], command="# tag=x " + "y" * 1000)

    assert process["command"] == ("bash -c # tag=x " + "y" * 1000)[:256]


async def test_a_terminal_takes_input_without_being_asked_to(api: Api) -> None:
    made = await api.create()
    await spawn(api, made["id"], command="bash", pty={"cols": 100, "rows": 40})

    command = api.guest(made["id"]).sim_processes.started[0]

    assert (command.pty, command.stdin_pipe) == (PtySize(cols=100, rows=40), True)


async def test_output_is_followed_from_a_position_to_the_exit(api: Api) -> None:
    api.script(output=[("stdout", b"abcdef")], exit_code=3)
    made = await api.create()
    process = await spawn(api, made["id"], command="x")

    reply = await api.http.get(
        f"/v1/sandboxes/{made['id']}/processes/{process['id']}/output", params={"cursor": 2, "follow": "true"}
    )

    told = [json.loads(line) for line in reply.text.splitlines() if line]
    assert told[0] == {"type": "stdout", "offset": 2, "data": "cdef"}
    assert (told[-1]["type"], told[-1]["exitCode"]) == ("exit", 3)


async def test_a_process_asked_to_speak_base64_does_so_in_every_chunk(api: Api) -> None:
    api.script(output=[("stdout", b"plain")])
    made = await api.create()
    process = await spawn(api, made["id"], command="x", outputEncoding="base64")
    path = f"/v1/sandboxes/{made['id']}/processes/{process['id']}/output"

    followed = json.loads((await api.http.get(path, params={"follow": "true"})).text.splitlines()[0])
    polled = (await api.http.get(path)).json()["chunks"][0]

    assert process["outputEncoding"] == "base64"
    assert base64.b64decode(followed["base64"]) == base64.b64decode(polled["base64"]) == b"plain"


async def test_polling_answers_what_there_is_and_where_to_go_on(api: Api) -> None:
    api.script(gate=asyncio.Event(), output=[("stdout", b"abc"), ("stderr", b"de")])
    made = await api.create()
    process = await spawn(api, made["id"], command="x")
    path = f"/v1/sandboxes/{made['id']}/processes/{process['id']}/output"

    first = (await api.http.get(path, params={"waitMs": 8000})).json()
    second = (await api.http.get(path, params={"cursor": first["nextCursor"]})).json()

    streams = "".join(chunk["stream"] for chunk in first["chunks"])
    assert streams.startswith("stdout")
    assert first["chunks"][0] == {"stream": "stdout", "text": "abc", "offset": 0}
    assert second["nextCursor"] == 5
    assert second["process"]["state"] == "running"


async def test_a_poll_that_waits_in_vain_answers_nothing(api: Api) -> None:
    api.script(gate=asyncio.Event())
    made = await api.create()
    process = await spawn(api, made["id"], command="x")

    reply = await api.http.get(
        f"/v1/sandboxes/{made['id']}/processes/{process['id']}/output", params={"cursor": 0, "waitMs": 20}
    )

    assert (reply.json()["chunks"], reply.json()["nextCursor"]) == ([], 0)


async def test_output_that_is_gone_is_said_with_its_amount(api: Api) -> None:
    made = await api.create()
    process = await spawn(api, made["id"], command="x")
    inner = api.guest(made["id"]).sim_processes._all[ProcessId(process["id"])]
    inner.output = [Output(stream="stdout", offset=100, data=b"new")]
    path = f"/v1/sandboxes/{made['id']}/processes/{process['id']}/output"

    followed = json.loads((await api.http.get(path, params={"follow": "true"})).text.splitlines()[0])
    polled = (await api.http.get(path)).json()

    assert followed == {"type": "truncated", "droppedBytes": 100, "resumeAt": 100}
    assert (polled["droppedBytes"], polled["nextCursor"]) == (100, 103)


async def test_input_counts_its_bytes_and_ends(api: Api) -> None:
    api.script(gate=asyncio.Event())
    made = await api.create()
    process = await spawn(api, made["id"], command="cat", stdinMode="pipe")
    path = f"/v1/sandboxes/{made['id']}/processes/{process['id']}:write"
    text = base64.b64encode(b"hello").decode()

    first = await api.call("POST", path, {"base64": text, "offset": 0})
    again = await api.call("POST", path, {"base64": text, "offset": 0})
    end = await api.call("POST", path, {"base64": "", "offset": 5, "eof": True})
    late = await api.call("POST", path, {"data": "x", "offset": 5})

    assert [first.json()["offset"], again.json()["offset"], end.json()["offset"]] == [5, 5, 5]
    assert (late.status_code, late.json()["error"]["code"]) == (409, "stdin_closed")


async def test_a_signal_ends_a_process_with_its_negative_number(api: Api) -> None:
    api.script(gate=asyncio.Event())
    made = await api.create()
    process = await spawn(api, made["id"], command="x")

    reply = await api.call("POST", f"/v1/sandboxes/{made['id']}/processes/{process['id']}:signal", {})

    assert (reply.json()["state"], reply.json()["exitCode"]) == ("killed", -15)


@pytest.mark.parametrize("rest", ["", "/output", "/output?follow=true"])
async def test_a_process_that_is_not_there_is_not_found(api: Api, rest: str) -> None:
    made = await api.create()

    reply = await api.http.get(f"/v1/sandboxes/{made['id']}/processes/nope{rest}")

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "process_not_found")


async def test_a_repeated_spawn_is_one_process(api: Api) -> None:
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}/processes"

    first = await api.call("POST", path, {"command": "x"}, key="k")
    again = await api.call("POST", path, {"command": "x"}, key="k")

    assert again.json() == first.json() | {"replayed": True}
    assert len(api.guest(made["id"]).sim_processes.started) == 1
