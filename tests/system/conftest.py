"""A service of the test run's own, with real microVMs, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .egress.fixtures import egress_service, fresh, roomy, world

__all__ = ["egress_service", "fresh", "roomy", "world"]

START_S = 600
"""The first start of a new machine builds images and a template."""


@dataclass(frozen=True, kw_only=True)
class Service:
    pid: int
    url: str
    key: str
    state_dir: Path

    @property
    def env(self) -> dict[str, str]:
        """For a child process that is a client of this service."""
        proxies = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        return {**proxies, "RUNTIME_API_URL": self.url, "RUNTIME_API_KEY": self.key}


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the whole run. At its end nothing of it may be left on the host."""
    state = tmp_path_factory.mktemp("state")
    log = state / "out.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--end-sandboxes"],
            stdout=out,
            stderr=out,
        )
    try:
        known = _answering(process, state, log)
        yield Service(pid=process.pid, url=known["url"], key=(state / "key").read_text().strip(), state_dir=state)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert [p.name for p in (state / "machines").iterdir()] == [], log.read_text()[-4000:]


def _answering(process: subprocess.Popen[bytes], state: Path, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the service ended with {process.returncode}: {log.read_text()[-4000:]}")
        if (state / "service.json").exists():
            return dict(json.loads((state / "service.json").read_text()))
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"the service did not answer within {START_S} s: {log.read_text()[-4000:]}")


@pytest.fixture
def as_client(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The SDK in this process talks to the run's own service."""
    monkeypatch.setenv("RUNTIME_API_URL", service.url)
    monkeypatch.setenv("RUNTIME_API_KEY", service.key)
    return service
