"""The service as a process of its own, on a fake host that runs the real agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

START_S = 60.0
END_S = 60.0


def environment(**more: str) -> dict[str, str]:
    """The caller's, without proxies: everything here is on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


@dataclass(kw_only=True)
class Running:
    """A service that answers."""

    process: subprocess.Popen[bytes]
    state: Path
    url: str
    key: str
    log: Path

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def create(self, **body: Any) -> dict[str, Any]:
        with self.http() as http:
            reply = http.post("/v1/sandboxes", json={"memoryMiB": 512, **body}, headers={"Prefer": "wait=60"})
            assert reply.status_code == 201, reply.text
            return reply.json()  # type: ignore[no-any-return]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "runtimed", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """One command of the operator's, to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=60, env=environment())


def processes_of(state: Path) -> list[int]:
    """Processes that have the state folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(state).encode() in line:
                found.append(int(entry.name))
    return found


def until(what: str, probe: Callable[[], object], within_s: float = 30.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {within_s:g} s")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start(state: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start services one after the other on one state folder; none of them outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*flags: str) -> Running:
        log = tmp_path / f"service-{len(started)}.log"
        words = command(
            *("serve", "--state-dir", str(state), "--cache-dir", str(tmp_path / "cache"), "--vmm", "fake"),
            *("--spares", "0", *flags),
        )
        with log.open("wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, env=environment())
        started.append(process)

        def answers() -> dict[str, Any] | None:
            assert process.poll() is None, log.read_text()
            try:
                told = json.loads((state / "service.json").read_text())
            except (FileNotFoundError, ValueError):
                return None
            return told if told["pid"] == process.pid else None

        told = until("the service answering", answers, START_S)
        key = (state / "key").read_text().strip()
        return Running(process=process, state=state, url=told["url"], key=key, log=log)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    run("doctor", "--state-dir", str(state), "--cache-dir", str(tmp_path / "cache"), "--fix")
