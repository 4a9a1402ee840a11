"""What a running sandbox costs and how fast it answers: commands, files, memory and CPU when it waits."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path

from bench.bare import bare
from bench.figures import Figure, of, ratio
from bench.host import Service, cpu_s, pss_mib, rss_mib, service, wait_for_spares
from withruntime import AsyncRuntime, Runtime, Sandbox

MIB = 1 << 20
FILE_MIB = 64
IDLE_S = 20


def measure(runs: int) -> list[Figure]:
    figures = asyncio.run(_commands(runs))
    with service(spares=0) as running, Runtime(api_key=running.key, base_url=running.url) as runtime:
        figures += _idle(running, runtime)
        with runtime.sandboxes.create() as sandbox:
            figures += _files(running, sandbox, max(3, runs // 10))
    with service(spares=2) as running, Runtime(api_key=running.key, base_url=running.url) as runtime:
        figures.append(_idle_from_spares(running, runtime))
    return figures


async def _commands(runs: int) -> list[Figure]:
    ours, direct = [], []
    with service(spares=0) as running:
        async with bare() as machine, machine.machine() as guest, _client(running) as runtime:
            sandbox = await runtime.sandboxes.create()
            for _ in range(5):  # both clones have translated the path by then
                await machine.exec_true_ms(guest)
                await sandbox.exec("true")
            for _ in range(runs):
                direct.append(await machine.exec_true_ms(guest))
                began = time.perf_counter()
                await sandbox.exec("true")
                ours.append((time.perf_counter() - began) * 1000)
            await sandbox.delete()
    return [of("exec_true_ms", ours, aim="reported"), ratio("exec_ratio", ours, direct, aim="<= 1.5")]


def _client(running: Service) -> AsyncRuntime:
    return AsyncRuntime(api_key=running.key, base_url=running.url)


def _idle(running: Service, runtime: Runtime) -> list[Figure]:
    """Five sandboxes of 4 GiB that do nothing, after their start has settled."""
    boxes = [runtime.sandboxes.create() for _ in range(5)]
    time.sleep(5)
    pids = running.machines()
    before, began = {p: cpu_s(p) for p in pids}, time.monotonic()
    time.sleep(IDLE_S)
    passed = time.monotonic() - began
    cpu = [(cpu_s(p) - before[p]) / passed * 100 for p in pids]
    pss = [pss_mib(p) for p in pids]
    for box in boxes:
        box.delete()
    return [of("idle_pss_mib", pss, aim="< 45"), of("idle_cpu_pct", cpu, aim="< 1.5", note=f"over {IDLE_S} s")]


def _idle_from_spares(running: Service, runtime: Runtime) -> Figure:
    """The same for those that come from the pool: a spare has rehearsed its first steps, whose code QEMU keeps."""
    boxes = []
    for _ in range(5):
        wait_for_spares(running, len(boxes) + 2)
        boxes.append(runtime.sandboxes.create())
    wait_for_spares(running, len(boxes) + 2)
    pss = [pss_mib(pid) for pid in running.machines(spares=False)]
    for box in boxes:
        box.delete()
    return of("idle_pss_spare_mib", pss, aim="reported")


def _files(running: Service, sandbox: Sandbox, runs: int) -> list[Figure]:
    up, down = [], []
    grown = _Peak(running.pid)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "up", Path(folder) / "down"
        source.write_bytes(os.urandom(MIB) * FILE_MIB)
        for _ in range(runs):
            began = time.perf_counter()
            sandbox.files.upload(source, "/workspace/big")
            up.append(FILE_MIB / (time.perf_counter() - began))
            began = time.perf_counter()
            sandbox.files.download("/workspace/big", target)
            down.append(FILE_MIB / (time.perf_counter() - began))
            if source.read_bytes() != target.read_bytes():
                raise AssertionError("the file came back changed")
    note = f"{FILE_MIB} MiB"
    return [
        of("file_write_mib_s", up, aim="reported", note=note),
        of("file_read_mib_s", down, aim="reported", note=note),
        of("file_service_growth_mib", [grown.stop()], aim="< 32", note="largest resident size less that before"),
    ]


class _Peak:
    """Watches a process grow."""

    def __init__(self, pid: int) -> None:
        self._pid, self._first = pid, rss_mib(pid)
        self._most, self._ended = self._first, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self._most = max(self._most, rss_mib(self._pid))

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._most - self._first
