"""The commands about money print tables for people and the service's own JSON for programs."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from withruntime._errors import NotFoundError
from withruntime.cli import money, terminal
from withruntime.cli.app import app

LIMITS = {
    "access": "full",
    "daily": {"limitMicros": "2000000", "usedMicros": "500000", "remainingMicros": "1500000"},
    "trial": {"totalMs": 180_000_000, "usedMs": 3_600_000, "availableMs": 176_400_000},
    "account": [{"limit": "sandbox.count", "label": "sandboxes at once", "unit": "count", "max": 4, "used": 1}],
    "credit": {"prepaid": True, "heldMicros": "33125", "availableMicros": "966875", "owedMicros": "0"},
}
USAGE = {
    "since": "2026-11-01T00:00:00.000Z",
    "until": "2026-12-01T00:00:00.000Z",
    "spentMicros": "31347",
    "spent": "31347",
    "held": "0",
    "kinds": [{"kind": "cpu", "quantity": 20.0, "unit": "vCPU-seconds"}],
    "resources": [
        {
            "id": "sbx",
            "name": None,
            "chargedMicros": "31347",
            "cpuSeconds": 20.0,
            "runningSeconds": 3600.0,
            "waitedShare": 0.9944,
        }
    ],
}
AUDIT = {
    "events": [
        {
            "number": 7,
            "at": "2026-11-29T18:00:00.000Z",
            "action": "command.run",
            "target": "sbx",
            "actor": "key:k",
            "address": "127.0.0.1",
            "outcome": "done",
            "details": {"program": "python3", "exitCode": 0, "durationMs": 12},
        }
    ],
    "next": "7",
}
RECEIPT = {
    "lines": [
        {"what": "CPU used", "quantity": "0.005555", "unit": "vCPU-hour", "usdPerUnit": "0.0175", "micros": 97},
        {"what": "memory reserved", "quantity": "4", "unit": "GiB-hour", "usdPerUnit": "0.0078125", "micros": 31250},
    ],
    "totalMicros": 31347,
    "heldMicros": 0,
    "runningSeconds": 3600.0,
    "cpuSeconds": 20.0,
    "waitedShare": 0.994,
}


class Told:
    """A client that answers what it was told to."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        self.limits = self.audit = self
        self.deleted: set[str] = set()

    async def get(self) -> Any:
        return self.answers["limits"]

    async def list(self, **query: Any) -> Any:
        self.asked.append(query)
        return self.answers["audit"]

    async def verify(self) -> Any:
        return self.answers["verify"]

    async def request(self, method: str, path: str, *, query: Any = None) -> Any:
        self.asked.append((method, path, dict(query or {})))
        pages = self.answers[path]
        return pages.pop(0) if isinstance(pages, list) else pages


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(client: Told, *arguments: str) -> Any:
        import asyncio

        import typer

        def work_with(work: Any) -> None:
            raise typer.Exit(asyncio.run(work(client)) or 0)

        async def found(_: Any, reference: str) -> Any:
            if reference in client.deleted:
                raise NotFoundError(f"there is no sandbox {reference!r}", code="not_found", status=404)
            return SimpleNamespace(id=f"id-of-{reference}")

        monkeypatch.setattr(terminal, "run", work_with)
        monkeypatch.setattr(terminal, "find_sandbox", found)
        return CliRunner().invoke(app, list(arguments))

    return run


def test_limits_are_shown_with_what_is_left(command: Any) -> None:
    shown = command(Told(limits=LIMITS), "limits")

    assert shown.exit_code == 0
    assert [part for part in ("$2.00", "$0.50", "$1.50", "49.00", "$0.966875") if part not in shown.stdout] == []
    assert json.loads(command(Told(limits=LIMITS), "limits", "--json").stdout) == LIMITS


def test_what_is_only_held_is_not_called_used(command: Any) -> None:
    trial = {**LIMITS["trial"], "heldMs": 1_800_000}
    shown = command(
        Told(limits={**LIMITS, "trial": trial, "daily": {**LIMITS["daily"], "heldMicros": "400000"}}), "limits"
    )

    assert [part for part in ("$0.10, $0.40 held", "0.50, 0.50 held", "49.00") if part not in shown.stdout] == []
    assert "comes back" in shown.stderr


def test_the_receipt_of_a_deleted_sandbox_is_asked_for_by_its_id(command: Any) -> None:
    client = Told(**{"/v1/sandboxes/gone/receipt": RECEIPT})

    client.deleted = {"gone"}
    shown = command(client, "sandbox", "receipt", "gone", "--json")

    assert json.loads(shown.stdout) == RECEIPT


def test_usage_is_shown_by_sandbox_with_its_waiting(command: Any) -> None:
    shown = command(Told(**{"/v1/usage": USAGE}), "usage")

    assert [part for part in ("sbx", "$0.031347", "99%") if part not in shown.stdout] == []
    assert "20 vCPU-seconds cpu" in shown.stderr


def test_an_export_is_every_page_with_one_heading(command: Any) -> None:
    pages = [{"csv": "at,usd\r\n1,2\r\n", "nextCursor": "c"}, {"csv": "3,4\r\n", "nextCursor": None}]
    client = Told(**{"/v1/usage/export": pages})
    shown = command(client, "usage", "--csv", "--since", "2026-11-01T00:00:00Z")

    assert shown.stdout == "at,usd\n1,2\n3,4\n"
    assert [query for _, _, query in client.asked] == [
        {"since": "2026-11-01T00:00:00Z"},
        {"since": "2026-11-01T00:00:00Z", "cursor": "c"},
    ]


def test_the_audit_log_says_how_to_read_on(command: Any) -> None:
    client = Told(audit=AUDIT)
    shown = command(client, "audit", "--action", "command.")

    assert "program=python3 exitCode=0" in shown.stdout
    assert "--before 7" in shown.stderr
    assert client.asked == [{"action": "command.", "limit": 50, "before": None}]


@pytest.mark.parametrize(
    ("checked", "code", "said"),
    [
        ({"clean": True, "lines": 12, "problems": []}, 0, "12 in all"),
        ({"clean": False, "lines": 12, "problems": [{"number": 3, "message": "was edited"}]}, 1, "line 3: was edited"),
    ],
)
def test_a_chain_that_was_touched_is_an_error(command: Any, checked: Any, code: int, said: str) -> None:
    shown = command(Told(verify=checked), "audit", "verify")

    assert (shown.exit_code, said in shown.stdout) == (code, True)


def test_a_receipt_has_its_lines_and_its_total(command: Any) -> None:
    shown = command(Told(**{"/v1/sandboxes/id-of-sbx/receipt": RECEIPT}), "sandbox", "receipt", "sbx")

    assert [part for part in ("$0.000097", "$0.03125", "$0.031347") if part not in shown.stdout] == []
    assert "waited 99% of its time" in shown.stderr


def test_dollars_are_exact() -> None:
    assert [money.usd(m) for m in (0, 31_250, "12500000", -1_000_000, 1)] == [
        "$0.00",
        "$0.03125",
        "$12.50",
        "-$1.00",
        "$0.000001",
    ]
