"""Commands and processes of one machine, asked of its agent."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runtimed.core import errors
from runtimed.core.commands import (
    Began,
    Captured,
    Command,
    Ended,
    Exit,
    Lost,
    OutOfMemory,
    Output,
    ProcessEvent,
    ProcessInfo,
    ProcessState,
    PtySize,
)
from runtimed.core.ids import ProcessId
from runtimed.node.channel import Channel, result_of
from runtimed.node.guest.decode import Reply, ask
from runtimed.wire.frames import Json, ProtocolViolation
from runtimed.wire.streams import Stream

OUTPUT_HEAD = struct.Struct(">BQ")
"""Before the bytes of each output frame: stream (0 stdout, 1 stderr), position of the first byte."""
LATE_S = 60.0
"""How long after a command's deadline its answer is waited for: a starved machine is late, a hostile one is silent."""
_STATES: tuple[ProcessState, ...] = ("running", "exited", "killed", "timed_out")


class ProcessClient:
    """Implements core.ports.GuestProcesses."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def capture(self, process_id: ProcessId, command: Command, *, keep_bytes: int) -> Captured:
        params = {**_command(process_id, command), "keep_bytes": keep_bytes}
        try:
            async with asyncio.timeout(command.timeout_ms / 1000 + LATE_S):
                async with self._channel.stream("process.capture", params, last=not command.stdin) as stream:
                    await _send_stdin(stream, command.stdin)
                    return await _captured(stream, process_id, keep_bytes)
        except (errors.Interrupted, TimeoutError) as lost:
            if self._channel.closed_for_a_pause:
                raise errors.Interrupted(
                    "the sandbox was paused while the command ran",
                    hint="it goes on after the wake: the same request with the same Idempotency-Key brings its result, "
                    "and its output can be read from the cursor",
                    details={"processId": process_id, "cursor": 0},
                ) from lost
            raise errors.OutcomeUnknown(
                "the machine did not tell the end of the command, long past its deadline"
                if isinstance(lost, TimeoutError)
                else f"the command's end is not known: {lost.message}",
                hint="ask for the process again, which wakes a paused sandbox; the command may still run",
                details={"processId": process_id},
            ) from lost

    async def spawn(self, process_id: ProcessId, command: Command) -> ProcessInfo:
        async with self._channel.stream(
            "process.spawn", _command(process_id, command), last=not command.stdin
        ) as stream:
            await _send_stdin(stream, command.stdin)
            return _info(Reply(await result_of(stream)))

    @asynccontextmanager
    async def run(self, process_id: ProcessId, command: Command) -> AsyncIterator[AsyncIterator[ProcessEvent]]:
        """Interrupted, with the process id and the cursor in its details, once the channel is lost."""
        params = _command(process_id, command)
        async with self._channel.stream("process.run", params, last=not command.stdin) as stream:
            following = _Following(self._channel, stream, process_id, 0)
            try:
                with self._channel.told():
                    await _send_stdin(stream, command.stdin)
                    began = Reply(await stream.receive())
                    first = Began(process_id=process_id, pid=began.integer("pid"))
            except errors.Interrupted as lost:
                raise following.interrupted() from lost
            yield following.events(first)

    @asynccontextmanager
    async def follow(
        self, process_id: ProcessId, *, cursor: int, live: bool = True
    ) -> AsyncIterator[AsyncIterator[ProcessEvent]]:
        """Interrupted, with the process id and the cursor in its details, once the channel is lost."""
        params: Json = {"id": process_id, "cursor": cursor, "live": live}
        async with self._channel.stream("process.follow", params, last=True) as stream:
            yield _Following(self._channel, stream, process_id, cursor).events(None)

    async def processes(self) -> list[ProcessInfo]:
        def infos(reply: Reply) -> list[ProcessInfo]:
            return [_info(Reply(item)) for item in reply.items("processes")]

        return await ask(self._channel, "process.list", {}, infos)

    async def process(self, process_id: ProcessId) -> ProcessInfo:
        return await ask(self._channel, "process.get", {"id": process_id}, _info)

    async def write_stdin(self, process_id: ProcessId, *, offset: int, data: bytes, eof: bool) -> int:
        params: Json = {"id": process_id, "offset": offset, "eof": eof, "stdin_bytes": len(data)}
        async with self._channel.stream("process.stdin", params, last=not data) as stream:
            await _send_stdin(stream, data)
            taken = Reply(await result_of(stream)).integer("offset")
            if not 0 <= taken < 1 << 62:
                raise ProtocolViolation("a position that is none")
            return taken

    async def signal(self, process_id: ProcessId, name: str) -> None:
        await self._channel.request("process.signal", {"id": process_id, "name": name})

    async def resize(self, process_id: ProcessId, *, cols: int, rows: int) -> None:
        await self._channel.request("process.resize", {"id": process_id, "cols": cols, "rows": rows})


class _Following:
    """Reads one process along, and knows how far it has come."""

    def __init__(self, channel: Channel, stream: Stream, process_id: ProcessId, cursor: int) -> None:
        self._channel, self._stream, self._process_id, self._cursor = channel, stream, process_id, cursor

    async def events(self, first: Began | None) -> AsyncIterator[ProcessEvent]:
        """What the agent sends, as events. Ends after Ended, or where the agent ends it."""
        if first is not None:
            yield first
        while (event := await self._next()) is not None:
            yield event
            if isinstance(event, Ended):
                return

    async def _next(self) -> ProcessEvent | None:
        try:
            with self._channel.told():
                item = await self._stream.receive()
                return None if item is None else self._event(item)
        except errors.Interrupted as lost:
            raise self.interrupted() from lost

    def _event(self, item: bytes | Json) -> ProcessEvent:
        if isinstance(item, bytes):
            output = _output(item)
            self._cursor = output.offset + len(output.data)
            return output
        reply = Reply(item)
        if reply.has("lost"):
            self._cursor = reply.integer("resume_at")
            return Lost(dropped_bytes=reply.integer("lost"), resume_at=self._cursor)
        return Ended(exit=_exit(reply.inner("exit")), state=_state(reply))

    def interrupted(self) -> errors.Interrupted:
        return errors.Interrupted(
            "the connection to the machine was lost",
            hint="read on from the cursor; the process may still run",
            details={"processId": self._process_id, "cursor": self._cursor},
        )


async def _captured(stream: Stream, process_id: ProcessId, keep_bytes: int) -> Captured:
    head = Reply(await stream.receive())
    lengths, totals = head.integers("lengths", 2), head.integers("totals", 2)
    if max(lengths) > keep_bytes:
        raise ProtocolViolation("the agent kept more than it was asked for")
    body = bytearray()
    while len(body) < sum(lengths):
        item = await stream.receive()
        if not isinstance(item, bytes):
            raise ProtocolViolation("the captured output is shorter than announced")
        body += item
    return Captured(
        process_id=process_id,
        exit=_exit(head.inner("exit")),
        stdout=bytes(body[: lengths[0]]),
        stderr=bytes(body[lengths[0] : sum(lengths)]),
        stdout_bytes=totals[0],
        stderr_bytes=totals[1],
    )


async def _send_stdin(stream: Stream, data: bytes) -> None:
    if data:
        await stream.send(data, last=True)


def _output(frame: bytes) -> Output:
    if len(frame) <= OUTPUT_HEAD.size:
        raise ProtocolViolation("an output frame without output")
    stream, offset = OUTPUT_HEAD.unpack_from(frame)
    if stream > 1 or offset >= 1 << 63:
        raise ProtocolViolation("an output frame of no stream")
    return Output(stream="stderr" if stream else "stdout", offset=offset, data=frame[OUTPUT_HEAD.size :])


def _state(reply: Reply) -> ProcessState:
    state = reply.text("state")
    for known in _STATES:
        if state == known:
            return known
    raise ProtocolViolation(f"a process in state {state[:40]}")


def _info(reply: Reply) -> ProcessInfo:
    pty = reply.integers("pty", 2) if reply.has("pty") else None
    ended = reply.inner_or_none("exit")
    return ProcessInfo(
        id=ProcessId(reply.text("id")),
        state=_state(reply),
        argv=reply.texts("argv"),
        cwd=reply.text("cwd"),
        user="root" if reply.text("user") == "root" else "sandbox",
        pid=reply.integer_or_none("pid"),
        pty=None if pty is None else PtySize(cols=pty[0], rows=pty[1]),
        stdin_open=reply.boolean("stdin_open"),
        stdin_offset=reply.integer("stdin_offset"),
        output_base64=reply.boolean("output_base64"),
        started_at_s=reply.number("started_at_s"),
        ended_at_s=reply.number_or_none("ended_at_s"),
        timeout_ms=reply.integer("timeout_ms"),
        output_bytes=reply.integer("output_bytes"),
        first_offset=reply.integer("first_offset"),
        exit=None if ended is None else _exit(ended),
    )


def _command(process_id: ProcessId, command: Command) -> Json:
    return {
        "id": process_id,
        "argv": list(command.argv),
        "cwd": command.cwd,
        "env": dict(command.env),
        "user": command.user,
        "stdin_bytes": len(command.stdin),
        "stdin_pipe": command.stdin_pipe,
        "pty": None if command.pty is None else [command.pty.cols, command.pty.rows],
        "timeout_ms": command.timeout_ms,
        "output_base64": command.output_base64,
    }


def _exit(reply: Reply) -> Exit:
    killed = reply.inner_or_none("out_of_memory")
    return Exit(
        exit_code=reply.integer_or_none("exit_code"),
        signal=reply.integer_or_none("signal"),
        timed_out=reply.boolean("timed_out"),
        duration_ms=reply.integer("duration_ms"),
        out_of_memory=None
        if killed is None
        else OutOfMemory(processes_killed=killed.integer("processes_killed"), memory_mib=killed.integer("memory_mib")),
    )
