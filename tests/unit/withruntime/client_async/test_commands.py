"""Commands and processes, against a scripted service that breaks in every way."""

import pytest
from scripted_server import RESET, Reply, ScriptedServer, answer, ndjson, refusal

from withruntime import (
    AsyncProcess,
    AsyncSandbox,
    CommandError,
    NotFoundError,
    OutcomeUnknownError,
    RateLimitError,
    RuntimeError,
)

EXEC = "/v1/sandboxes/a:exec"
OUTPUT = "/v1/sandboxes/a/processes/p/output"
START = {"type": "start", "processId": "p"}
EXIT = {"type": "exit", "exitCode": 0, "state": "exited"}


def out(text: str, offset: int) -> dict:
    return {"type": "stdout", "data": text, "offset": offset}


async def sandbox_of(service: ScriptedServer) -> AsyncSandbox:
    return await AsyncSandbox.connect("a")


async def process_of(service: ScriptedServer, **info: object) -> AsyncProcess:
    service.on("POST", "/v1/sandboxes/a/processes", answer({"id": "p", "state": "running", **info}))
    return await (await sandbox_of(service)).spawn("sleep 60", stdin="pipe")


async def test_a_short_command_is_answered_in_one_piece(service: ScriptedServer):
    service.on("POST", EXEC, answer({"exitCode": 3, "stdout": "o", "stderr": "e", "timedOut": False}))
    result = await (await sandbox_of(service)).exec("false", cwd="/tmp", env={"A": "$(id)"}, user="root")

    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, "o", "e", False)
    assert service.requests[-1].json == {"command": "false", "cwd": "/tmp", "user": "root", "env": {"A": "$(id)"}}


async def test_a_list_runs_without_a_shell_and_bytes_travel_as_base64(service: ScriptedServer):
    service.on("POST", EXEC, answer({"exitCode": 0, "stdout": "", "stderr": ""}))
    await (await sandbox_of(service)).exec(["cat", "-"], stdin=b"\xff")

    assert service.requests[-1].json == {"argv": ["cat", "-"], "stdinBase64": "/w=="}


@pytest.mark.parametrize(
    ("answered", "code"),
    [
        ({"exitCode": 1, "stderr": "no"}, "command_failed"),
        ({"exitCode": None, "timedOut": True}, "command_timeout"),
        ({"exitCode": -9, "outOfMemory": {"message": "too much", "hint": "ask for more"}}, "out_of_memory"),
    ],
)
async def test_a_checked_command_that_fails_is_an_error(service: ScriptedServer, answered: dict, code: str):
    service.on("POST", EXEC, answer({"stdout": "", "stderr": "", **answered}))
    with pytest.raises(CommandError) as failed:
        await (await sandbox_of(service)).exec("x", check=True)

    assert failed.value.code == code
    assert failed.value.exit_code == answered["exitCode"]


async def test_a_long_command_is_streamed_and_collected(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, out("a", 0), {"type": "stderr", "data": "e", "offset": 1}, EXIT))
    result = await (await sandbox_of(service)).exec("x", timeout_ms=60_001)

    assert (result.stdout, result.stderr, result.exit_code, result.process_id) == ("a", "e", 0, "p")
    assert service.requests[-1].json == {"command": "x", "timeoutMs": 60_001, "stream": True}


async def test_callbacks_hear_the_output_as_it_comes(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, out("a", 0), out("b", 1), EXIT))
    heard: list[str] = []
    result = await (await sandbox_of(service)).exec("x", on_stdout=heard.append)

    assert heard == ["a", "b"]
    assert result.stdout == "ab"
    assert service.requests[-1].json["timeoutMs"] == 86_400_000


async def test_a_stream_that_breaks_goes_on_where_it_was(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, out("ab", 0), drop=True))
    service.on("GET", OUTPUT, RESET, ndjson(out("cd", 2), EXIT))
    events = [event async for event in (await sandbox_of(service)).exec_stream("x")]

    assert [event["type"] for event in events] == ["start", "stdout", "stdout", "exit"]
    assert [request.query["cursor"] for request in service.sent("GET", OUTPUT)] == [["2"], ["2"]]


async def test_a_stream_that_the_service_hands_on_is_followed(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, {"type": "continue", "processId": "p", "cursor": 0}))
    again = ndjson({"type": "continue", "processId": "p", "cursor": 0})
    service.on("GET", OUTPUT, *[again] * 8, ndjson(out("z", 0), EXIT))
    result = await (await sandbox_of(service)).exec("x", timeout_ms=100_000)

    assert (result.stdout, result.exit_code) == ("z", 0)


async def test_a_stream_that_breaks_before_the_start_is_asked_for_again_under_its_key(service: ScriptedServer):
    service.on("POST", EXEC, RESET, ndjson(), ndjson(START, EXIT))
    result = await (await sandbox_of(service)).exec("x", timeout_ms=100_000)

    assert result.exit_code == 0
    assert len({request.headers["idempotency-key"] for request in service.sent("POST", EXEC)}) == 1


async def test_lost_output_is_told_in_the_stream_and_in_the_result(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, out("a", 0), out("z", 10), EXIT))
    sandbox = await sandbox_of(service)
    events = [event async for event in sandbox.exec_stream("x")]
    result = await sandbox.exec("x", timeout_ms=100_000)

    assert {"type": "truncated", "droppedBytes": 9, "resumeAt": 10} in events
    assert result.stdout_truncated
    assert result.stderr_truncated


async def test_a_fault_of_the_service_is_an_error_and_never_an_exit_code(service: ScriptedServer):
    gone = {"type": "error", "cursor": 1, "error": {"code": "host_lost", "message": "gone", "retryable": False}}
    service.on("POST", EXEC, ndjson(START, out("a", 0), gone))
    with pytest.raises(RuntimeError) as failed:
        await (await sandbox_of(service)).exec("x", timeout_ms=100_000)

    assert failed.value.code == "host_lost"
    assert failed.value.details == {"cursor": 1, "processId": "p"}


async def test_an_error_that_passes_is_followed_through(service: ScriptedServer):
    busy = {"type": "error", "error": {"code": "guest_busy", "message": "busy", "status": 503}}
    service.on("POST", EXEC, ndjson(START, busy))
    service.on("GET", OUTPUT, ndjson(EXIT))

    assert (await (await sandbox_of(service)).exec("x", timeout_ms=100_000)).exit_code == 0


async def test_a_process_that_is_not_known_any_more_ends_the_stream(service: ScriptedServer):
    service.on("POST", EXEC, ndjson(START, drop=True))
    service.on("GET", OUTPUT, refusal(404, "process_not_found"))
    with pytest.raises(NotFoundError):
        await (await sandbox_of(service)).exec("x", timeout_ms=100_000)


async def test_too_many_at_once_is_waited_out(service: ScriptedServer):
    busy = refusal(429, "rate_limited", retryAfterMs=1)
    service.on("POST", EXEC, *[busy] * 7, answer({"exitCode": 0, "stdout": "", "stderr": ""}))

    assert (await (await sandbox_of(service)).exec("true")).exit_code == 0


async def test_a_wait_that_is_too_long_is_left_to_the_caller(service: ScriptedServer):
    service.on("POST", EXEC, refusal(429, "rate_limited", retryAfterMs=61_000))
    with pytest.raises(RateLimitError) as refused:
        await (await sandbox_of(service)).exec("true")

    assert refused.value.retry_after_ms == 61_000
    assert len(service.sent("POST", EXEC)) == 1


async def test_a_spawn_asks_for_what_it_was_told(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a/processes", answer({"id": "p", "state": "running"}))
    sandbox = await sandbox_of(service)
    process = await sandbox.spawn(
        ["a", "b"], stdin="pipe", pty={"cols": 80, "rows": 24}, output_encoding="base64", timeout_ms=5
    )

    assert process.id == "p"
    assert service.requests[-1].json == {
        "argv": ["a", "b"],
        "timeoutMs": 5,
        "pty": {"cols": 80, "rows": 24},
        "outputEncoding": "base64",
        "stdinMode": "pipe",
    }


async def test_waiting_collects_the_output_of_a_process(service: ScriptedServer):
    service.on("GET", OUTPUT, ndjson(out("hi", 0), {**EXIT, "exitCode": -15, "state": "killed"}))
    result = await (await process_of(service)).wait()

    assert (result.stdout, result.exit_code, result.process_id) == ("hi", -15, "p")


async def test_output_as_bytes_needs_a_process_that_sends_bytes(service: ScriptedServer):
    process = await process_of(service)
    with pytest.raises(RuntimeError) as refused:
        [event async for event in process.output_bytes()]

    assert refused.value.code == "binary_output_unavailable"


async def test_output_as_bytes_is_exact(service: ScriptedServer):
    service.on("GET", OUTPUT, ndjson({"type": "stdout", "data": "?", "base64": "/w==", "offset": 0}, EXIT))
    process = await process_of(service, outputEncoding="base64")
    events = [event async for event in process.output_bytes()]

    assert events[0] == {"type": "stdout", "offset": 0, "data": b"\xff"}


async def test_input_that_is_taken_in_parts_is_sent_on_from_where_it_was_taken(service: ScriptedServer):
    write = "/v1/sandboxes/a/processes/p:write"
    process = await process_of(service)
    service.on("POST", write, answer({"offset": 2}), answer({"offset": 5}), answer({"offset": 5}))
    await process.write("hello")
    await process.write("", eof=True)

    sent = [request.json for request in service.sent("POST", write)]
    assert sent == [
        {"base64": "aGVsbG8=", "offset": 0, "eof": False},
        {"base64": "bGxv", "offset": 2, "eof": False},
        {"base64": "", "offset": 5, "eof": True},
    ]


async def test_a_deadline_for_output_says_where_to_go_on(service: ScriptedServer):
    service.on("GET", OUTPUT, Reply(hold=service.closing))
    process = await process_of(service)
    with pytest.raises(RuntimeError) as refused:
        [event async for event in process.output(3, timeout_seconds=0.2)]

    assert refused.value.code == "request_timeout"
    assert refused.value.details == {"processId": "p", "cursor": 3}


async def test_ex_11_waiting_ends_at_the_process_own_limit_also_if_the_service_never_answers(
    service: ScriptedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("withruntime._async.process.WAIT_GRACE_S", 0.1)
    service.on("GET", OUTPUT, Reply(hold=service.closing))
    process = await process_of(service, timeoutMs=100)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await process.wait()

    assert unknown.value.code == "outcome_unknown"
    assert unknown.value.details == {"processId": "p", "cursor": 0}


async def test_ex_07_a_deadline_is_not_moved_by_a_retry_nor_by_a_service_that_drips(
    service: ScriptedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("withruntime._calls.ANSWER_GRACE_S", 0.3)
    service.on("POST", EXEC, RESET, Reply(chunks=(b" ",), hold_end=service.closing))
    with pytest.raises(RuntimeError) as failed:
        await (await sandbox_of(service)).exec("true", timeout_ms=100)

    assert failed.value.code == "connection_error"
    assert len(service.sent("POST", EXEC)) == 2
