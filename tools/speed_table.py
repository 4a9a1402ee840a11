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
BOUND = re.compile(r"(<=?) (\d+(?:\.\d+)?)$")

WHAT = {
    "create_spare_ms": "`Sandbox.create()` until it returns, from a spare",
    "create_restore_ms": "the same with the pool off",
    "create_restore_ratio": "that over a raw QEMU restore of the same template",
    "first_python_ms": "create with the pool off, then `python3 -c 'print(6*7)'`",
    "exec_true_ms": '`sbx.exec("true")` through the API',
    "exec_ratio": "that over the same in the agent",
    "idle_pss_mib": "memory of the host for one idle sandbox of 4 GiB",
    "idle_cpu_pct": "CPU of one idle sandbox, in percent of a core",
    "burst_20": "20 creates at once, ms until each was there",
    "file_write_mib_s": "64 MiB up",
    "file_read_mib_s": "64 MiB down",
    "file_service_growth_mib": "how much the service grows meanwhile",
}
IN_README = ("create_spare_ms", "create_restore_ms", "first_python_ms", "exec_true_ms", "idle_pss_mib", "idle_cpu_pct")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured of one key; nothing where it was not."""

    key: str
    p50: float | None = None
    p99: float | None = None
    runs: int = 0
    aim: str = "reported"

    @property
    def measured(self) -> str:
        return "not measured yet" if self.p50 is None else f"{self.p50:g} / {self.p99:g} ({self.runs} runs)"

    @property
    def verdict(self) -> str:
        """Whether the aim was reached, as the median says."""
        bound = BOUND.search(self.aim)
        if self.p50 is None or bound is None:
            return ""
        limit = float(bound[2])
        return "reached" if self.p50 < limit or (bound[1] == "<=" and self.p50 == limit) else "not reached"


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
