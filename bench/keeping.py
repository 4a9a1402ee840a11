"""Pause, wake, fork, snapshot and adoption of sandboxes of 4 GiB that own 100 MiB, through the SDK and bare."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.bare import bare
from bench.figures import Figure, of, ratio
from bench.host import Service, service
from runtimed.core.commands import Command
from runtimed.core.ids import ProcessId, SandboxId, new_id
from runtimed.core.specs import MachineSpec
from runtimed.host import DEFAULT_SHAPE
from withruntime import Runtime, Sandbox

OWNED_MIB = 100
FILL = f"head -c {OWNED_MIB}M /dev/urandom > /dev/shm/owned"
ADOPTED = 20


def measure(runs: int) -> list[Figure]:
    with service(spares=0) as running, Runtime(api_key=running.key, base_url=running.url) as runtime:
        figures = _pauses(running, runtime, runs) + _forks(runtime, max(3, runs // 3))
    figures += asyncio.run(_bare_moves(max(3, runs // 3)))
    figures.append(_adoption())
    return figures


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _pauses(running: Service, runtime: Runtime, runs: int) -> list[Figure]:
    pauses, wakes, trues, ratios = [], [], [], []
    with runtime.sandboxes.create() as sandbox:
        sandbox.exec(FILL, check=True)
        for _ in range(runs):
            began = time.perf_counter()
            sandbox.pause()
            pauses.append(_ms(began))
            stored = _written(running, sandbox)
            ratios.append(stored / (OWNED_MIB << 20))
            began = time.perf_counter()
            sandbox.wake()
            wakes.append(_ms(began))
            sandbox.exec("true", check=True)
            trues.append(_ms(began))
    return [
        of("pause_ms", pauses, aim="p50 < 100"),
        of("wake_ms", wakes, aim="p50 < 400"),
        of("wake_true_ms", trues, aim="p50 < 600"),
        of("paused_bytes_ratio", ratios, aim="< 1.2", note="all that is stored, to the 100 MiB that were written"),
    ]


def _written(running: Service, sandbox: Sandbox) -> int:
    """Bytes on the shelf once the pause is written."""
    folder = running.state_dir / "kept" / sandbox.id
    deadline = time.monotonic() + 30
    while not folder.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the pause was not written within 30 s")
        time.sleep(0.01)
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def _forks(runtime: Runtime, runs: int) -> list[Figure]:
    ones, tens, snapshots, copies = [], [], [], []
    with runtime.sandboxes.create() as sandbox:
        sandbox.exec(FILL, check=True)
        for _ in range(runs):
            began = time.perf_counter()
            (child,) = sandbox.fork(count=1)
            ones.append(_ms(began))
            child.delete()
        for _ in range(3):
            began = time.perf_counter()
            children = sandbox.fork(count=10)
            tens.append(_ms(began))
            for child in children:
                child.delete()
        for _ in range(runs):
            began = time.perf_counter()
            snapshot = sandbox.snapshot()
            snapshots.append(_ms(began))
            began = time.perf_counter()
            copy = runtime.sandboxes.create(snapshot=snapshot["id"])
            copies.append(_ms(began))
            copy.delete()
    return [
        of("fork1_ms", ones, aim="p50 < 600"),
        of("fork10_ms", tens, aim="p50 < 4000"),
        of("snapshot_ms", snapshots, aim="p50 < 800"),
        of("create_snapshot_ms", copies, aim="p50 < 500"),
    ]


async def _bare_moves(runs: int) -> list[Figure]:
    """The node without the service, and how long a fork's source stands still."""
    stops, wakes, raws = [], [], []
    async with bare() as machine:
        driver, node = machine.node._parts.memory, machine.node
        assert driver is not None
        source = _spec("source")
        await node.start(source)
        fill = Command(argv=("bash", "-c", FILL))
        await node.guest(source.sandbox_id).processes.capture(ProcessId(new_id()), fill, keep_bytes=4096)
        frozen_at = 0.0
        freeze, thaw = driver.freeze, driver.thaw

        async def timed_freeze(plan: object) -> None:
            nonlocal frozen_at
            frozen_at = time.perf_counter()
            await freeze(plan)  # type: ignore[arg-type]

        async def timed_thaw(plan: object) -> None:
            await thaw(plan)  # type: ignore[arg-type]
            stops.append(_ms(frozen_at))

        driver.freeze, driver.thaw = timed_freeze, timed_thaw  # type: ignore[method-assign]
        for _ in range(runs):
            child = _spec("child")
            await node.fork(source.sandbox_id, [child])
            await node.stop(child.sandbox_id)
        driver.freeze, driver.thaw = freeze, thaw  # type: ignore[method-assign]
        for _ in range(runs):
            await _paused(node.on_paused, lambda: node.pause(source.sandbox_id))
            began = time.perf_counter()
            await node.wake(source)
            wakes.append(_ms(began))
            raws.append(await machine.restore_ms())
        await node.stop(source.sandbox_id)
    return [
        of("fork1_source_stop_ms", stops, aim="p50 < 350"),
        ratio("wake_ratio", wakes, raws, aim="reported", note="to a raw restore of the template"),
    ]


async def _paused(on_paused: Callable[..., None], pause: Callable[[], Awaitable[None]]) -> None:
    settled = asyncio.Event()

    async def told(*_: object) -> None:
        settled.set()

    on_paused(told)
    await pause()
    async with asyncio.timeout(30):
        await settled.wait()


def _spec(name: str) -> MachineSpec:
    return MachineSpec(sandbox_id=SandboxId(new_id()), image="default", shape=DEFAULT_SHAPE, hostname=name)


def _adoption() -> Figure:
    """From the start of a new service until it answers and has every machine of one that was killed."""
    state = Path(tempfile.mkdtemp(prefix="runtime-bench-"))
    line = [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--spares", "0"]
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = _known(state)
    with Runtime(api_key=running.key, base_url=running.url) as runtime:
        ids = [runtime.sandboxes.create(timeout_seconds=900).id for _ in range(ADOPTED)]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    (state / "service.json").unlink(missing_ok=True)
    began = time.perf_counter()
    second = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = _known(state)
    took = time.perf_counter() - began
    with Runtime(api_key=running.key, base_url=running.url) as runtime:
        for sandbox_id in ids:
            sandbox = runtime.sandboxes.get(sandbox_id)
            if sandbox.exec("echo here").stdout != "here\n":
                raise AssertionError(f"{sandbox_id} was lost")
            sandbox.delete()
    second.send_signal(signal.SIGTERM)
    second.wait(timeout=60)
    return of("adopt_20_s", [took], aim="< 10, none lost")


def _known(state: Path) -> Service:
    deadline = time.monotonic() + 120
    while not (state / "service.json").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the service did not answer within 120 s")
        time.sleep(0.02)
    known = json.loads((state / "service.json").read_text())
    return Service(pid=known["pid"], url=known["url"], key=(state / "key").read_text().strip(), state_dir=state)
