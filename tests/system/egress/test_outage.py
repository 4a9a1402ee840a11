"""A gateway that is killed refuses everything, its sandboxes live on, and the next one goes on with their rules."""

from __future__ import annotations

import json
import signal
import time

import pytest

from withruntime import Runtime

from .fixtures import configure, start_service, stop_service
from .world import TestWorld, until

pytestmark = pytest.mark.system

LOOP = """
import socket, time
held = socket.create_connection(("allowed.test", 5432), 5)
while True:
    try:
        with socket.create_connection(("allowed.test", 80), 5) as s:
            s.sendall(b"GET /loop HTTP/1.1\\r\\nHost: allowed.test\\r\\nConnection: close\\r\\n\\r\\n")
            got = b""
            while piece := s.recv(4096):
                got += piece
            said = "ok" if b"hello" in got else "nothing"
    except OSError as e:
        said = type(e).__name__
    try:
        held.sendall(b"x"); held_is = "open" if held.recv(1) else "ended"
    except OSError as e:
        held_is = type(e).__name__
    print(said, held_is, flush=True)
    time.sleep(0.2)
"""


def test_a_killed_gateway_fails_closed_and_comes_back(world: TestWorld, tmp_path) -> None:
    configure(tmp_path, world)
    process, known = start_service(tmp_path)
    try:
        key = (tmp_path / "key").read_text().strip()
        with Runtime(api_key=key, base_url=known["url"]) as client:
            sandbox = client.sandboxes.create(network={"internet": True, "allow": ["allowed.test"]})
            sandbox.files.write("/tmp/loop.py", LOOP)
            sandbox.spawn("python3 /tmp/loop.py > /tmp/loop.out 2>&1")
            until("the loop reaching its host", lambda: "ok open" in told(sandbox), 30)

        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_path / "service.json").unlink(missing_ok=True)
        world.forget()
        # Long enough for several rounds of the loop; the loop itself says below how they went.
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            world.settle()
        assert sum(p["bytes"] for p in world.packets()) == 0

        process, known = start_service(tmp_path)
        with Runtime(api_key=key, base_url=known["url"]) as client:
            sandbox = client.sandboxes.get(sandbox.id)
            assert sandbox.state == "running", json.dumps(sandbox.info)
            rounds = told(sandbox).split("\n")
            failed = [line for line in rounds if line and not line.startswith("ok")]
            assert failed and all("error" in line.lower() for line in failed), rounds
            until(
                "the loop reaching its host again", lambda: told(sandbox).strip().split("\n")[-1].startswith("ok"), 30
            )
            said = sandbox.exec("curl -s -m 20 http://other.test/", timeout_ms=60_000).stdout
            assert "not in allow" in said
            sandbox.delete()
    finally:
        stop_service(process)


def told(sandbox) -> str:
    return sandbox.files.read_text("/tmp/loop.out") if sandbox.files.exists("/tmp/loop.out") else ""
