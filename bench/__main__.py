"""`make bench`: measures on this host and writes bench/out/latest.json and a table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import table, write

OUT = Path(__file__).parent / "out" / "latest.json"
SUITES = ("starts", "work", "keeping", "egress", "money")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="samples of each figure")
    parser.add_argument("--only", choices=SUITES, action="append", help="measure only this; may be given again")
    asked = parser.parse_args()
    figures = []
    for name in asked.only or SUITES:
        print(f"measuring {name} ...", flush=True)
        found = importlib.import_module(f"bench.{name}").measure(asked.runs)
        print(table(found), flush=True)
        figures += found
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "load_1m": os.getloadavg()[0],
    }
    write(figures, about, OUT)
    print(f"written to {OUT}")


if __name__ == "__main__":
    main()
