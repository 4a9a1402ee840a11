"""Commands and processes of one machine, asked of its agent."""

from __future__ import annotations

from runtimed.core import errors
from runtimed.core.commands import Captured, Command, Exit, OutOfMemory
from runtimed.core.ids import ProcessId
from runtimed.node.channel import Channel
from runtimed.node.guest.decode import Reply
from runtimed.wire.frames import Json, ProtocolViolation


class ProcessClient:
    """Implements core.ports.GuestProcesses."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def capture(self, process_id: ProcessId, command: Command, *, keep_bytes: int) -> Captured:
        params = {**_command(process_id, command), "keep_bytes": keep_bytes}
        try:
            async with self._channel.stream("process.capture", params, last=not command.stdin) as stream:
                if command.stdin:
                    await stream.send(command.stdin, last=True)
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
        except errors.Interrupted as lost:
            raise errors.OutcomeUnknown(
                "the connection to the machine was lost while the command ran",
                hint="ask for the process again; the command may still run",
                details={"processId": process_id},
            ) from lost
        return Captured(
            process_id=process_id,
            exit=_exit(head.inner("exit")),
            stdout=bytes(body[: lengths[0]]),
            stderr=bytes(body[lengths[0] : sum(lengths)]),
            stdout_bytes=totals[0],
            stderr_bytes=totals[1],
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
