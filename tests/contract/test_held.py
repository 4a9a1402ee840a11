"""A machine that is held runs nothing of a user until it has its identity, and for no longer than it can bear."""

from __future__ import annotations

import os
import uuid

import pytest

from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.ids import ProcessId
from runtimed.core.wait import wait_for
from runtimed.node.guest import GuestClient, Identity

from .conftest import GuestMachine, new_process_id
from .test_guest_files import read

COUNT = "n=0; while :; do n=$((n+1)); echo $n > /workspace/count.new; mv /workspace/count.new /workspace/count; done"
TOLD = (
    "import os, _signal, time\n"
    "_signal.signal(53, lambda *_: open('/workspace/told', 'a').write('told\\n'))\n"
    "_signal.signal(61, lambda *_: None)\n"
    "open('/workspace/ready', 'w').close()\n"
    "while True: time.sleep(1)\n"
)


@pytest.fixture(autouse=True)
def only_real(machine: GuestMachine) -> None:
    if not machine.real:
        pytest.skip("the fake has no cgroups of its own")


def identity(*, copy: bool) -> Identity:
    return Identity(entropy=os.urandom(64), hostname="held", machine_id=uuid.uuid4().hex, env=None, copy=copy)


async def spawned(guest: GuestClient, *argv: str) -> ProcessId:
    process_id = new_process_id()
    await guest.processes.spawn(process_id, Command(argv=argv, timeout_ms=300_000))
    return process_id


async def content(guest: GuestClient, path: str) -> bytes | None:
    return await read(guest, path) if await guest.files.stat(path, user="sandbox") else None


async def counted(guest: GuestClient, more_than: bytes = b"") -> bytes:
    async def further() -> bytes | None:
        now = await content(guest, "/workspace/count")
        return now if now and now != more_than else None

    return await wait_for("the count going on", further, within_s=30)


async def test_sn_07_nothing_of_a_user_runs_between_the_hold_and_the_identity(guest: GuestClient) -> None:
    await spawned(guest, "sh", "-c", COUNT)
    await counted(guest)

    await guest.hold()
    await guest.ping()  # by then the call of the kernel that each was in has ended
    at_first = await content(guest, "/workspace/count")
    for _ in range(20):
        await guest.ping()
    at_last = await content(guest, "/workspace/count")
    await guest.identify(identity(copy=False), SystemClock())

    assert at_first == at_last and at_first
    await counted(guest, more_than=at_first)


async def test_a_hold_that_nobody_ends_ends_by_itself(guest: GuestClient) -> None:
    await spawned(guest, "sh", "-c", COUNT)
    await counted(guest)

    await guest.hold()

    await counted(guest, more_than=await content(guest, "/workspace/count") or b"")


async def test_programs_that_ask_for_it_are_told_that_they_are_in_a_copy_and_no_others(guest: GuestClient) -> None:
    deaf = await spawned(guest, "sleep", "100")
    await spawned(guest, "python3", "-c", TOLD)

    async def there() -> bool | None:
        return await content(guest, "/workspace/ready") is not None or None

    await wait_for("the program", there, within_s=60)
    await guest.identify(identity(copy=False), SystemClock())
    await guest.hold()
    await guest.identify(identity(copy=True), SystemClock())

    async def told() -> bytes | None:
        return await content(guest, "/workspace/told") or None  # the file is there before the word is in it

    assert await wait_for("the word", told, within_s=30) == b"told\n"
    assert (await guest.processes.process(deaf)).state == "running"
