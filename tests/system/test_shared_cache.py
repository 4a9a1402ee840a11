"""Two services share one cache with real machines in it, and a prune of everything old takes nothing from either."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.images.store import KINDS
from runtimed.settings import default_cache_dir
from withruntime import Runtime

pytestmark = [pytest.mark.system, pytest.mark.slow]

START_S = 600
LONG_AGO_S = 1_000_000_000


@dataclass
class Service:
    """One of the services that share the cache."""

    state: Path
    cache: Path
    process: subprocess.Popen[bytes]

    def client(self) -> Runtime:
        deadline = time.monotonic() + START_S
        while not (self.state / "service.json").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the service did not answer: {(self.state / 'out.log').read_text()[-4000:]}")
            time.sleep(0.05)
        known = json.loads((self.state / "service.json").read_text())
        return Runtime(api_key=(self.state / "key").read_text().strip(), base_url=known["url"])


def serve(state: Path, cache: Path) -> Service:
    state.mkdir()
    line = [sys.executable, "-m", "runtimed", "serve", "--state-dir", str(state), "--cache-dir", str(cache)]
    with (state / "out.log").open("ab") as log:
        process = subprocess.Popen([*line, "--spares", "0", "--end-sandboxes"], stdout=log, stderr=log)
    return Service(state=state, cache=cache, process=process)


@pytest.fixture
def services(service: object, tmp_path: Path) -> Iterator[list[Service]]:
    """Two on a cache that is made of this user's by links, where that is possible."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for kind in (*KINDS, "qemu", "accel"):  # `service` has made them
        if (default_cache_dir() / kind).is_dir():
            line = ["cp", "-a", "--reflink=auto", str(default_cache_dir() / kind), str(cache / kind)]
            if os.stat(default_cache_dir()).st_dev == os.stat(cache).st_dev:
                line[1] = "-al"
            subprocess.run(line, check=True)
    made: list[Service] = []
    try:
        for name in ("one", "two"):
            made.append(serve(tmp_path / name, cache))
        yield made
    finally:
        for one in made:
            one.process.send_signal(signal.SIGTERM)
        for one in made:
            one.process.wait(timeout=120)
        shutil.rmtree(cache)


def test_a_prune_beside_two_services_takes_only_what_neither_stands_on(services: list[Service]) -> None:
    first, second = services
    with first.client() as here, second.client() as there:
        running, paused = here.sandboxes.create(), there.sandboxes.create()
        paused.files.write("/workspace/kept", "kept")
        paused.pause()
        for place in first.cache.glob("[a-z]*/*"):
            os.utime(place, times=(LONG_AGO_S, LONG_AGO_S))
        stale = first.cache / "agents/agt_of_an_older_version"
        stale.mkdir()
        os.utime(stale, times=(LONG_AGO_S, LONG_AGO_S))
        line = [sys.executable, "-m", "runtimed", "image", "prune", "--days", "1", "--json"]
        # Of a third state folder, so that the other two are known from the cache alone.
        folders = ["--cache-dir", str(first.cache), "--state-dir", str(first.cache / "none")]

        told = subprocess.run([*line, *folders], capture_output=True, text=True, check=True)

        gone = {f"{one['kind']}/{one['key']}" for one in json.loads(told.stdout)["data"]}
        assert "agents/agt_of_an_older_version" in gone
        assert not stale.exists()
        assert not any(place.startswith("templates/") for place in gone)
        assert running.exec("echo still here").stdout == "still here\n"
        paused.wake()
        assert paused.exec("cat /workspace/kept").stdout == "kept"
        for client in (here, there):
            with client.sandboxes.create() as another:
                assert another.exec("echo new").stdout == "new\n"
