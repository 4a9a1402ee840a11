"""Rows of the cases from the field that need a real machine to break, seen through the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.system.conftest import Service

from runtimed.core.wait import wait_for
from runtimed.node.vmm.processes import mark
from withruntime import AsyncRuntime, Runtime, Sandbox
from withruntime import RuntimeError as RuntimeFailure

pytestmark = pytest.mark.system


@pytest.fixture
def client(service: Service) -> Iterator[Runtime]:
    with Runtime(api_key=service.key, base_url=service.url) as made:
        yield made


@pytest.fixture
def sandbox(client: Runtime) -> Iterator[Sandbox]:
    made = client.sandboxes.create()
    yield made
    with contextlib.suppress(RuntimeFailure):
        made.delete()


def machine_of(service: Service, sandbox_id: str) -> int:
    """Host pid of the sandbox's QEMU."""
    for record in (service.state_dir / "machines").glob("*/machine.json"):
        said = json.loads(record.read_text())
        if (said["sandbox"] or {}).get("sandbox_id") == sandbox_id:
            return int(said["vmm"]["pid"])
    raise LookupError(sandbox_id)


def test_ex_19_a_stream_of_a_killed_machine_ends_with_a_typed_error_in_seconds(
    service: Service, sandbox: Sandbox
) -> None:
    events = sandbox.exec_stream("while :; do echo tick; sleep 0.1; done")
    seen = 0
    with pytest.raises(RuntimeFailure) as failed:
        for event in events:
            seen += event["type"] == "stdout"
            if seen == 3:
                os.kill(machine_of(service, sandbox.id), signal.SIGKILL)
                killed_at_s = time.monotonic()

    assert time.monotonic() - killed_at_s < 5
    assert failed.value.code


def test_ex_15_a_command_for_a_machine_that_is_gone_is_an_error_and_never_an_empty_success(
    service: Service, sandbox: Sandbox
) -> None:
    os.kill(machine_of(service, sandbox.id), signal.SIGKILL)

    with pytest.raises(RuntimeFailure) as failed:
        sandbox.exec("echo never")

    assert failed.value.code in ("host_lost", "outcome_unknown", "interrupted", "sandbox_stopped")
    assert sandbox.wait_for("stopped").state == "stopped"


def test_fi_05_a_file_that_was_written_is_there_for_the_next_command(sandbox: Sandbox) -> None:
    wrong = []
    for number in range(100):
        sandbox.files.write("/workspace/now", f"round {number}\n")
        said = sandbox.exec(["cat", "/workspace/now"]).stdout
        if said != f"round {number}\n":
            wrong.append((number, said))

    assert wrong == []


def test_lk_17_the_guests_cgroups_of_ended_commands_are_gone(sandbox: Sandbox) -> None:
    for _ in range(5):
        sandbox.exec("sleep 100 & disown; true")

    left = sandbox.exec("ls -d /sys/fs/cgroup/runtime/*/ | wc -l").stdout.strip()

    assert left == "1"  # that of the question itself


def test_lk_17_a_stopped_sandbox_leaves_nothing_on_the_host(service: Service, client: Runtime) -> None:
    sandbox = client.sandboxes.create()
    pid = machine_of(service, sandbox.id)

    sandbox.delete()

    assert mark(pid) is None
    assert all(
        sandbox.id not in record.read_text() for record in (service.state_dir / "machines").glob("*/machine.json")
    )


async def test_ex_23_commands_whose_client_left_are_ended_and_the_agent_answers(service: Service) -> None:
    async with AsyncRuntime(api_key=service.key, base_url=service.url, max_retries=0) as client:
        sandbox = await client.sandboxes.create()
        for number in range(20):
            asking = asyncio.ensure_future(sandbox.exec(["sleep", "300"], timeout_ms=60_000))
            await asyncio.sleep(number * 0.01)  # the moment is what is tried
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, RuntimeFailure):
                await asking

        async def none_left() -> bool | None:
            counted = await sandbox.exec("pgrep -c sleep || true")
            return counted.stdout.strip() == "0" or None

        assert (await sandbox.exec("echo here")).stdout == "here\n"
        await wait_for("the end of the commands", none_left, within_s=55, every_s=1.0)
        await sandbox.delete()
