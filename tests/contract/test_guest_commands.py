"""What every guest promises about commands and processes: rows EX of the case list that concern the inside."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from runtimed.core import errors
from runtimed.core.commands import Began, Command, Ended, Lost, Output, ProcessEvent, PtySize
from runtimed.core.wait import wait_for
from runtimed.node.channel import Channel
from runtimed.node.guest import GuestClient

from .conftest import KEEP_BYTES, GuestMachine, Run, new_process_id

Programs = Callable[[], Awaitable[list[str]]]


async def read_to_end(events: AsyncIterator[ProcessEvent]) -> tuple[bytes, list[ProcessEvent]]:
    """All output put together, checked to be without a gap, and every event."""
    seen = [event async for event in events]
    at = next((event.offset for event in seen if isinstance(event, Output)), 0)
    found = b""
    for event in seen:
        if isinstance(event, Lost):
            at = event.resume_at
        if isinstance(event, Output):
            assert event.offset == at
            at += len(event.data)
            found += event.data
    return found, seen


async def started(guest: GuestClient, script: str, **options: object) -> str:
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", script), **options)  # type: ignore[arg-type]
    await guest.processes.spawn(process_id, command)
    return process_id


async def ended(guest: GuestClient, process_id: str) -> None:
    async def over() -> bool | None:
        return (await guest.processes.process(process_id)).exit is not None or None  # type: ignore[arg-type]

    await wait_for("the end of the process", over, within_s=30)


async def test_a_command_past_its_deadline_is_a_result_and_nothing_of_it_is_left(run: Run, programs: Programs) -> None:
    """EX-01."""
    begun = time.monotonic()
    result = await run("sleep 10; echo never", timeout_ms=1000)

    assert result.exit.timed_out
    assert result.exit.exit_code is None
    assert time.monotonic() - begun < 8
    assert "sleep" not in await programs()


async def test_busy_children_of_a_command_past_its_deadline_are_dead(run: Run, programs: Programs) -> None:
    """EX-03."""
    result = await run("for i in 1 2 3 4;do (exec -a burner sh -c 'while :;do :;done')& done; wait", timeout_ms=1000)

    assert result.exit.timed_out
    assert [name for name in await programs() if name in ("sh", "dash")] == []


@pytest.mark.parametrize("script", ["sleep 30 & true", "sh -c 'sleep 30 &' ; true"])
async def test_a_command_answers_when_it_ends_and_not_when_a_child_closes_its_output(
    run: Run, programs: Programs, script: str
) -> None:
    """EX-05."""
    result = await run(script)

    assert result.exit.exit_code == 0
    assert result.exit.duration_ms < 10_000
    assert "sleep" not in await programs()


async def test_a_child_in_a_session_of_its_own_does_not_outlive_the_command(run: Run, programs: Programs) -> None:
    result = await run("(setsid setsid sleep 300 >/dev/null 2>&1 &) ; echo over")

    assert result.stdout == b"over\n"
    await wait_for("no sleep", lambda: none_of(programs, "sleep"), within_s=10)


async def none_of(programs: Programs, name: str) -> bool | None:
    return name not in await programs() or None


async def test_commands_cancelled_at_any_moment_leave_no_process(
    guest: GuestClient, run: Run, programs: Programs
) -> None:
    """EX-23, with a hundred."""
    chance = random.Random(23)
    for _ in range(100):
        command = Command(argv=("sleep", "300"))
        asked = asyncio.ensure_future(guest.processes.capture(new_process_id(), command, keep_bytes=KEEP_BYTES))
        await asyncio.sleep(chance.random() * 0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    assert (await run("true")).exit.exit_code == 0
    await wait_for("no sleep", lambda: none_of(programs, "sleep"), within_s=20)


async def test_a_process_goes_on_without_a_client_and_is_read_on_from_the_cursor_without_a_gap(
    machine: GuestMachine, guest: GuestClient
) -> None:
    """EX-25 and EX-13: the channel is cut in the middle of a stream."""
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", "for i in $(seq 2000); do echo line $i; done; read x; echo $x; exit 3"),
                      stdin_pipe=True)  # fmt: skip
    head = b""
    with pytest.raises(errors.Interrupted) as cut:
        async with guest.processes.run(process_id, command) as events:
            async for event in events:
                if isinstance(event, Output):
                    head += event.data
                    await guest.channel.close("cut by the test")
    cursor = cut.value.details["cursor"]
    assert cut.value.details["processId"] == process_id
    assert cursor == len(head)

    again = await machine.connect()
    await again.processes.write_stdin(process_id, offset=0, data=b"bye\n", eof=True)
    async with again.processes.follow(process_id, cursor=int(str(cursor))) as events:
        rest, seen = await read_to_end(events)

    assert head + rest == b"".join(b"line %d\n" % i for i in range(1, 2001)) + b"bye\n"
    assert isinstance(seen[-1], Ended)
    assert seen[-1].exit.exit_code == 3


async def test_a_buffered_command_whose_channel_breaks_has_an_unknown_outcome_and_can_be_asked_for(
    machine: GuestMachine, guest: GuestClient, run: Run
) -> None:
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", "echo begun; read x < /tmp/go; echo done"))
    await run("mkfifo", "/tmp/go")
    asked = asyncio.ensure_future(guest.processes.capture(process_id, command, keep_bytes=KEEP_BYTES))

    async def begun() -> bool | None:
        return any(p.id == process_id and p.output_bytes for p in await guest.processes.processes()) or None

    await wait_for("the command's start", begun, within_s=20)
    await guest.channel.close("cut by the test")
    with pytest.raises(errors.OutcomeUnknown) as unknown:
        await asked
    assert unknown.value.details == {"processId": process_id}

    again = await machine.connect()
    await again.processes.capture(
        new_process_id(), Command(argv=("bash", "-c", "echo x > /tmp/go")), keep_bytes=KEEP_BYTES
    )
    result = await again.processes.capture(process_id, command, keep_bytes=KEEP_BYTES)

    assert result.stdout == b"begun\ndone\n"


async def test_a_machine_that_dies_in_the_middle_of_a_command_is_an_error_and_no_exit_code(
    machine: GuestMachine, guest: GuestClient
) -> None:
    """EX-39."""
    process_id = new_process_id()
    with pytest.raises(errors.Interrupted):
        async with guest.processes.run(process_id, Command(argv=("sleep", "300"))) as events:
            async for event in events:
                assert not isinstance(event, Ended)
                if isinstance(event, Began):
                    await machine.kill()


async def test_characters_split_over_writes_and_bytes_that_are_no_text_arrive_as_they_are(guest: GuestClient) -> None:
    """EX-29."""
    script = r"printf '\xe6\x97'; sleep 0.1; printf '\xa5\xff\xfe\x00end'"
    process_id = await started(guest, script)

    async with guest.processes.follow(process_id, cursor=0) as events:
        found, _ = await read_to_end(events)

    assert found == b"\xe6\x97\xa5\xff\xfe\x00end"


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 1 << 20])
async def test_output_around_the_buffer_is_whole_or_counted(run: Run, size: int) -> None:
    """EX-31."""
    result = await run(f"head -c {size} /dev/zero | tr '\\0' x")

    assert result.stdout_bytes == size
    assert len(result.stdout) == min(size, KEEP_BYTES)


async def test_empty_lines_and_a_missing_newline_are_kept(run: Run) -> None:
    """EX-33."""
    assert (await run(r"printf 'a\n\n\nb'")).stdout == b"a\n\n\nb"


async def test_a_command_without_input_reads_the_end_at_once(run: Run) -> None:
    """EX-35."""
    result = await run("cat", timeout_ms=10_000)

    assert (result.exit.exit_code, result.exit.timed_out) == (0, False)


async def test_input_arrives_whole_and_ends(run: Run) -> None:
    data = random.Random(1).randbytes(700_000)

    result = await run("sha256sum", stdin=data)

    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_input_that_nobody_reads_stops_nothing(run: Run) -> None:
    assert (await run("true", stdin=b"x" * 500_000)).exit.exit_code == 0


async def test_a_command_killed_by_a_signal_names_it(run: Run) -> None:
    """EX-37."""
    result = await run("kill -SEGV $$")

    assert (result.exit.exit_code, result.exit.signal) == (None, 11)


async def test_a_nul_byte_in_an_argument_is_refused_by_name(run: Run) -> None:
    """EX-37."""
    with pytest.raises(errors.InvalidRequest, match="argv"):
        await run("echo", "a\0b")


@pytest.mark.parametrize("head", ["#!/bin/sh\n", "\ufeff#!/bin/sh\n", ""])
async def test_a_script_with_or_without_its_first_line_runs(guest: GuestClient, run: Run, head: str) -> None:
    """EX-37."""
    await run("bash", "-c", "cat > /workspace/s && chmod +x /workspace/s", stdin=(head + "echo ran $1\n").encode())

    result = await run("/workspace/s", "here")

    assert result.stdout == b"ran here\n"


async def test_an_unknown_program_and_one_that_may_not_run_end_as_in_a_shell(run: Run) -> None:
    unknown, not_executable = await run("no-such-program"), await run("/etc/passwd")

    assert (unknown.exit.exit_code, unknown.stderr) == (127, b"no-such-program: command not found\n")
    assert (not_executable.exit.exit_code, not_executable.stderr) == (126, b"/etc/passwd: Permission denied\n")


async def test_a_missing_folder_is_an_error_that_names_it(run: Run) -> None:
    with pytest.raises(errors.CwdNotFound, match="/no/such/folder"):
        await run("pwd", cwd="/no/such/folder")


async def test_a_value_of_the_environment_arrives_byte_by_byte(run: Run) -> None:
    """EX-43."""
    value = "two words 'single' \"double\" $(id) `id` \\ -n \n\t* é日本 ~"

    result = await run("printenv", "VALUE", env={"VALUE": value})

    assert result.stdout == value.encode() + b"\n"


async def test_commands_have_the_sandboxes_environment_and_their_own_over_it(guest: GuestClient, run: Run) -> None:
    assert (await run("echo $SANDBOX $HOME $PWD")).stdout == b"yes /workspace /workspace\n"

    await guest.update(env={"SANDBOX": "changed"}, user="sandbox")

    assert (await run("echo $SANDBOX")).stdout == b"changed\n"
    assert (await run("echo $SANDBOX", env={"SANDBOX": "mine"})).stdout == b"mine\n"


async def test_orphans_are_reaped_and_fast_ends_are_never_lost(run: Run, programs: Programs) -> None:
    """EX-45, with a few hundred."""
    result = await run("for i in $(seq 300); do (sh -c 'sleep 0.01 &' &) ; done; sleep 0.3; echo done")
    codes = await asyncio.gather(*(run("bash", "-c", f"exit {i}") for i in range(40)))

    assert result.stdout == b"done\n"
    assert [code.exit.exit_code for code in codes] == list(range(40))
    assert [name for name in await programs() if "zombie" in name] == []


async def test_a_flood_of_output_keeps_head_and_tail_and_counts_each_stream(run: Run) -> None:
    """EX-49 and EX-55."""
    result = await run("echo first; head -c 52428800 /dev/zero; echo last; echo error >&2", timeout_ms=60_000)

    assert result.exit.exit_code == 0
    assert (result.stdout_bytes, result.stderr_bytes) == (52_428_800 + 11, 6)
    assert result.stdout.startswith(b"first\n\0")
    assert result.stdout.endswith(b"\0last\n")
    assert len(result.stdout) == KEEP_BYTES
    assert result.stderr == b"error\n"


async def test_a_reader_that_stops_makes_the_command_wait_and_loses_nothing(guest: GuestClient) -> None:
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", "seq 1000000"))
    async with guest.processes.run(process_id, command) as events:
        assert isinstance(await anext(events), Began)

        async def stands_still() -> int | None:
            first = (await guest.processes.process(process_id)).output_bytes
            await asyncio.sleep(0.2)
            now = await guest.processes.process(process_id)
            return first if first == now.output_bytes > 0 else None

        at_most = await wait_for("the command to wait", stands_still, within_s=8)
        found, seen = await read_to_end(events)

    assert at_most < 2 << 20
    assert found == b"".join(b"%d\n" % i for i in range(1, 1_000_001))
    assert not any(isinstance(event, Lost) for event in seen)


async def test_without_a_reader_the_newest_mebibyte_is_kept_and_the_gap_is_told(guest: GuestClient) -> None:
    process_id = await started(guest, "head -c 3000000 /dev/zero; printf end")
    await ended(guest, process_id)
    info = await guest.processes.process(process_id)

    async with guest.processes.follow(process_id, cursor=1000) as events:
        found, seen = await read_to_end(events)

    assert info.output_bytes - info.first_offset == 1 << 20
    assert seen[0] == Lost(dropped_bytes=info.first_offset - 1000, resume_at=info.first_offset)
    assert len(found) == 1 << 20
    assert found.endswith(b"end")


async def test_reading_what_is_there_does_not_wait(guest: GuestClient) -> None:
    process_id = await started(guest, "echo here; sleep 300")

    async def written() -> bool | None:
        return (await guest.processes.process(process_id)).output_bytes == 5 or None

    await wait_for("the output", written, within_s=10)
    async with guest.processes.follow(process_id, cursor=0, live=False) as events:
        found, seen = await read_to_end(events)

    assert (found, len(seen)) == (b"here\n", 1)


async def test_the_same_id_again_is_the_same_process(guest: GuestClient) -> None:
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", "echo $$; sleep 300"))

    first = await guest.processes.spawn(process_id, command)
    second = await guest.processes.spawn(process_id, command)

    assert first.pid == second.pid
    assert [p.id for p in await guest.processes.processes()] == [process_id]


async def test_input_by_position_ignores_what_came_before_and_ends_once(guest: GuestClient) -> None:
    process_id = await started(guest, "cat", stdin_pipe=True)

    assert await guest.processes.write_stdin(process_id, offset=0, data=b"hello ", eof=False) == 6
    assert await guest.processes.write_stdin(process_id, offset=0, data=b"hello world", eof=False) == 11
    with pytest.raises(errors.InvalidRequest):
        await guest.processes.write_stdin(process_id, offset=20, data=b"gap", eof=False)
    assert await guest.processes.write_stdin(process_id, offset=11, data=b"", eof=True) == 11
    with pytest.raises(errors.StdinClosed):
        await guest.processes.write_stdin(process_id, offset=11, data=b"more", eof=False)

    async with guest.processes.follow(process_id, cursor=0) as events:
        found, _ = await read_to_end(events)
    assert found == b"hello world"


async def test_more_input_than_there_is_room_for_is_taken_in_part(guest: GuestClient) -> None:
    process_id = await started(guest, "read -N 1 go < /dev/null; sleep 1; sha256sum", stdin_pipe=True)
    data = random.Random(2).randbytes(1 << 20)
    taken = 0
    while taken < len(data):
        position = await guest.processes.write_stdin(process_id, offset=taken, data=data[taken:], eof=True)
        assert taken <= position <= len(data)
        if position == taken:
            await asyncio.sleep(0.02)
        taken = position

    async with guest.processes.follow(process_id, cursor=0) as events:
        found, _ = await read_to_end(events)
    assert found.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_a_terminal_takes_input_has_a_size_and_can_be_resized(guest: GuestClient) -> None:
    process_id = new_process_id()
    script = "tty >/dev/null && echo terminal; stty size; trap 'stty size' WINCH; while read -r x; do echo got $x; done"
    command = Command(argv=("bash", "-c", script), pty=PtySize(cols=100, rows=30))
    async with guest.processes.run(process_id, command) as events:
        seen = b""
        async for event in events:
            if isinstance(event, Output):
                seen += event.data
                if seen.endswith(b"30 100\r\n") and b"got" not in seen:
                    await guest.processes.write_stdin(process_id, offset=0, data=b"one\n", eof=False)
                elif seen.endswith(b"got one\r\n"):
                    await guest.processes.resize(process_id, cols=120, rows=40)
                    await guest.processes.write_stdin(process_id, offset=4, data=b"two\n", eof=False)
                elif seen.endswith(b"got two\r\n"):
                    await guest.processes.write_stdin(process_id, offset=8, data=b"", eof=True)
            if isinstance(event, Ended):
                assert event.exit.exit_code in (0, 1)

    assert seen.startswith(b"terminal\r\n30 100\r\n")
    assert b"40 120\r\n" in seen


async def test_a_signal_reaches_the_process_and_kill_ends_all_of_it(guest: GuestClient, programs: Programs) -> None:
    trapped = await started(guest, "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    stubborn = await started(guest, "trap '' TERM; (setsid sleep 300 &); sleep 300")

    async def ready() -> bool | None:
        return (await guest.processes.process(trapped)).output_bytes > 0 or None  # type: ignore[arg-type]

    await wait_for("the trap", ready, within_s=10)
    await guest.processes.signal(trapped, "SIGTERM")  # type: ignore[arg-type]
    await guest.processes.signal(stubborn, "SIGKILL")  # type: ignore[arg-type]
    await ended(guest, trapped)
    await ended(guest, stubborn)

    infos = {p.id: p for p in await guest.processes.processes()}
    assert infos[trapped].exit.exit_code == 5  # type: ignore[index, union-attr]
    assert (infos[stubborn].state, infos[stubborn].exit.signal) == ("killed", 9)  # type: ignore[index, union-attr]
    await wait_for("no sleep", lambda: none_of(programs, "sleep"), within_s=10)
    with pytest.raises(errors.ProcessEnded):
        await guest.processes.signal(trapped, "SIGTERM")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="SIGNOPE"):
        await guest.processes.signal(stubborn, "SIGNOPE")  # type: ignore[arg-type]


async def test_an_unknown_process_is_not_found(guest: GuestClient) -> None:
    with pytest.raises(errors.ProcessNotFound):
        await guest.processes.process(new_process_id())
    with pytest.raises(errors.ProcessNotFound):
        async with guest.processes.follow(new_process_id(), cursor=0) as events:
            await anext(events)


async def test_only_the_newest_sixteen_ended_processes_are_remembered(guest: GuestClient, run: Run) -> None:
    first = await run("true")
    for _ in range(16):
        await run("true")

    known = await guest.processes.processes()

    assert len(known) == 16
    assert first.process_id not in {p.id for p in known}


async def test_the_agent_is_pinged_while_a_command_floods(guest: GuestClient) -> None:
    process_id = new_process_id()
    async with guest.processes.run(process_id, Command(argv=("yes",))) as events:
        for _ in range(20):
            await anext(events)
            await guest.ping()
        await guest.processes.signal(process_id, "SIGKILL")


async def test_a_new_connection_starts_anew_and_the_old_one_hears_of_its_end(
    machine: GuestMachine, guest: GuestClient
) -> None:
    if machine.real:
        pytest.skip("a machine's port has one connection at a time")
    again = await machine.connect()

    await again.ping()
    async with asyncio.timeout(5):
        closing = await guest.channel.closed

    assert not closing.hostile


async def test_an_agent_that_is_not_there_is_told_in_time(machine: GuestMachine) -> None:
    with pytest.raises(errors.GuestUnresponsive, match=r"not reached in 0\.3 s"):
        await Channel.open(machine.socket.parent / "nobody.sock", within_s=0.3)


@pytest.mark.slow
async def test_a_reader_that_takes_nothing_for_ten_seconds_no_longer_stops_the_command(guest: GuestClient) -> None:
    process_id = new_process_id()
    command = Command(argv=("bash", "-c", "head -c 6000000 /dev/zero; printf end"))
    async with guest.processes.run(process_id, command) as events:
        await ended(guest, process_id)
        found, seen = await read_to_end(events)

    assert any(isinstance(event, Lost) for event in seen)
    assert found.endswith(b"end")


@pytest.mark.slow
async def test_one_process_more_than_there_may_be_is_refused(machine: GuestMachine, guest: GuestClient) -> None:
    if not machine.real:
        pytest.skip("finding each one's processes through /proc takes minutes")
    for _ in range(256):
        await guest.processes.spawn(new_process_id(), Command(argv=("sleep", "600")))

    with pytest.raises(errors.ProcessLimit, match="256"):
        await guest.processes.spawn(new_process_id(), Command(argv=("true",)))
