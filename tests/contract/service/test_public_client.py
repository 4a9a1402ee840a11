"""The published client, version 0.35.0 and unmodified, works against this service: it is the oracle of the protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from tests.published import python_with

from .conftest import Running, environment

STORY = """
import importlib.metadata, json
from withruntime import Runtime, Sandbox, RuntimeError
from withruntime import InvalidRequestError, NotFoundError, ServiceUnavailableError

told = {"version": importlib.metadata.version("withruntime")}
with Sandbox.create(labels={"who": "oracle"}, env={"GREETING": "hello there"}) as sbx:
    told["state"] = sbx.state
    done = sbx.exec("echo $GREETING; echo oops >&2; exit 7")
    told["exec"] = [done.exit_code, done.stdout, done.stderr, done.timed_out]
    told["argv"] = sbx.exec(["printf", "%s", "$GREETING"]).stdout
    told["timeout"] = sbx.exec("sleep 60", timeout_ms=500).timed_out
    heard = []
    told["streamed"] = sbx.exec("printf 'a\\\\n\\\\n\\\\nb'", on_stdout=heard.append).stdout
    told["heard"] = "".join(heard)
    told["long"] = sbx.exec("echo long", timeout_ms=120_000).stdout
    small, large = bytes(range(256)), bytes(range(256)) * 9000
    for name, content in (("small", small), ("large", large)):
        sbx.files.write(f"/workspace/{name}", content)
    told["small"] = sbx.files.read("/workspace/small") == small
    told["large"] = sbx.files.read("/workspace/large") == large
    told["names"] = sorted(e["name"] for e in sbx.files.list("/workspace") if e["name"] in ("small", "large"))
    told["exists"] = [sbx.files.exists("/workspace/small"), sbx.files.exists("/workspace/none")]
    try:
        sbx.files.read("/workspace/none")
    except NotFoundError as error:
        told["missing"] = error.code
    process = sbx.spawn("read line; echo got $line", stdin="pipe")
    process.write("hi\\n")
    told["spawned"] = process.wait().stdout
    told["listed"] = process.id in [p["id"] if isinstance(p, dict) else p.id for p in sbx.processes()]
    told["found"] = sbx.id in [s.id for s in Runtime().sandboxes.list(labels={"who": "oracle"})]
    try:
        Sandbox.create(vcpu=99)
    except InvalidRequestError as error:
        told["invalid"] = error.details["issues"][0]["field"]
    try:
        sbx.interpreter.run("6*7")
    except ServiceUnavailableError as error:
        told["not built"] = str(error).splitlines()[:2]
    told["no sockets"] = []
    for opened in (lambda: sbx.terminal(command="hush-hush"), lambda: sbx.forward_port(8000)):
        try:
            opened()
        except RuntimeError as error:
            told["no sockets"].append([error.code, error.message])
    sandbox_id = sbx.id
try:
    Runtime().sandboxes.get(sandbox_id)
except NotFoundError as error:
    told["deleted"] = error.code
print(json.dumps(told))
"""


def test_the_published_client_does_its_whole_day_here(start: Callable[..., Running]) -> None:
    service = start()
    env = environment(RUNTIME_API_URL=service.url, RUNTIME_API_KEY=service.key)

    ran = subprocess.run(
        [str(python_with("client")), "-I", "-c", STORY], capture_output=True, text=True, env=env, timeout=120
    )

    assert ran.returncode == 0, f"{ran.stderr}\n{service.log.read_text()[-3000:]}"
    assert json.loads(ran.stdout) == {
        "version": "0.35.0",
        "state": "running",
        "exec": [7, "hello there\n", "oops\n", False],
        "argv": "$GREETING",
        "timeout": True,
        "streamed": "a\n\n\nb",
        "heard": "a\n\n\nb",
        "long": "long\n",
        "small": True,
        "large": True,
        "names": ["large", "small"],
        "exists": [True, False],
        "missing": "file_not_found",
        "spawned": "got hi\n",
        "listed": True,
        "found": True,
        "invalid": "vcpu",
        "not built": [
            "[unavailable 501] the code interpreter (interpreter:run): not available in this version",
            "Hint: run the code as a command: exec(['python3', '-c', code])",
        ],
        "no sockets": [
            ["terminal_refused", "terminals over WebSocket (terminal): not available in this version"],
            ["unavailable", "forwarding a port (tunnel): not available in this version"],
        ],
        "deleted": "not_found",
    }
    assert "hush" not in service.log.read_text()
