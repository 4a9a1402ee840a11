"""What only a machine with its own kernel can promise: its identity, and an agent that nothing inside starves."""

from __future__ import annotations

import asyncio
import os
import time
import uuid

import pytest

from runtimed.core import errors
from runtimed.core.clock import SystemClock
from runtimed.core.commands import Command
from runtimed.core.files import WriteOptions
from runtimed.core.wait import wait_for
from runtimed.node.guest import GuestClient, Identity

from .conftest import GuestMachine, Run, new_process_id
from .test_guest_files import pieces, read


@pytest.fixture(autouse=True)
def only_real(machine: GuestMachine) -> None:
    if not machine.real:
        pytest.skip("the fake has neither a kernel nor cgroups of its own")


async def test_a_machine_has_the_identity_that_it_was_given(guest: GuestClient, run: Run) -> None:
    machine_id, boot_id = uuid.uuid4().hex, str(uuid.uuid4())
    identity = Identity(entropy=os.urandom(64), hostname="other-box", machine_id=machine_id, boot_id=boot_id)

    identified = await guest.identify(identity, SystemClock())

    assert identified.entropy_reseeded
    assert abs(identified.clock_skew_ms) < 500
    seen = await run("hostname; cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id; date +%s.%N")
    *names, now = seen.stdout.decode().split()
    assert names == ["other-box", "other-box", machine_id, boot_id]
    assert abs(float(now) - time.time()) < 5
    assert (await run("getent hosts other-box")).exit.exit_code == 0


async def test_the_identity_can_be_given_again(guest: GuestClient, run: Run) -> None:
    for name in ("one", "two"):
        identity = Identity(
            entropy=os.urandom(64), hostname=name, machine_id=uuid.uuid4().hex, boot_id=str(uuid.uuid4())
        )
        await guest.identify(identity, SystemClock())

    assert (await run("hostname; grep -c two /etc/hosts; grep -c one /etc/hosts")).stdout == b"two\n1\n0\n"


async def test_the_agent_is_pid_1_protected_and_commands_are_not(run: Run) -> None:
    """EX-27, what it rests on."""
    seen = await run(
        "cat /proc/1/oom_score_adj /proc/1/cgroup /proc/self/oom_score_adj /proc/self/cgroup"
        " /sys/fs/cgroup/agent/cpu.weight"
    )
    agent_score, agent_group, score, group, weight = seen.stdout.decode().split()

    assert (agent_score, agent_group, weight) == ("-1000", "0::/agent", "10000")
    assert score == "0"
    assert group.startswith("0::/runtime/c-")


async def test_the_agent_answers_beside_a_fork_bomb_which_ends_at_its_deadline(guest: GuestClient, run: Run) -> None:
    """EX-27."""
    bomb = new_process_id()
    await guest.processes.spawn(bomb, Command(argv=("bash", "-c", ":(){ :|:& };:; sleep 60"), timeout_ms=15_000))
    await asyncio.sleep(3)

    await guest.ping()
    assert (await run("true", timeout_ms=60_000)).exit.exit_code == 0

    async with asyncio.timeout(90):
        async with guest.processes.follow(bomb, cursor=0) as events:
            async for _ in events:
                pass
    assert (await guest.processes.process(bomb)).state == "timed_out"

    async def all_gone() -> bool | None:
        left = await run("ls /sys/fs/cgroup/runtime | grep -c ^c-; cat /sys/fs/cgroup/runtime/pids.current")
        groups, processes = (int(n) for n in left.stdout.split())
        return (groups <= 2 and processes <= 4) or None

    await wait_for("the last of the bomb's processes", all_gone, within_s=60, every_s=0.5)


async def test_a_command_that_takes_all_memory_is_killed_and_says_so(guest: GuestClient, run: Run) -> None:
    """EX-27."""
    beside = new_process_id()
    await guest.processes.spawn(beside, Command(argv=("sleep", "300")))

    greedy = "x = [b'x' * (8 << 20) for n in range(4000)]; print('survived')"
    result = await run("python3", "-c", greedy, timeout_ms=120_000)

    assert result.exit.out_of_memory is not None
    assert result.exit.out_of_memory.processes_killed >= 1
    assert b"survived" not in result.stdout
    assert (await guest.processes.process(beside)).state == "running"
    await guest.ping()


async def test_a_full_disk_is_told_and_the_agent_goes_on(guest: GuestClient, run: Run) -> None:
    """EX-17."""
    almost = "$(($(df --output=avail -B1 /workspace | tail -1) - 20000000))"
    await run(f"fallocate -l {almost} /workspace/full", timeout_ms=60_000)
    filled = await run("head -c 100M /dev/zero > /workspace/rest", timeout_ms=60_000)
    packed = await run("tar cf /workspace/t.tar /usr/bin", timeout_ms=60_000)

    assert filled.exit.exit_code != 0
    assert packed.exit.exit_code != 0
    assert b"No space left" in packed.stderr
    with pytest.raises(errors.DiskFull, match="/workspace/more"):
        await guest.files.write("/workspace/more", pieces(b"x" * 500_000), WriteOptions(user="sandbox"))
    assert await guest.files.remove("/workspace/full", recursive=False, user="sandbox")
    await guest.files.write("/workspace/more", pieces(b"fits"), WriteOptions(user="sandbox"))
    assert await read(guest, "/workspace/more") == b"fits"


async def test_many_processes_and_threads_run_by_default(run: Run) -> None:
    """EX-47."""
    script = (
        "import threading, time\n"
        "ts = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(300)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; print(len(ts))"
    )
    threads = await run("python3", "-c", script, timeout_ms=120_000)
    processes = await run("for i in $(seq 100); do sleep 2 & done; wait; echo all", timeout_ms=120_000)

    assert threads.stdout == b"300\n"
    assert processes.stdout == b"all\n"


async def test_root_is_one_word_away_and_ends_nothing_of_the_agent(guest: GuestClient, run: Run) -> None:
    assert (await run("sudo -n id -u")).stdout == b"0\n"
    assert (await run("id -un", user="root")).stdout == b"root\n"

    await run("sudo -n kill -9 1; sudo -n kill -TERM 1; sudo -n kill -INT 1; true")

    await guest.ping()


async def test_a_command_that_leaves_its_cgroup_empty_leaves_no_cgroup(run: Run) -> None:
    """EX-55."""
    for _ in range(5):
        await run("true")

    seen = await run("ls -d /sys/fs/cgroup/runtime/c-* | wc -l")

    assert seen.stdout == b"1\n"


async def test_hanging_up_in_the_middle_of_a_frame_is_survived(machine: GuestMachine, guest: GuestClient) -> None:
    """The agent sits in a half-read frame; the next connection is heard all the same."""
    guest.channel._connection.data(guest.channel.link.open("file.write", {"path": "/tmp/x"}).id, bytes(200_000))
    half = b"".join(guest.channel._connection.take())[:-50_000]
    guest.channel._write(half)
    await asyncio.sleep(0.05)
    await guest.channel.close("in the middle")

    again = await machine.connect()

    await again.ping()
