"""A guest that is a dictionary: scripted commands, files in memory; as much of core.ports.Guest as tests need."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from runtimed.core.commands import (
    Began,
    Captured,
    Command,
    Ended,
    Exit,
    Lost,
    Output,
    ProcessEvent,
    ProcessInfo,
)
from runtimed.core.errors import (
    FileMissing,
    Interrupted,
    MachineGone,
    OutcomeUnknown,
    ProcessNotFound,
    StdinClosed,
    UploadIncomplete,
    UploadNotFound,
)
from runtimed.core.files import FileEntry, FileHead, WriteOptions
from runtimed.core.ids import ProcessId
from runtimed.core.ports import FileReading, GuestFiles, GuestProcesses
from runtimed.core.specs import UserName
from runtimed.core.tasks import spawn


@dataclass
class Scripted:
    """What a command does: its output in order, then its exit, once `gate` is open."""

    output: list[tuple[str, bytes]] = field(default_factory=list)
    exit_code: int | None = 0
    signal: int | None = None
    timed_out: bool = False
    gate: asyncio.Event | None = None


Script = Callable[[Command], Scripted]


def echo_script(command: Command) -> Scripted:
    """`echo WORDS` and `cat` work; everything else succeeds in silence."""
    words = command.argv[-1] if command.argv[:2] == ("bash", "-c") else " ".join(command.argv)
    if words.startswith("echo "):
        return Scripted(output=[("stdout", words.removeprefix("echo ").encode() + b"\n")])
    if words == "cat":
        return Scripted(output=[("stdout", command.stdin)])
    return Scripted()


class _Process:
    def __init__(self, info: ProcessInfo, scripted: Scripted) -> None:
        self.info = info
        self.output: list[Output] = []
        self.scripted = scripted
        self.changed = asyncio.Event()
        self.gone = False

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class SimProcesses:
    """Implements core.ports.GuestProcesses."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.started: list[Command] = []
        self._all: dict[ProcessId, _Process] = {}
        self._channel = 0
        """Grows when what was open to the host is cut while the processes go on."""

    async def capture(self, process_id: ProcessId, command: Command, *, keep_bytes: int) -> Captured:
        channel = self._channel
        process = self._start(process_id, command)
        while process.info.exit is None:
            await process.changed.wait()
            if process.gone:
                raise OutcomeUnknown("the machine went away", details={"processId": process_id})
            if channel != self._channel:
                raise Interrupted("the sandbox was paused", details={"processId": process_id, "cursor": 0})
        streams = {name: b"".join(o.data for o in process.output if o.stream == name) for name in ("stdout", "stderr")}
        return Captured(
            process_id=process_id,
            exit=process.info.exit,
            stdout=streams["stdout"][:keep_bytes],
            stderr=streams["stderr"][:keep_bytes],
            stdout_bytes=len(streams["stdout"]),
            stderr_bytes=len(streams["stderr"]),
        )

    async def spawn(self, process_id: ProcessId, command: Command) -> ProcessInfo:
        return self._start(process_id, command).info

    @asynccontextmanager
    async def run(self, process_id: ProcessId, command: Command) -> AsyncIterator[AsyncIterator[ProcessEvent]]:
        process = self._start(process_id, command)

        async def events() -> AsyncIterator[ProcessEvent]:
            yield Began(process_id=process_id, pid=process.info.pid or 0)
            async for event in self._read(process, 0, live=True):
                yield event

        yield events()

    @asynccontextmanager
    async def follow(
        self, process_id: ProcessId, *, cursor: int, live: bool = True
    ) -> AsyncIterator[AsyncIterator[ProcessEvent]]:
        yield self._read(self._get(process_id), cursor, live=live)

    async def processes(self) -> list[ProcessInfo]:
        return [process.info for process in self._all.values()]

    async def process(self, process_id: ProcessId) -> ProcessInfo:
        return self._get(process_id).info

    async def write_stdin(self, process_id: ProcessId, *, offset: int, data: bytes, eof: bool) -> int:
        process = self._get(process_id)
        if not process.info.stdin_open:
            raise StdinClosed("its input has ended")
        new = data[max(0, process.info.stdin_offset - offset) :]
        process.info = replace(process.info, stdin_offset=process.info.stdin_offset + len(new), stdin_open=not eof)
        return process.info.stdin_offset

    async def signal(self, process_id: ProcessId, name: str) -> None:
        process = self._get(process_id)
        if process.info.exit is None:
            self._end(process, Exit(exit_code=None, signal=15, timed_out=False, duration_ms=1))

    async def resize(self, process_id: ProcessId, *, cols: int, rows: int) -> None:
        self._get(process_id)

    def die(self) -> None:
        """The machine goes away under whatever runs."""
        for process in self._all.values():
            process.gone = True
            process.tell()

    def cut(self) -> None:
        """Whatever reads or waits is interrupted; the processes go on."""
        self._channel += 1
        for process in self._all.values():
            process.tell()

    def copy(self) -> SimProcesses:
        """The same processes in another machine; what still runs there goes its own way."""
        twin = SimProcesses(self.script)
        twin.started = list(self.started)
        for process_id, process in self._all.items():
            other = twin._all[process_id] = _Process(process.info, process.scripted)
            other.output = list(process.output)
            if process.info.exit is None and process.scripted.gate is not None:
                spawn(twin._finish(other), name=f"play {process_id} in a copy")
        return twin

    def _get(self, process_id: ProcessId) -> _Process:
        if process_id not in self._all:
            raise ProcessNotFound(f"there is no process {process_id!r}")
        return self._all[process_id]

    def _start(self, process_id: ProcessId, command: Command) -> _Process:
        if process_id in self._all:
            return self._all[process_id]
        self.started.append(command)
        info = ProcessInfo(
            id=process_id,
            state="running",
            argv=command.argv,
            cwd=command.cwd or "/workspace",
            user=command.user or "sandbox",
            pid=100 + len(self._all),
            pty=command.pty,
            stdin_open=command.stdin_pipe,
            stdin_offset=0,
            output_base64=command.output_base64,
            started_at_s=0.0,
            ended_at_s=None,
            timeout_ms=command.timeout_ms,
            output_bytes=0,
            first_offset=0,
            exit=None,
        )
        process = self._all[process_id] = _Process(info, self.script(command))
        spawn(self._play(process), name=f"play {process_id}")
        return process

    async def _play(self, process: _Process) -> None:
        scripted = process.scripted
        position = 0
        for stream, data in scripted.output:
            process.output.append(
                Output(stream="stderr" if stream == "stderr" else "stdout", offset=position, data=data)
            )
            position += len(data)
        process.info = replace(process.info, output_bytes=position)
        process.tell()
        await self._finish(process)

    async def _finish(self, process: _Process) -> None:
        scripted = process.scripted
        if scripted.gate is not None:
            await scripted.gate.wait()
        if process.info.exit is None and not process.gone:
            ended = Exit(
                exit_code=scripted.exit_code, signal=scripted.signal, timed_out=scripted.timed_out, duration_ms=1
            )
            self._end(process, ended)

    def _end(self, process: _Process, ended: Exit) -> None:
        state = "timed_out" if ended.timed_out else "killed" if ended.signal else "exited"
        process.info = replace(process.info, exit=ended, state=state, ended_at_s=0.0, stdin_open=False)  # type: ignore[arg-type]
        process.tell()

    async def _read(self, process: _Process, cursor: int, *, live: bool) -> AsyncIterator[ProcessEvent]:
        channel = self._channel
        first = process.output[0].offset if process.output else 0
        if cursor < first:
            yield Lost(dropped_bytes=first - cursor, resume_at=first)
            cursor = first
        while True:
            changed = process.changed
            for output in [o for o in process.output if o.offset + len(o.data) > cursor]:
                kept = output.data[max(0, cursor - output.offset) :]
                cursor = output.offset + len(output.data)
                yield replace(output, offset=cursor - len(kept), data=kept)
            if process.info.exit is not None:
                yield Ended(exit=process.info.exit, state=process.info.state)
                return
            if process.gone:
                raise MachineGone("the machine went away")
            if channel != self._channel:
                raise Interrupted("the machine was paused", details={"cursor": cursor})
            if not live:
                return
            await changed.wait()


@dataclass
class _Upload:
    path: str
    size: int
    mode: int | None
    chunks: dict[int, bytes] = field(default_factory=dict)


class _Reading:
    def __init__(self, data: bytes, mode: int, sha256: str | None) -> None:
        self.head = FileHead(size=len(data), mode=mode, sha256=sha256)
        self._data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), 65536):
            yield self._data[start : start + 65536]


class SimFiles:
    """Implements core.ports.GuestFiles over one dictionary of paths. Folders are wherever a path has one."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.folders: set[str] = {"/", "/workspace"}
        self._uploads: dict[str, _Upload] = {}

    @asynccontextmanager
    async def read(self, path: str, *, user: UserName) -> AsyncIterator[FileReading]:
        data = self._data(path)
        yield _Reading(data, self.modes.get(path, 0o644), hashlib.sha256(data).hexdigest())

    async def write(self, path: str, data: AsyncIterator[bytes], options: WriteOptions) -> FileEntry:
        content = b"".join([part async for part in data])
        if options.size is not None and options.size != len(content):
            raise UploadIncomplete(f"{path}: {len(content)} of {options.size} bytes came")
        return self._put(path, content, options.mode)

    async def begin_upload(self, upload_id: str, path: str, *, size: int, mode: int | None, user: UserName) -> None:
        self._uploads.setdefault(upload_id, _Upload(path, size, mode))

    async def put_chunk(self, upload_id: str, *, offset: int, data: bytes) -> None:
        self._upload(upload_id).chunks[offset] = data

    async def commit_upload(self, upload_id: str, *, sha256: str | None) -> FileEntry:
        upload = self._upload(upload_id)
        content = b"".join(upload.chunks[offset] for offset in sorted(upload.chunks))
        if len(content) != upload.size or (sha256 and hashlib.sha256(content).hexdigest() != sha256):
            raise UploadIncomplete(f"{upload.path}: not all of it came, or not as it was sent")
        del self._uploads[upload_id]
        return self._put(upload.path, content, upload.mode)

    async def abort_upload(self, upload_id: str) -> None:
        self._uploads.pop(upload_id, None)

    async def list(
        self, path: str, *, depth: int, glob: str | None, hidden: bool, limit: int, user: UserName
    ) -> list[FileEntry]:
        inside = path.rstrip("/") + "/"
        found = [p for p in sorted(self.content) if p.startswith(inside) and p[len(inside) :].count("/") < depth]
        return [self._entry(p) for p in found if hidden or not p.rsplit("/", 1)[1].startswith(".")][:limit]

    async def stat(self, path: str, *, user: UserName) -> FileEntry | None:
        return self._entry(path) if path in self.content or path in self.folders else None

    async def mkdir(self, path: str, *, parents: bool, user: UserName) -> None:
        self.folders.add(path)

    async def remove(self, path: str, *, recursive: bool, user: UserName) -> bool:
        return self.content.pop(path, None) is not None

    async def rename(self, source: str, target: str, *, overwrite: bool, user: UserName) -> None:
        self._put(target, self._data(source), self.modes[source])
        del self.content[source]

    async def chmod(self, path: str, *, mode: int, user: UserName) -> None:
        self._data(path)
        self.modes[path] = mode

    @asynccontextmanager
    async def read_archive(
        self, path: str, *, gzip: bool, exclude: tuple[str, ...], user: UserName
    ) -> AsyncIterator[FileReading]:
        yield _Reading(b"".join(self.content[p] for p in sorted(self.content) if p.startswith(path)), 0o644, None)

    async def write_archive(self, path: str, data: AsyncIterator[bytes], *, user: UserName) -> None:
        self._put(f"{path}/archive", b"".join([part async for part in data]), None)

    def copy(self) -> SimFiles:
        twin = SimFiles()
        twin.content, twin.modes, twin.folders = dict(self.content), dict(self.modes), set(self.folders)
        return twin

    def _data(self, path: str) -> bytes:
        if path not in self.content:
            raise FileMissing(f"{path}: no such file")
        return self.content[path]

    def _upload(self, upload_id: str) -> _Upload:
        if upload_id not in self._uploads:
            raise UploadNotFound(f"there is no upload {upload_id!r}")
        return self._uploads[upload_id]

    def _put(self, path: str, content: bytes, mode: int | None) -> FileEntry:
        self.content[path] = content
        self.modes[path] = mode or self.modes.get(path, 0o644)
        return self._entry(path)

    def _entry(self, path: str) -> FileEntry:
        folder = path not in self.content
        return FileEntry(
            name=path.rsplit("/", 1)[1],
            path=path,
            type="directory" if folder else "file",
            size=0 if folder else len(self.content[path]),
            mode=0o755 if folder else self.modes[path],
            modified_at_s=0.0,
            uid=1000,
            gid=1000,
            owner="runtime",
            group="runtime",
        )


class SimGuest:
    """Implements core.ports.Guest. The `sim_` twins are the same objects, with what only tests may touch."""

    def __init__(self, script: Script, *, files: SimFiles | None = None, processes: SimProcesses | None = None) -> None:
        self.sim_processes = processes or SimProcesses(script)
        self.sim_files = files or SimFiles()
        self.processes: GuestProcesses = self.sim_processes
        self.files: GuestFiles = self.sim_files
        self.env: dict[str, str] = {}
        self.user: UserName = "sandbox"

    async def ping(self) -> None:
        return

    async def update(self, *, env: dict[str, str], user: UserName) -> None:
        self.env, self.user = env, user

    def copy(self) -> SimGuest:
        """Memory and disk, as a fork has them."""
        twin = SimGuest(self.sim_processes.script, files=self.sim_files.copy(), processes=self.sim_processes.copy())
        twin.env, twin.user = dict(self.env), self.user
        return twin

    def rebooted(self, script: Script) -> SimGuest:
        """Its disk under a new kernel: files stay, processes are gone."""
        return SimGuest(script, files=self.sim_files.copy())
