"""A host whose disk is full to the brim while a machine dies: what its user wrote is there when there is room again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from withruntime import Runtime, Sandbox
from withruntime import RuntimeError as RuntimeFailed

from .test_outliving import Outliving, ran, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

STATE_MIB = 800
"""Room for a start, which wants 512 MiB to stay free."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Outliving]:
    """A service whose state folder is a small file system of its own."""
    state = tmp_path / "state"
    state.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={STATE_MIB}m,mode=0700", "none", str(state)]
    if subprocess.run(line, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    service = Outliving(state)
    try:
        service.start()
        yield service
    finally:
        if service.client is not None:
            service.end()
        until("the lease guard's end", lambda: subprocess.run(["umount", str(state)], check=False).returncode == 0, 30)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler:
        for size in (1 << 20, 4096):
            while True:
                try:
                    filler.write(bytes(size))
                except OSError:
                    break


def vmm_of(state: Path, sandbox: Sandbox) -> int:
    for path in (state / "machines").glob("*/machine.json"):
        record = json.loads(path.read_text())
        if (record["sandbox"] or {}).get("sandbox_id") == sandbox.id:
            return int(record["vmm"]["pid"])
    pytest.fail(f"no machine of {sandbox.id}")


def test_a_machine_that_dies_while_the_hosts_disk_is_full_keeps_what_was_written(small: Outliving) -> None:
    sandbox = small.create(persistent=True)
    ran(sandbox, "echo kept > note && sync")
    filler = small.state / "filler"
    fill(filler)

    os.kill(vmm_of(small.state, sandbox), signal.SIGKILL)
    until("the loss being noticed", lambda: small.again(sandbox).info["stopReason"] == "host_lost", 30)
    known = json.loads((small.state / "service.json").read_text())
    key = (small.state / "key").read_text().strip()
    with (
        Runtime(api_key=key, base_url=known["url"], max_retries=0, wait_for_capacity=0) as impatient,
        pytest.raises(RuntimeFailed) as refused,
    ):
        impatient.sandboxes.get(sandbox.id).restart()
    left = small.doctor()
    filler.unlink()
    until("its end being written down", lambda: small.again(sandbox).state == "stopped", 30)
    lost = small.again(sandbox).info
    sandbox.restart()

    assert (refused.value.code, left) == ("no_capacity", [])
    assert (lost["stopReason"], lost["diskKept"]) == ("host_lost", True)
    assert ran(sandbox, "cat note") == "kept"
    sandbox.delete()
    until("everything of it being gone", lambda: not any((small.state / "machines").iterdir()), 10)
    assert not any((small.state / "kept").iterdir())
