"""Writes the last figures of `make bench` into SPECIFICATION.md and README.md, and which aims were reached."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "bench" / "out" / "latest.json"
BEGIN, END = "<!-- speed: written by tools/speed_table.py from bench/out/latest.json -->\n", "<!-- end of speed -->\n"
BOUND = re.compile(r"(<=?|>=?) (\d+(?:\.\d+)?)")

WHAT = {
    "create_spare_ms": "`Sandbox.create()` until it returns, from a spare",
    "create_restore_ms": "the same with the pool off",
    "create_restore_ratio": "that over a raw QEMU restore of the same template",
    "first_python_ms": "create with the pool off, then `python3 -c 'print(6*7)'`",
    "exec_true_ms": '`sbx.exec("true")` through the API',
    "exec_ratio": "that over the same in the agent",
    "idle_pss_mib": "memory of the host for one idle sandbox of 4 GiB",
    "idle_pss_spare_mib": "the same for one from the pool, which has rehearsed its first steps",
    "idle_cpu_pct": "CPU of one idle sandbox, in percent of a core",
    "burst_20": "20 creates at once, ms until each was there",
    "file_write_mib_s": "64 MiB up",
    "file_read_mib_s": "64 MiB down",
    "file_service_growth_mib": "how much the service grows meanwhile",
    "pause_ms": "pause of a sandbox that wrote 100 MiB, until it is answered",
    "wake_ms": "its wake, until it runs",
    "wake_true_ms": "a command for it while it sleeps, wake and `true` together",
    "wake_ratio": "a wake in the node over a raw restore of the template",
    "paused_bytes_ratio": "what a pause stores, to the 100 MiB that were written",
    "fork1_ms": "one copy of that sandbox",
    "fork10_ms": "ten copies",
    "fork1_source_stop_ms": "how long the source of a fork stands still",
    "snapshot_ms": "a snapshot of it",
    "create_snapshot_ms": "a create from that snapshot",
    "adopt_20_s": "a new service until it has the 20 machines of a killed one, s",
    "egress_pass_ratio": "bytes a second through the gateway, to a plain stream of the channel",
    "egress_intercept_ratio": "the same where a secret is put in",
    "egress_intercept_tls_ratio": "that, to TLS that passes untouched",
    "egress_small_p50_ms": "a small request through the gateway",
    "egress_small_p99_ms": "its p99",
    "egress_500_conn_mib": "memory that open connections of many guests' programs take",
    "egress_1gib_mib": "memory that 1 GiB in one connection takes",
    "create_money_ms": "checks, hold and audit line of a create",
    "meter_100_core_pct": "metering 100 machines, in percent of a core",
}
IN_README = (
    "create_spare_ms",
    "create_restore_ms",
    "first_python_ms",
    "exec_true_ms",
    "idle_pss_mib",
    "idle_pss_spare_mib",
    "idle_cpu_pct",
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured of one key; nothing where it was not."""

    key: str
    p50: float | None = None
    p99: float | None = None
    runs: int = 0
    aim: str = "-"

    @property
    def measured(self) -> str:
        return "not measured yet" if self.p50 is None else f"{self.p50:g} / {self.p99:g} ({self.runs} runs)"

    @property
    def verdict(self) -> str:
        """Whether the aim was reached, as the median says."""
        bound = BOUND.search(self.aim)
        if self.p50 is None or bound is None:
            return ""
        limit, kept = float(bound[2]), self.p50
        within = kept < limit if bound[1].startswith("<") else kept > limit
        return "reached" if within or (bound[1].endswith("=") and kept == limit) else "not reached"


def figures() -> list[Figure]:
    """One for each key, in the order of WHAT."""
    told = json.loads(FIGURES.read_text())["figures"] if FIGURES.exists() else {}
    names = ("key", "p50", "p99", "runs", "aim")
    return [Figure(**{n: told[key][n] for n in names}) if key in told else Figure(key=key) for key in WHAT]


def specification(found: list[Figure]) -> str:
    rows = [f"| `{f.key}` | {WHAT[f.key]} | {f.aim} | {f.measured} | {f.verdict} | `bench:{f.key}` |\n" for f in found]
    return "| key | what | aim | measured, p50 / p99 | | held by |\n| --- | --- | --- | --- | --- | --- |\n" + "".join(
        rows
    )


def readme(found: list[Figure]) -> str:
    rows = [f"| {WHAT[f.key]} | {f.measured} | {f.aim} |\n" for f in found if f.key in IN_README]
    return "| what | p50 / p99 | aim |\n| --- | --- | --- |\n" + "".join(rows)


def put(document: Path, table: str) -> None:
    """Replace what stands between the two marks."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{document.name} has no place for the figures: {BEGIN.strip()} ... {END.strip()}")
    document.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")


def main() -> int:
    found = figures()
    put(ROOT / "SPECIFICATION.md", specification(found))
    put(ROOT / "README.md", readme(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
