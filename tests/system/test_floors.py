"""On real machines: CPU that was guaranteed goes first on the host, and what a guest sends counts while it sends it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from withruntime import Runtime, Sandbox
from withruntime import RuntimeError as ServiceError

from .conftest import Service

SAMPLED_WITHIN_S = 60.0
"""Samples are taken every 10 s, and the host may be busy."""

pytestmark = pytest.mark.system


def vmm_of(state: Path, sandbox_id: str) -> int:
    for path in (state / "machines").glob("*/machine.json"):
        record = json.loads(path.read_text())
        if (record["sandbox"] or {}).get("sandbox_id") == sandbox_id:
            return int(record["vmm"]["pid"])
    raise LookupError(sandbox_id)


def went_first(pid: int) -> bool:
    """Whether every thread has a better nice value than we have, or its group a weight of its own."""
    if "runtime-floor-" in Path(f"/proc/{pid}/cgroup").read_text():
        return True
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    return all(os.getpriority(os.PRIO_PROCESS, int(thread)) < ours for thread in os.listdir(f"/proc/{pid}/task"))


@pytest.mark.skipif(os.getuid() != 0, reason="elsewhere a floor is price and admission, as docs/money.md says")
@pytest.mark.timeout(900)
def test_a_reserved_machine_goes_first_and_no_more_is_promised_than_there_is(as_client: Service) -> None:
    cores = os.cpu_count() or 1
    with Sandbox.create() as plain, Sandbox.create(vcpu=1, cpu="reserved") as reserved:
        with pytest.raises(ServiceError) as refused:
            Runtime(wait_for_capacity=0).sandboxes.create(vcpu=min(16, cores), cpu="reserved")

        assert went_first(vmm_of(as_client.state_dir, reserved.id))
        assert not went_first(vmm_of(as_client.state_dir, plain.id))
    assert refused.value.code == "no_capacity"


@pytest.mark.timeout(900)
def test_what_a_guest_sends_counts_while_it_runs(as_client: Service) -> None:
    with Sandbox.create() as sandbox:
        # Whether anybody answers does not matter: what left the guest counts.
        sandbox.exec("curl -s -m 5 http://example.com/ -o /dev/null; true")
        deadline = time.monotonic() + SAMPLED_WITHIN_S
        while not int(sandbox.receipt()["outboundBytes"]) and time.monotonic() < deadline:
            time.sleep(0.5)
        receipt = sandbox.receipt()

        assert int(receipt["outboundBytes"]) > 0
        assert [line["micros"] for line in receipt["lines"] if line["what"].startswith("outbound")] == [0]
        assert not receipt["final"]
