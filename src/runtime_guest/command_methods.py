"""What the host can ask about commands and processes, method by method."""

from __future__ import annotations

import signal
import struct
from typing import Any

from runtime_guest import network
from runtime_guest.errors import GuestError
from runtime_guest.launch import Program
from runtime_guest.process import Process, Reader, Spec
from runtime_guest.processes import Processes
from runtime_guest.streams import Stream, StreamReset, answer
from runtime_guest.users import Users

OUTPUT_HEAD = struct.Struct(">BQ")
"""Before the bytes of each output frame: stream, position."""
OUTPUT_BYTES = 64 * 1024
STDIN_MAX_BYTES = 4 << 20
_BASE_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def _bytes(text: str, field: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise GuestError("invalid_request", "holds a NUL byte, which no argument can", field=field)
    return data


class CommandMethods:
    """Commands for the host; the table of processes does the work."""

    def __init__(self, processes: Processes, users: Users) -> None:
        self._processes, self._users = processes, users
        self._env: dict[str, str] = {}
        self._user = "sandbox"

    def set_defaults(self, env: dict[str, str], user: str) -> None:
        """What commands that start from now on get."""
        self._env, self._user = dict(env), user

    async def update(self, stream: Stream, params: dict[str, Any]) -> None:
        self.set_defaults(params["env"], params["user"])
        await stream.send_message({}, last=True)

    async def capture(self, stream: Stream, params: dict[str, Any]) -> None:
        """Run to the end and answer once. Given up by the host, the command is killed; a lost channel lets it run."""
        spec = self._spec(params)
        stdin = await self._stdin(stream, params)
        process = await self._processes.start(params["id"], spec, stdin, keep_bytes=int(params["keep_bytes"]))
        stream.on_failure(lambda why: process.kill() if isinstance(why, StreamReset) else None)
        await process.over.wait()
        await self._answer_captured(stream, process)

    async def _answer_captured(self, stream: Stream, process: Process) -> None:
        parts = process.captured
        kept = [part.kept() for part in parts] if parts else [b"", b""]
        totals = [part.total for part in parts] if parts else [0, 0]
        head = {"exit": process.exit, "lengths": [len(part) for part in kept], "totals": totals}
        body = kept[0] + kept[1]
        await stream.send_message(head, last=not body)
        if body:
            await stream.send(body, last=True)

    @staticmethod
    async def _stdin(stream: Stream, params: dict[str, Any]) -> bytes:
        size = int(params.get("stdin_bytes", 0))
        if size > STDIN_MAX_BYTES:
            raise GuestError("too_large", f"standard input of more than {STDIN_MAX_BYTES} bytes", field="stdin")
        found = bytearray()
        while len(found) < size:
            item = await stream.receive()
            if not isinstance(item, bytes):
                raise GuestError("invalid_request", "the standard input is shorter than announced", field="stdin")
            found += item
        return bytes(found)

    def _spec(self, params: dict[str, Any]) -> Spec:
        argv = params["argv"]
        if not argv:
            raise GuestError("invalid_request", "is empty", field="argv")
        user = self._users.get(params.get("user") or self._user)
        pty = params.get("pty")
        env = {
            **_BASE_ENV,
            **network.of_image,
            **network.environment,
            "HOME": user.home,
            "USER": user.login,
            "LOGNAME": user.login,
            "SHELL": user.shell,
            **({"TERM": "xterm-256color"} if pty else {}),
            **self._env,
            **params.get("env", {}),
        }
        program = Program(
            argv=[_bytes(arg, "argv") for arg in argv],
            env={_bytes(name, "env"): _bytes(value, f"env.{name}") for name, value in env.items()},
            cwd=_bytes(params.get("cwd") or user.home, "cwd"),
            user=user,
            pty=(int(pty[0]), int(pty[1])) if pty else None,
            stdin=bool(params.get("stdin_bytes") or params.get("stdin_pipe")),
        )
        return Spec(
            program=program,
            shown_argv=list(argv),
            stdin_pipe=bool(params.get("stdin_pipe")),
            timeout_s=int(params["timeout_ms"]) / 1000,
            output_base64=bool(params.get("output_base64")),
        )

    async def spawn(self, stream: Stream, params: dict[str, Any]) -> None:
        """Start and answer at once; the same id again answers the process that has it."""
        spec = self._spec(params)
        stdin = await self._stdin(stream, params)
        process = await self._processes.start(params["id"], spec, stdin)
        await answer(stream, process.info())

    async def run(self, stream: Stream, params: dict[str, Any]) -> None:
        """Start, then send output as it comes. A host that leaves early leaves the process running."""
        spec = self._spec(params)
        stdin = await self._stdin(stream, params)
        process = await self._processes.start(params["id"], spec, stdin)
        reader = process.attach(0, live=True)
        await stream.send_message({"pid": process.pid})
        await self._pump(stream, process, reader)

    async def follow(self, stream: Stream, params: dict[str, Any]) -> None:
        """Send output from a position on: to the end of the process, or to what there is now."""
        process = self._processes.get(params["id"])
        cursor = max(0, int(params["cursor"]))
        await self._pump(stream, process, process.attach(cursor, live=bool(params["live"])))

    @staticmethod
    async def _pump(stream: Stream, process: Process, reader: Reader) -> None:
        stream.on_failure(lambda _: reader.leave())
        try:
            while not reader.left:
                piece = process.ring.read(reader.cursor, OUTPUT_BYTES)
                if piece is not None:
                    if piece.offset > reader.cursor:
                        await stream.send_message({"lost": piece.offset - reader.cursor, "resume_at": piece.offset})
                    await stream.send_whole(OUTPUT_HEAD.pack(piece.stream, piece.offset) + piece.data)
                    process.advanced(reader, piece.offset + len(piece.data))
                elif process.over.is_set():
                    await stream.send_message({"exit": process.exit, "state": process.state}, last=True)
                    return
                elif not reader.live:
                    stream.end()
                    return
                else:
                    await reader.wait()
        finally:
            process.detach(reader)

    async def list(self, stream: Stream, params: dict[str, Any]) -> None:
        await answer(stream, {"processes": [process.info() for process in self._processes.all()]})

    async def get(self, stream: Stream, params: dict[str, Any]) -> None:
        await answer(stream, self._processes.get(params["id"]).info())

    async def write_stdin(self, stream: Stream, params: dict[str, Any]) -> None:
        """Take input at a position: what was taken before is ignored, what there is no room for is not taken."""
        process = self._processes.get(params["id"])
        data = await self._stdin(stream, params)
        offset = int(params["offset"])
        if offset > process.stdin_taken:
            raise GuestError("invalid_request", f"input up to {process.stdin_taken} was taken", field="offset")
        fresh = data[process.stdin_taken - offset :]
        if not process.stdin_open or not (process.spec.stdin_pipe or process.spec.program.pty):
            if fresh or not params["eof"]:
                raise GuestError("stdin_closed", "the process takes no more input", processId=process.id)
        else:
            process.feed(fresh, eof=bool(params["eof"]))
        await answer(stream, {"offset": process.stdin_taken})

    async def signal(self, stream: Stream, params: dict[str, Any]) -> None:
        name = str(params["name"])
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if not isinstance(number, signal.Signals):
            raise GuestError("invalid_request", f"there is no signal {name}", field="signal")
        self._processes.get(params["id"]).send_signal(number)
        await answer(stream, {})

    async def resize(self, stream: Stream, params: dict[str, Any]) -> None:
        self._processes.get(params["id"]).resize(int(params["cols"]), int(params["rows"]))
        await answer(stream, {})
