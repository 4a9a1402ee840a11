"""Turns samples into figures and figures into a table and a file. Measures nothing itself."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One key of the report."""

    key: str
    p50: float
    p99: float
    runs: int
    aim: str
    """As the specification says it."""
    note: str = ""


def of(key: str, samples: Sequence[float], *, aim: str, note: str = "") -> Figure:
    """p50 and p99 of the samples; p99 of fewer than 100 samples is the largest."""
    ordered = sorted(samples)
    last = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.99) - 1)]
    return Figure(
        key=key, p50=round(statistics.median(ordered), 3), p99=round(last, 3), runs=len(ordered), aim=aim, note=note
    )


def ratio(key: str, samples: Sequence[float], bare: Sequence[float], *, aim: str, note: str = "") -> Figure:
    """The medians' ratio and the p99s' ratio, both of samples taken in turn in this run."""
    ours, theirs = of(key, samples, aim=aim), of(key, bare, aim=aim)
    return Figure(
        key=key,
        p50=round(ours.p50 / theirs.p50, 3),
        p99=round(ours.p99 / theirs.p99, 3),
        runs=ours.runs,
        aim=aim,
        note=note or f"bare: p50 {theirs.p50:g}, p99 {theirs.p99:g}",
    )


def write(figures: Sequence[Figure], about: dict[str, object], path: Path) -> None:
    """The report for programs. Figures of keys that were not measured now are kept from the last report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text())["figures"] if path.exists() else {}
    kept.update({figure.key: asdict(figure) for figure in figures})
    path.write_text(json.dumps({"about": about, "figures": kept}, indent=2) + "\n")


def table(figures: Sequence[Figure]) -> str:
    """The report for people."""
    lines = [f"{'key':26} {'p50':>10} {'p99':>10} {'runs':>5}  aim"]
    lines += [f"{f.key:26} {f.p50:>10g} {f.p99:>10g} {f.runs:>5}  {f.aim}  {f.note}" for f in figures]
    return "\n".join(lines)
