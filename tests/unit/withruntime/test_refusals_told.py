"""What the command line says of connections: those that were refused to a command, and those that failed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from withruntime._async.sandbox import AsyncSandbox
from withruntime.cli import network, terminal
from withruntime.cli.app import app
from withruntime.cli.network import tell_refusals


def refusal(second: int, host: str) -> dict[str, Any]:
    at = f"2026-11-29T12:00:{second:02d}.000Z"
    return {"at": at, "what": "connection", "host": host, "port": 443, "allowed": False, "rule": "not in allow"}


class Records:
    """Two pages, oldest first, as the service gives them."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self._pages = pages

    async def records(self, *, after: int, limit: int) -> dict[str, Any]:
        assert limit == 1000
        return {"data": self._pages[after] if after < len(self._pages) else [], "nextAfter": after + 1}


async def test_only_what_was_refused_since_the_command_began_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier command's refusal would be blamed for this one's failure; the newest is on the last page."""

    async def process(process_id: str) -> SimpleNamespace:
        assert process_id == "p-1"
        return SimpleNamespace(info={"startedAt": "2026-11-29T12:00:30.000Z"})

    failed = {"what": "connection", "allowed": True, "failure": "there is no host gone.test"}
    network = Records(
        [refusal(10, "old.test"), {**refusal(11, "before.test"), **failed}],
        [refusal(31, "new.test"), refusal(32, "new.test"), {**refusal(33, "gone.test"), **failed}],
    )

    await tell_refusals(cast(AsyncSandbox, SimpleNamespace(process=process, network=network)), "p-1")

    said = capsys.readouterr().err
    assert said.count("new.test:443 was refused: not in allow") == 1
    assert said.count("gone.test:443 was allowed and failed: there is no host gone.test") == 1
    assert "old.test" not in said and "before.test" not in said


def test_an_allowed_connection_that_failed_is_shown_with_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"what": "dns", "allowed": True, "rule": "internet: true", "failure": "there is no host gone.test"}
    found = SimpleNamespace(network=Records([{**refusal(10, "gone.test"), **failed}]))

    async def find(_: object, reference: str) -> SimpleNamespace:
        return found

    def work_with(work: Any) -> None:
        raise typer.Exit(asyncio.run(work(None)) or 0)

    monkeypatch.setattr(terminal, "find_sandbox", find)
    monkeypatch.setattr(terminal, "run", work_with)

    assert "there is no host gone.test" in CliRunner().invoke(app, ["sandbox", "egress", "box"]).stdout
    assert "failed: there is no host gone.test" in network.line({**refusal(10, "gone.test"), **failed})
