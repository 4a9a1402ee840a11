"""Starts services for a measurement, and reads what their processes cost the host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 900
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Service:
    pid: int
    url: str
    key: str
    state_dir: Path

    def machines(self, *, spares: bool = True) -> list[int]:
        """Host pids of the machines' own processes; without `spares` only those of sandboxes."""
        pids = []
        for record in sorted((self.state_dir / "machines").glob("*/machine.json")):
            told = json.loads(record.read_text())
            if told["vmm"] and (spares or told["sandbox"]):
                pids.append(int(told["vmm"]["pid"]))
        return pids


@contextmanager
def service(*, spares: int) -> Iterator[Service]:
    """A service of its own, ended with everything of it."""
    state = Path(tempfile.mkdtemp(prefix="runtime-bench-"))
    with (state / "out.log").open("wb") as out:
        line = [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--spares", str(spares)]
        line.append("--end-sandboxes")
        process = subprocess.Popen(line, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not (state / "service.json").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {(state / 'out.log').read_text()[-2000:]}")
            time.sleep(0.05)
        known = json.loads((state / "service.json").read_text())
        yield Service(pid=process.pid, url=known["url"], key=(state / "key").read_text().strip(), state_dir=state)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        shutil.rmtree(state, ignore_errors=True)


def pss_mib(pid: int) -> float:
    """Memory of a process with shared pages divided among those that share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise LookupError("Pss")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_for_spares(running: Service, count: int, *, within_s: float = 120) -> None:
    """Until the pool is full and its machines are quiet."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        pids = running.machines()
        if len(pids) >= count:
            before = sum(cpu_s(p) for p in pids)
            time.sleep(0.4)
            if running.machines() == pids and sum(cpu_s(p) for p in pids) - before < 0.05:
                return
        time.sleep(0.1)
    raise TimeoutError(f"{count} spares were not there within {within_s} s")
