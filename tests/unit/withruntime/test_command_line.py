"""The command line, as a program of its own against a scripted service."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_server import Reply, Request, ScriptedServer, answer, ndjson, refusal
from typer.testing import CliRunner

from withruntime.cli.app import app

PROCESSES = "/v1/sandboxes/a/processes"
OUTPUT = f"{PROCESSES}/p/output"
PROCESS = {"id": "p", "state": "running", "outputEncoding": "base64", "outputBytes": 3}


def runtime(*words: str, stdin: object = subprocess.DEVNULL, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "withruntime.cli", *words]
    return subprocess.run(command, stdin=stdin, capture_output=True, timeout=60, **options)  # type: ignore[call-overload]


def chunk(data: bytes, offset: int, stream: str = "stdout") -> dict:
    encoded = base64.b64encode(data).decode()
    return {"type": stream, "data": data.decode("utf-8", "replace"), "base64": encoded, "offset": offset}


def script(service: ScriptedServer, *events: dict, **end: object) -> None:
    """A process that writes these and ends."""
    service.on("POST", PROCESSES, answer(PROCESS))
    service.on("GET", f"{PROCESSES}/p", answer({**PROCESS, "state": "exited"}))
    service.on("POST", f"{PROCESSES}/p:signal", answer({}))
    service.on("GET", OUTPUT, ndjson(*events, {"type": "exit", "exitCode": 0, **end}))


def test_run_passes_bytes_through_and_nothing_else(service: ScriptedServer):
    script(service, chunk(b"42\n\xff\xc3", 0), chunk(b"warn\n", 5, "stderr"), chunk(b"\xa9", 10))
    done = runtime("sandbox", "run", "--trial", "--", "python3", "-c", "print(6 * 7)")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n\xff\xc3\xa9", b"warn\n")
    assert service.sent("POST", "/v1/sandboxes")[0].json == {"funding": "trial"}
    assert service.sent("POST", PROCESSES)[0].json == {
        "argv": ["python3", "-c", "print(6 * 7)"],
        "timeoutMs": 86_400_000,
        "outputEncoding": "base64",
    }
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


@pytest.mark.parametrize("command", [["create"], ["run", "--", "true"]])
def test_what_a_sandbox_may_cost_is_said_in_dollars_and_sent_in_microdollars(
    service: ScriptedServer, command: list[str]
):
    script(service)
    money = ["--max-cost", "0.05", "--max-total-cost", "$2", "--trial", "--cpu-floor", "250"]
    done = runtime("sandbox", command[0], *money, *command[1:])

    assert done.returncode == 0, done.stderr
    assert service.sent("POST", "/v1/sandboxes")[0].json == {
        "maxCostMicros": 50_000,
        "maxTotalCostMicros": 2_000_000,
        "funding": "trial",
        "cpuFloorMillis": 250,
    }


def test_all_vcpus_can_be_reserved(service: ScriptedServer):
    done = runtime("sandbox", "create", "--reserved")

    assert done.returncode == 0, done.stderr
    assert service.sent("POST", "/v1/sandboxes")[0].json == {"cpu": "reserved"}


@pytest.mark.parametrize("amount", ["-1", "12 EUR", "1e3", "0.0000001", "", "nan"])
def test_an_amount_that_is_none_is_wrong_usage_and_nothing_is_sent(service: ScriptedServer, amount: str):
    told = CliRunner().invoke(app, ["sandbox", "create", f"--max-cost={amount}"])

    assert told.exit_code == 2
    assert "--max-cost" in told.stderr
    assert service.sent("POST", "/v1/sandboxes") == []


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"exitCode": 7}, 7),
        ({"exitCode": -9}, 137),
        ({"exitCode": -15}, 143),
        ({"exitCode": None, "timedOut": True}, 124),
        ({"exitCode": -9, "state": "timed_out"}, 124),
        ({"exitCode": None}, 137),
    ],
)
def test_the_exit_code_is_the_command_s(service: ScriptedServer, end: dict, code: int):
    script(service, **end)

    assert runtime("sandbox", "run", "--timeout", "1", "--", "x").returncode == code
    assert service.sent("POST", PROCESSES)[0].json["timeoutMs"] == 1000


def test_what_follows_the_command_belongs_to_it(service: ScriptedServer):
    script(service)
    runtime("sandbox", "run", "-e", "A=b=c", "--cwd", "/tmp", "ls", "--json", "-e", "--", "x")

    sent = service.sent("POST", PROCESSES)[0].json
    assert sent["argv"] == ["ls", "--json", "-e", "--", "x"]
    assert (sent["env"], sent["cwd"]) == ({"A": "b=c"}, "/tmp")


@pytest.mark.parametrize("verb", ["exec", "spawn"])
def test_options_may_stand_on_either_side_of_the_sandbox(service: ScriptedServer, verb: str):
    script(service)
    runtime("sandbox", verb, "--cwd", "/tmp", "a", "-e", "A=1", "--", "ls", "-e", "--", "x")

    sent = service.sent("POST", PROCESSES)[0].json
    assert (sent["argv"], sent["env"], sent["cwd"]) == (["ls", "-e", "--", "x"], {"A": "1"}, "/tmp")


def test_input_is_passed_on_to_its_end(service: ScriptedServer):
    script(service)
    got = bytearray()

    def take(request: Request) -> Reply:
        got.extend(base64.b64decode(request.json["base64"]))
        if request.json["eof"]:
            ended.set()
        return answer({"offset": len(got)})

    import threading

    ended = threading.Event()
    service.on("POST", f"{PROCESSES}/p:write", take)
    service.on("GET", OUTPUT, Reply(chunks=ndjson({"type": "exit", "exitCode": 0}).chunks, hold=ended))
    done = runtime("sandbox", "exec", "a", "--", "cat", stdin=None, input=b"hello\0" * 50_000)

    assert done.returncode == 0
    assert bytes(got) == b"hello\0" * 50_000
    assert service.sent("POST", PROCESSES)[0].json["stdinMode"] == "pipe"


@pytest.mark.parametrize("source", ["/dev/zero", "a silent pipe"])
def test_ex_21_the_end_of_the_process_ends_the_command_line_whatever_its_input_does(
    service: ScriptedServer, source: str
):
    script(service)
    service.on("POST", f"{PROCESSES}/p:write", refusal(409, "stdin_closed"))
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb"), os.fdopen(reading, "rb") as silent, open("/dev/zero", "rb") as zero:
        stdin = zero if source == "/dev/zero" else silent
        done = runtime("sandbox", "exec", "a", "--", "true", stdin=stdin)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_leaves_ends_the_command_and_the_sandbox(service: ScriptedServer):
    script(service, *(chunk(b"y\n" * 50_000, number * 100_000) for number in range(20)))
    command = f"{sys.executable} -m withruntime.cli sandbox run -- yes | head -n 1"
    done = subprocess.run(["bash", "-c", f'{command}; echo "${{PIPESTATUS[0]}}"'], capture_output=True, timeout=60)

    assert done.stdout.split() == [b"y", b"141"]
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


def test_keep_leaves_the_sandbox_and_says_which(service: ScriptedServer):
    script(service)
    done = runtime("sandbox", "run", "--keep", "--", "true")

    assert b"the sandbox is a" in done.stderr
    assert service.sent("DELETE", ".*") == []


def test_a_result_as_json_holds_the_output(service: ScriptedServer):
    script(service, chunk(b"out", 0), exitCode=3)
    done = runtime("sandbox", "run", "--json", "--", "x")

    told = json.loads(done.stdout)
    assert (told["stdout"], told["exitCode"], told["sandboxId"], done.returncode) == ("out", 3, "a", 3)


def test_a_refusal_is_a_sentence_with_the_way_out_and_exit_code_1(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", refusal(404, "image_not_found", hint="Build it first."))
    done = runtime("sandbox", "run", "--image", "nope", "--", "x")

    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        "runtime: error: image_not_found it is",
        "runtime: hint: Build it first.",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["sandbox", "run"],
        ["sandbox", "run", "--timeout", "0", "--", "x"],
        ["sandbox", "run", "--timeout", "soon", "--", "x"],
        ["sandbox", "run", "--env", "A", "--", "x"],
        ["sandbox", "run", "--user", "nobody", "--", "x"],
        ["sandbox", "cp", "here", "there"],
        ["sandbox", "fly"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_sends_nothing(service: ScriptedServer, words: list[str]):
    done = runtime(*words)

    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert service.requests == []


def test_a_wrong_address_is_wrong_usage(service: ScriptedServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNTIME_API_URL", "http://example.org")
    done = runtime("sandbox", "ls")

    assert done.returncode == 2
    assert b"use https" in done.stderr


def test_a_sandbox_is_found_by_its_name(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/mine", refusal(404, "not_found"))
    service.on("GET", "/v1/sandboxes", answer({"data": [{"id": "a", "name": "mine", "state": "running"}]}))
    done = runtime("sandbox", "get", "mine", "--json")

    assert json.loads(done.stdout)["id"] == "a"


def test_a_list_is_a_table_that_a_terminal_can_trust(service: ScriptedServer):
    evil = {"id": "a", "name": "x\x1b[31m\ny", "state": "running"}
    service.on("GET", "/v1/sandboxes", answer({"data": [evil], "nextCursor": None}))
    lines = runtime("sandbox", "ls", "--label", "job=42").stdout.decode().splitlines()

    assert lines[0].split() == ["ID", "NAME", "STATE", "VCPU", "MEMORYMIB", "IMAGE", "CREATEDAT", "ENDSAT"]
    assert lines[1].split()[:3] == ["a", "x?[31m?y", "running"]
    assert service.requests[0].query == {"label": ["job:42"]}


def test_create_stop_extend_and_rm_say_what_they_did(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:extend", answer({"id": "a", "state": "running", "endsAt": "2030"}))

    assert runtime("sandbox", "create", "--memory", "512", "--lease", "60", "--env", "A=b").stdout == b"a\n"
    assert service.requests[-1].json == {"memoryMiB": 512, "timeoutSeconds": 60, "env": {"A": "b"}}
    assert runtime("sandbox", "extend", "a", "60").stdout == b"a ends at 2030\n"
    assert runtime("sandbox", "stop", "a").stdout == b"a\n"
    assert json.loads(runtime("sandbox", "rm", "a", "--json").stdout)[0]["status"] == "deleted"


def test_spawn_ps_logs_and_kill(service: ScriptedServer):
    script(service, chunk(b"a\xff\n", 0))
    service.on("GET", PROCESSES, answer({"data": [{**PROCESS, "command": "sleep 60"}]}))

    assert runtime("sandbox", "spawn", "a", "--", "sleep", "60").stdout == b"p\n"
    assert b"sleep 60" in runtime("sandbox", "ps", "a").stdout
    assert runtime("sandbox", "logs", "a", "p").stdout == b"a\xff\n"
    assert runtime("sandbox", "kill", "a", "p", "-s", "int").returncode == 0
    assert service.requests[-1].json == {"signal": "SIGINT"}


def test_logs_of_a_process_that_still_runs_end_with_what_is_there(service: ScriptedServer):
    script(service)
    service.on("GET", f"{PROCESSES}/p", answer(PROCESS))
    service.on("GET", OUTPUT, Reply(chunks=ndjson(chunk(b"abc", 0)).chunks, hold_end=service.closing))

    done = runtime("sandbox", "logs", "a", "p")

    assert (done.stdout, done.stderr) == (b"abc", b"")


def test_cp_goes_both_ways(service: ScriptedServer, tmp_path: Path):
    (tmp_path / "data.csv").write_bytes(b"1,2")
    service.on("PUT", "/v1/sandboxes/a/files/content", answer({}))
    service.on("GET", "/v1/sandboxes/a/files/stat", answer({"exists": True, "type": "file"}))
    service.on("GET", "/v1/sandboxes/a/files/content", Reply(body=b"out"))

    assert runtime("sandbox", "cp", str(tmp_path / "data.csv"), "a:/workspace/").returncode == 0
    assert service.requests[-1].query["path"] == ["/workspace/data.csv"]
    assert runtime("sandbox", "cp", "a:out.txt", str(tmp_path)).returncode == 0
    assert service.requests[-1].query["path"] == ["/workspace/out.txt"]
    assert (tmp_path / "out.txt").read_bytes() == b"out"


def test_cp_of_what_is_not_here_is_a_sentence(service: ScriptedServer):
    done = runtime("sandbox", "cp", "/no/such/file", "a:/workspace/")

    assert (done.returncode, done.stderr) == (1, b"runtime: error: /no/such/file: No such file or directory\n")


def test_cat_prints_a_file_as_it_is(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a/files/content", Reply(body=b"\0\xff" * 100_000))

    assert runtime("sandbox", "cat", "a", "x").stdout == b"\0\xff" * 100_000


def test_files_are_listed(service: ScriptedServer):
    entry = {"mode": "0644", "owner": "runtime", "size": 3, "modifiedAt": "2030", "path": "/workspace/x"}
    service.on("GET", "/v1/sandboxes/a/files/list", answer({"data": [entry]}))
    done = runtime("sandbox", "files", "a", "--depth", "2", "-a")

    assert done.stdout.decode().splitlines()[1].split() == ["0644", "runtime", "3", "2030", "/workspace/x"]
    assert service.requests[-1].query == {"path": ["/workspace"], "depth": ["2"], "hidden": ["true"]}


def test_the_status_of_a_service_that_does_not_run_is_exit_code_1(service: ScriptedServer):
    done = runtime("server", "status", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["running"] is False


def test_every_command_explains_itself_with_an_example():
    shown = CliRunner()
    groups = [
        ["sandbox", name] for name in "run exec create ls get spawn ps logs kill cp cat files extend stop rm".split()
    ]
    groups += [["server", name] for name in ("start", "status", "stop", "logs")]
    without = [words for words in groups if "runtime " not in shown.invoke(app, [*words, "--help"]).output]

    assert without == []


@pytest.mark.parametrize("command", ["doctor", "image", "admin"])
def test_what_the_service_s_own_program_does_is_passed_on_to_it(
    command: str, monkeypatch: pytest.MonkeyPatch, service: ScriptedServer
):
    became: list[tuple[list[str], str]] = []
    monkeypatch.setattr(os, "execve", lambda _program, words, env: became.append((words, env["RUNTIME_PROGRAM"])))
    CliRunner().invoke(app, [command, "ls", "--fix", "--help"])

    assert became == [([sys.executable, "-m", "runtimed", command, "ls", "--fix", "--help"], "runtime")]


def test_ctrl_c_while_the_program_is_still_loading_prints_no_traceback():
    loading = (
        "import signal, sys, withruntime.cli\n"
        "class Press:\n"
        "    def find_spec(self, *names):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "withruntime.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, timeout=60)

    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(("ended", "told"), [(1, "1 ended one is hidden"), (3, "3 ended ones are hidden"), (0, "")])
def test_a_list_says_how_many_ended_ones_it_does_not_show(service: ScriptedServer, ended: int, told: str):
    def listed(request: Request) -> Reply:
        stopped = [{"id": f"s{number}", "state": "stopped"} for number in range(ended)]
        shown = stopped if "includeStopped" in request.query else [{"id": "a", "state": "running"}]
        return answer({"data": shown, "nextCursor": None})

    service.on("GET", "/v1/sandboxes", listed)
    done = runtime("sandbox", "ls")

    assert done.stdout.split()[8:10] == [b"a", b"-"]
    assert done.stderr.decode() == (f"runtime: {told}: --all shows them\n" if told else "")
    assert runtime("sandbox", "ls", "--all").stderr == b""
    assert runtime("sandbox", "ls", "--json").stderr == b""


@pytest.mark.parametrize("words", [["admin"], ["admin", "key"], ["image"], ["image", "prune"], ["doctor"]])
def test_what_is_passed_on_to_the_service_s_program_shows_the_command_that_was_typed(words: list[str]):
    told = runtime(*words, "--help").stdout.decode()

    assert f"Usage: runtime {' '.join(words)}" in told
    assert "runtimed" not in told


def test_an_error_of_what_is_passed_on_is_of_the_command_that_was_typed(tmp_path: Path):
    done = runtime("admin", "key", "limit", "one", "--state-dir", str(tmp_path))

    assert (done.returncode, done.stderr) == (1, b"runtime: give an amount, or --none to lift the limit\n")


def test_a_refused_field_is_told_by_the_option_that_was_typed(service: ScriptedServer):
    issues = [{"field": "timeoutSeconds", "message": "must be at least 60"}, {"field": "env.A", "message": "is wrong"}]
    service.on("POST", "/v1/sandboxes", refusal(400, "invalid_request", details={"issues": issues}))
    done = runtime("sandbox", "create", "--lease", "5")

    assert (done.returncode, done.stderr) == (1, b"runtime: error: --lease: must be at least 60; --env A: is wrong\n")


def test_a_copy_to_a_folder_that_is_not_there_names_the_folder_and_no_file_of_ours(
    service: ScriptedServer, tmp_path: Path
):
    service.on("GET", "/v1/sandboxes/a/files/stat", answer({"exists": True, "type": "file", "path": "/x", "size": 1}))
    done = runtime("sandbox", "cp", "a:/x", str(tmp_path / "none" / "x"))

    assert done.returncode == 1
    assert done.stderr.decode() == f"runtime: error: {tmp_path / 'none'}: there is no such folder\n"
