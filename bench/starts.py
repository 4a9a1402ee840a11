"""How long until a sandbox is there and has done something: from a spare, by restore, many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.bare import bare
from bench.figures import Figure, of, ratio
from bench.host import Service, service, wait_for_spares
from withruntime import AsyncRuntime, Runtime


def measure(runs: int) -> list[Figure]:
    figures = []
    with service(spares=2) as running:
        figures.append(of("create_spare_ms", _from_spares(running, runs), aim="p50 < 60"))
        figures.append(_burst(running))
    figures += asyncio.run(_restores(runs))
    return figures


def _from_spares(running: Service, runs: int) -> Sequence[float]:
    samples = []
    with Runtime(api_key=running.key, base_url=running.url) as runtime:
        for _ in range(runs):
            wait_for_spares(running, 2)
            began = time.perf_counter()
            sandbox = runtime.sandboxes.create()
            samples.append((time.perf_counter() - began) * 1000)
            sandbox.delete()
    return samples


async def _restores(runs: int) -> list[Figure]:
    """The service with its pool off and the bare driver in turn, so that a slow moment of the host hits both."""
    created, pythons, restored = [], [], []
    with service(spares=0) as running:
        async with bare() as machine, AsyncRuntime(api_key=running.key, base_url=running.url) as runtime:
            for _ in range(runs):
                restored.append(await machine.restore_ms())
                began = time.perf_counter()
                sandbox = await runtime.sandboxes.create()
                created.append((time.perf_counter() - began) * 1000)
                answer = await sandbox.exec(["python3", "-c", "print(6*7)"])
                pythons.append((time.perf_counter() - began) * 1000)
                if answer.stdout != "42\n":
                    raise AssertionError(answer)
                await sandbox.delete()
    return [
        of("create_restore_ms", created, aim="p50 < 350"),
        ratio("create_restore_ratio", created, restored, aim="<= 1.8"),
        of("first_python_ms", pythons, aim="p50 < 900"),
    ]


def _burst(running: Service) -> Figure:
    async def at_once() -> list[float]:
        async with AsyncRuntime(api_key=running.key, base_url=running.url) as runtime:

            async def one() -> float:
                began = time.perf_counter()
                sandbox = await runtime.sandboxes.create()
                took = (time.perf_counter() - began) * 1000
                made.append(sandbox)
                return took

            made: list = []
            took = await asyncio.gather(*(one() for _ in range(20)))
            if len(made) != 20:
                raise AssertionError(made)
            await asyncio.gather(*(sandbox.delete() for sandbox in made))
            return list(took)

    wait_for_spares(running, 2)
    return of("burst_20", asyncio.run(at_once()), aim="all succeed", note="ms until each of 20 at once was there")
