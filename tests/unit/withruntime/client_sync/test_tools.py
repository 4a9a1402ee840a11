# Generated from tests/unit/withruntime/client_async/test_tools.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""The four tools for a model, against a scripted service."""

import pytest
from scripted_server import Reply, ScriptedServer, answer, ndjson, refusal

from withruntime import RuntimeError, Sandbox, ServiceUnavailableError
from withruntime.tools import sandbox_tools

EXEC = "/v1/sandboxes/a:exec"
CONTENT = "/v1/sandboxes/a/files/content"
LIST = "/v1/sandboxes/a/files/list"


def printed(text: str) -> Reply:
    end = {"type": "exit", "exitCode": 0}
    return ndjson({"type": "start", "processId": "p"}, {"type": "stdout", "data": text, "offset": 0}, end)


def test_a_command_answers_with_how_it_ended_and_what_it_printed(service: ScriptedServer):
    service.on("POST", EXEC, printed("42\n"))
    execute, *_ = sandbox_tools(Sandbox.connect("a"))

    assert execute("python3 x.py", cwd="sub", timeout_seconds=400) == {
        "exit_code": 0,
        "stdout": "42\n",
        "stderr": "",
        "timed_out": False,
    }
    sent = service.requests[-1].json
    assert (sent["command"], sent["cwd"], sent["timeoutMs"]) == ("python3 x.py", "/workspace/sub", 400_000)


def test_a_long_output_keeps_its_newest_part(service: ScriptedServer):
    service.on("POST", EXEC, printed("a" * 30_000 + "z" * 20_000))
    execute, *_ = sandbox_tools(Sandbox.connect("a"))
    answered = execute("yes")

    first, rest = answered["stdout"].split("\n")
    assert "30000" in first
    assert rest == "z" * 20_000


def test_a_write_says_how_many_bytes_went_where(service: ScriptedServer):
    service.on("PUT", CONTENT, answer({}))
    _, _, write, _ = sandbox_tools(Sandbox.connect("a"))

    assert write("words.py", "é" * 69 + "\n") == "Wrote 139 bytes to /workspace/words.py"
    assert service.requests[-1].query["path"] == ["/workspace/words.py"]


def test_a_read_gives_the_text_and_a_file_that_is_not_there_is_told(service: ScriptedServer):
    service.on("GET", CONTENT, Reply(body=b"text"), refusal(404, "file_not_found"))
    _, read, _, _ = sandbox_tools(Sandbox.connect("a"))

    assert read("/etc/hostname") == "text"
    assert "/etc/nope" in read("/etc/nope")


def test_a_listing_is_short_and_in_order(service: ScriptedServer):
    entries = [{"path": f"/workspace/{name}", "type": "file", "size": 1, "mode": "0644"} for name in "ba"]
    service.on("GET", LIST, answer({"data": entries}))
    *_, list_files = sandbox_tools(Sandbox.connect("a"))

    assert list_files(depth=2) == [
        {"path": "/workspace/a", "type": "file", "size": 1},
        {"path": "/workspace/b", "type": "file", "size": 1},
    ]
    assert service.requests[-1].query["depth"] == ["2"]


def test_a_fault_of_the_service_is_not_told_as_a_file_that_is_not_there(service: ScriptedServer):
    service.on("GET", CONTENT, refusal(500, "internal_error"))
    _, read, _, _ = sandbox_tools(Sandbox.connect("a"))
    with pytest.raises(ServiceUnavailableError):
        read("x")


def test_a_command_that_the_model_has_to_mend_is_told_to_it(service: ScriptedServer):
    service.on("POST", EXEC, refusal(409, "cwd_not_found", message="/workspace/none: no such folder"))
    execute, *_ = sandbox_tools(Sandbox.connect("a"))

    assert execute("ls", cwd="none") == {
        "exit_code": None,
        "stdout": "",
        "stderr": "Error (cwd_not_found): /workspace/none: no such folder",
        "timed_out": False,
    }


@pytest.mark.parametrize(
    ("status", "code"), [(409, "sandbox_stopped"), (409, "sandbox_paused"), (404, "not_found"), (501, "unavailable")]
)
def test_a_sandbox_that_does_not_run_is_raised_and_not_told_to_the_model(
    service: ScriptedServer, status: int, code: str
):
    service.on("POST", EXEC, refusal(status, code))
    service.on("GET", CONTENT, refusal(status, code))
    execute, read, *_ = sandbox_tools(Sandbox.connect("a"))

    with pytest.raises(RuntimeError) as of_a_command:
        execute("ls")
    with pytest.raises(RuntimeError) as of_a_file:
        read("x")

    assert (of_a_command.value.code, of_a_file.value.code) == (code, code)
