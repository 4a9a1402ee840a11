"""A scripted service and a clean environment for every test of the client."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the folder shares its name with the package, so it cannot be one

from scripted_server import ScriptedServer, answer


@pytest.fixture
def service() -> Iterator[ScriptedServer]:
    """A service with one sandbox `a` that runs and can be deleted; the test scripts the rest."""
    server = ScriptedServer()
    running = {"id": "a", "state": "running", "endsAt": None}
    server.on("POST", "/v1/sandboxes", answer(running))
    server.on("GET", "/v1/sandboxes/a", answer(running))
    server.on("DELETE", "/v1/sandboxes/a", answer({"id": "a", "status": "deleted", "state": "stopped"}))
    server.on("POST", "/v1/sandboxes/a:stop", answer({"id": "a", "state": "stopped"}))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def environment(service: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what the test sets: no key, proxy or state of the machine that it runs on."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "RUNTIME_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("RUNTIME_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RUNTIME_API_URL", service.url)
    monkeypatch.setenv("RUNTIME_API_KEY", "rtcloud_key")
