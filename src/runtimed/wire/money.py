"""Money and audit on the wire: limits, usage, receipts and audit lines as answers. Money is decimal strings."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from runtimed.core.accounting import LimitsShown, Receipt, UsagePage, UsageShown
from runtimed.core.audit import AuditLine, Problem
from runtimed.core.clock import iso
from runtimed.core.sandbox import Caller
from runtimed.core.usage import UsageRun, Used
from runtimed.wire.strict import Shown

DAY_S = 86_400
WEEK_DAYS = 7
LOW_BELOW_DAYS = 3
"""Credit that lasts for less at the pace of the last week is called low."""
EXPORT_MAX = 1000
CSV_COLUMNS = (
    *("at", "sandbox", "key", "cpu_seconds", "running_seconds", "memory_gib_hours", "paused_gb_hours"),
    *("outbound_bytes", "credited", "usd", "first_sample", "last_sample"),
)


def _moment(text: str) -> str:
    moment_s(text)
    return text


def moment_s(text: str) -> float:
    """Seconds since 1970 of an ISO-8601 moment with its offset. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a moment such as 2026-11-29T18:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("must say its offset, such as the Z in 2026-11-29T18:00:00Z")
    return moment.timestamp()


Moment = Annotated[str, AfterValidator(_moment)]


class UsageWindow(BaseModel):
    """The query of a usage report; without it, the last 30 days."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    since: Moment | None = None
    until: Moment | None = None


class ExportQuery(UsageWindow):
    cursor: str | None = None
    limit: int = Field(EXPORT_MAX, ge=1, le=EXPORT_MAX)


class RequestsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    range: Literal["24h", "7d", "30d", "90d"] = "24h"

    @property
    def seconds(self) -> int:
        return {"24h": 1, "7d": 7, "30d": 30, "90d": 90}[self.range] * DAY_S


class AuditPageQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    action: str | None = Field(None, max_length=64)
    limit: int = Field(100, ge=1, le=1000)
    before: int | None = Field(None, ge=1)
    """`next` of the page before."""


class LimitsAnswer(Shown):
    access: Literal["full", "read", "selected"]


class UsageAnswer(Shown):
    since: str
    until: str
    spentMicros: str


class ReceiptAnswer(Shown):
    sandboxId: str
    totalMicros: int


class ExportAnswer(Shown):
    csv: str
    nextCursor: str | None


class RequestsAnswer(Shown):
    requests: str
    errorPercent: float


class AuditAnswer(Shown):
    next: str | None


class AuditChecked(Shown):
    clean: bool
    lines: int


def limits_body(caller: Caller, limits: LimitsShown) -> dict[str, object]:
    """The object of `GET /v1/limits`."""
    left = None if limits.day_limit is None else max(0, limits.day_limit - limits.day_used)
    return {
        "access": "read" if caller.read_only else "full" if caller.account_wide else "selected",
        "daily": {
            "limitMicros": _text(limits.day_limit),
            "usedMicros": str(limits.day_used),
            "settledMicros": str(limits.day_settled),
            "heldMicros": str(limits.day_held),
            "remainingMicros": _text(left),
            "window": "24h",
        },
        "trial": trial_body(limits),
        "account": [
            {
                "limit": "sandbox.count",
                "label": "sandboxes at once",
                "unit": "count",
                "max": limits.sandboxes_max,
                "used": limits.sandboxes,
            }
        ],
        "credit": _credit(limits),
    }


def trial_body(limits: LimitsShown) -> dict[str, object]:
    """Hours of sandboxes at no charge; what running ones hold counts as used until it comes back."""
    return {
        "availableMs": limits.trial_left_ms,
        "usedMs": max(0, limits.trial_ms - limits.trial_left_ms),
        "heldMs": limits.trial_held_ms,
        "totalMs": limits.trial_ms,
        "offer": None,
        "renewsAt": None,
    }


def _credit(limits: LimitsShown) -> dict[str, object]:
    pace = limits.week_spent // WEEK_DAYS
    days = limits.available // pace if limits.prepaid and pace else None
    state = "ok"
    if limits.prepaid and limits.available <= 0:
        state = "empty"
    elif days is not None and days < LOW_BELOW_DAYS:
        state = "low"
    return {
        "prepaid": limits.prepaid,
        "availableMicros": str(limits.available) if limits.prepaid else None,
        "owedMicros": str(limits.owed),
        "heldMicros": str(limits.held),
        "dailyPaceMicros": str(pace),
        "runwayDays": days,
        "lowBelowDays": LOW_BELOW_DAYS,
        "state": state,
        "addedBy": "the operator: runtime admin credit add",
    }


def usage_body(shown: UsageShown, limits: LimitsShown) -> dict[str, object]:
    """The object of `GET /v1/usage`."""
    return {
        # Of the account in all its life, under the names that the public client documents.
        "credited": str(limits.available + limits.held + limits.spent) if limits.prepaid else "0",
        "spent": str(limits.spent),
        "held": str(limits.held),
        "expired": "0",
        "takenBack": "0",
        "available": str(limits.available if limits.prepaid else -limits.owed - limits.held),
        "trial": trial_body(limits),
        # Of the time that was asked for.
        "since": iso(shown.since_s),
        "until": iso(shown.until_s),
        "spentMicros": str(shown.micros),
        "sandboxes": shown.sandboxes,
        "kinds": _kinds(shown.used, shown.mib_ms),
        "outbound": {"bytes": shown.used.outbound_bytes, "chargedMicros": "0", "allowanceBytes": None},
        "waitedShare": waited_share(shown.used),
        "resources": [
            {
                "id": use.sandbox_id,
                "kind": "sandbox",
                "name": use.name,
                "chargedMicros": str(use.micros),
                "cpuSeconds": _number(use.used.cpu_us, 1_000_000),
                "runningSeconds": _number(use.used.running_ms, 1000),
                "outboundBytes": str(use.used.outbound_bytes),
                "waitedShare": waited_share(use.used),
                "lastAt": iso(use.last_at_s),
            }
            for use in shown.newest
        ],
    }


def _kinds(used: Used, mib_ms: int) -> list[dict[str, object]]:
    return [
        {"kind": "cpu", "quantity": _number(used.cpu_us, 1_000_000), "unit": "vCPU-seconds"},
        {"kind": "running", "quantity": _number(used.running_ms, 1000), "unit": "seconds"},
        {"kind": "memory", "quantity": _number(mib_ms, 1024 * 3_600_000), "unit": "GiB-hours"},
        {"kind": "outbound", "quantity": _number(used.outbound_bytes, 10**6), "unit": "MB"},
        {"kind": "paused_storage", "quantity": _number(used.paused_mb_ms, 1000 * 3_600_000), "unit": "GB-hours"},
    ]


def waited_share(used: Used) -> float | None:
    """Share of its running time in which no vCPU was busy; None for what never ran."""
    running_us = used.running_ms * 1000
    return round((running_us - min(used.cpu_us, running_us)) / running_us, 4) if running_us else None


def export_body(page: UsagePage, *, since_s: float, until_s: float, first: bool) -> dict[str, object]:
    """The object of `GET /v1/usage/export`: the same rows as data and as CSV, with a heading on the first page."""
    return {
        "since": iso(since_s),
        "until": iso(until_s),
        "data": [_export_row(run) for run in page.runs],
        "csv": export_csv(page.runs, heading=first),
        "nextCursor": page.next_cursor,
        "finalThrough": iso(page.final_through_s),
    }


def export_csv(runs: Sequence[UsageRun], *, heading: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    if heading:
        writer.writerow(CSV_COLUMNS)
    for run in runs:
        writer.writerow(
            [
                *(iso(run.at_s), run.sandbox_id, run.key_id),
                *(_decimal(run.used.cpu_us, 6), _decimal(run.used.running_ms, 3)),
                f"{run.mib_ms / (1024 * 3_600_000):.9f}",
                f"{run.used.paused_mb_ms / (1000 * 3_600_000):.9f}",
                *(run.used.outbound_bytes, "yes" if run.credited else "no", _decimal(run.micros, 6)),
                *(run.first_seq, run.last_seq),
            ]
        )
    return text.getvalue()


def _export_row(run: UsageRun) -> dict[str, object]:
    return {
        "at": iso(run.at_s),
        "sandboxId": run.sandbox_id,
        "keyId": run.key_id,
        "cpuSeconds": _decimal(run.used.cpu_us, 6),
        "runningSeconds": _decimal(run.used.running_ms, 3),
        "memoryMibSeconds": _decimal(run.mib_ms, 3),
        "pausedMbSeconds": _decimal(run.used.paused_mb_ms, 3),
        "outboundBytes": str(run.used.outbound_bytes),
        "credited": run.credited,
        "micros": str(run.micros),
        "firstSample": run.first_seq,
        "lastSample": run.last_seq,
    }


def receipt_body(sandbox_id: str, receipt: Receipt) -> dict[str, object]:
    """The object of `GET /v1/sandboxes/{id}/receipt`."""
    waited = receipt.waited_permille
    return {
        "sandboxId": sandbox_id,
        "final": receipt.final,
        "lines": [
            {
                "what": line.what,
                "quantity": line.quantity or None,
                "unit": line.unit or None,
                "usdPerUnit": line.usd_per_unit or None,
                "micros": line.micros,
            }
            for line in receipt.lines
        ],
        "totalMicros": receipt.total_micros,
        "heldMicros": receipt.held_micros,
        "runningSeconds": _number(receipt.running_ms, 1000),
        "cpuSeconds": _number(receipt.cpu_us, 1_000_000),
        "outboundBytes": str(receipt.outbound_bytes),
        "trialSeconds": receipt.trial_ms // 1000,
        "waitedShare": None if waited is None else waited / 1000,
    }


def audit_body(lines: Sequence[AuditLine], *, limit: int) -> dict[str, object]:
    """The object of `GET /v1/audit`, newest first."""
    more = len(lines) == limit and lines[-1].number > 1
    return {
        "events": [
            {
                "number": line.number,
                "at": iso(line.event.at_ms / 1000),
                "action": line.event.action,
                "target": line.event.target or None,
                "actor": line.event.actor,
                "address": line.event.address or None,
                "requestId": line.event.request_id or None,
                "outcome": line.event.outcome,
                "details": dict(line.event.details),
                "hash": line.hash,
                "previous": line.previous,
            }
            for line in lines
        ],
        "next": str(lines[-1].number) if more else None,
    }


def checked_body(problems: Sequence[Problem], *, lines: int) -> dict[str, object]:
    """The object of `GET /v1/audit/verify`: tells nothing of what the lines say."""
    return {
        "clean": not problems,
        "lines": lines,
        "problems": [{"number": problem.number, "message": problem.message} for problem in problems],
    }


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _number(value: int, each: int) -> float:
    """For people; whoever adds up takes the export's whole units."""
    return round(value / each, 6)


def _decimal(value: int, places: int) -> str:
    whole, part = divmod(value, 10**places)
    return f"{whole}.{part:0{places}d}"
