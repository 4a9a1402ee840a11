"""The seams between rooms: what the API and the control room may ask of a node and of a guest.

The node implements `Node` with real machines; tests with fakes that pass the same contract suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from runtimed.core.commands import Captured, Command, ProcessEvent, ProcessInfo
from runtimed.core.files import FileEntry, FileHead, WriteOptions
from runtimed.core.ids import ProcessId, SandboxId
from runtimed.core.specs import Capacity, CopiesStarted, MachineSpec, Started, Stored, UserName
from runtimed.core.usage import Counted, Sample, SampleBatch, SampleKind


class FileReading(Protocol):
    """An open read: the head first, then chunks, pushed back by a slow reader."""

    head: FileHead

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes. Raises Interrupted when the machine goes away in the middle."""


class GuestProcesses(Protocol):
    """Commands and processes of one running machine."""

    async def capture(self, process_id: ProcessId, command: Command, *, keep_bytes: int) -> Captured:
        """Run to the end, keeping head and tail of each stream (`keep_bytes` in all for each).

        Raises:
            CwdNotFound, ProcessLimit, InvalidRequest: nothing ran.
            Interrupted: the sandbox was paused. It goes on after the wake; the same id again brings its result.
            OutcomeUnknown: the machine went away after the start.
        """

    async def spawn(self, process_id: ProcessId, command: Command) -> ProcessInfo:
        """Start and return at once. The same id again answers the process that has it (idempotent)."""

    def run(self, process_id: ProcessId, command: Command) -> AbstractAsyncContextManager[AsyncIterator[ProcessEvent]]:
        """Start and read along; leaving early leaves the process running. The first event is Began."""

    def follow(
        self, process_id: ProcessId, *, cursor: int, live: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[ProcessEvent]]:
        """Read from a position on. With `live` the last event is Ended; without, it stops after what is there."""

    async def processes(self) -> list[ProcessInfo]: ...

    async def process(self, process_id: ProcessId) -> ProcessInfo:
        """Raises ProcessNotFound."""

    async def write_stdin(self, process_id: ProcessId, *, offset: int, data: bytes, eof: bool) -> int:
        """Position after what was taken; bytes before `offset` that were taken already are ignored.

        Raises StdinClosed, ProcessNotFound.
        """

    async def signal(self, process_id: ProcessId, name: str) -> None: ...

    async def resize(self, process_id: ProcessId, *, cols: int, rows: int) -> None: ...


class GuestFiles(Protocol):
    """Files of one running machine. Paths are absolute; errors are those of core.errors and name the path."""

    def read(self, path: str, *, user: UserName) -> AbstractAsyncContextManager[FileReading]: ...

    async def write(self, path: str, data: AsyncIterator[bytes], options: WriteOptions) -> FileEntry:
        """Replace atomically, making parents; a shorter stream than asked leaves the old file."""

    async def begin_upload(self, upload_id: str, path: str, *, size: int, mode: int | None, user: UserName) -> None: ...

    async def put_chunk(self, upload_id: str, *, offset: int, data: bytes) -> None:
        """Chunks in any order; the same chunk twice is once."""

    async def commit_upload(self, upload_id: str, *, sha256: str | None) -> FileEntry:
        """Raises UploadIncomplete (bytes missing or another digest), UploadNotFound."""

    async def abort_upload(self, upload_id: str) -> None: ...

    async def list(
        self, path: str, *, depth: int, glob: str | None, hidden: bool, limit: int, user: UserName
    ) -> list[FileEntry]: ...

    async def stat(self, path: str, *, user: UserName) -> FileEntry | None: ...

    async def mkdir(self, path: str, *, parents: bool, user: UserName) -> None: ...

    async def remove(self, path: str, *, recursive: bool, user: UserName) -> bool: ...

    async def rename(self, source: str, target: str, *, overwrite: bool, user: UserName) -> None: ...

    async def chmod(self, path: str, *, mode: int, user: UserName) -> None: ...

    def read_archive(
        self, path: str, *, gzip: bool, exclude: tuple[str, ...], user: UserName
    ) -> AbstractAsyncContextManager[FileReading]:
        """A folder as one tar; head.size is 0 because it is not known."""

    async def write_archive(self, path: str, data: AsyncIterator[bytes], *, user: UserName) -> None:
        """Unpack a tar or tar.gz into a folder, merging. Raises UnsafeArchive before anything outside is touched."""


class Guest(Protocol):
    """A running machine's inside."""

    processes: GuestProcesses
    files: GuestFiles

    async def ping(self) -> None:
        """Raises GuestUnresponsive when the agent does not answer in time."""

    async def update(self, *, env: dict[str, str], user: UserName) -> None:
        """New environment and default user for what starts from now on."""


class MachineEnded(Protocol):
    """Called once for each machine whose process ended without `stop` having been asked."""

    async def __call__(self, sandbox_id: SandboxId, why: str) -> None: ...


class PauseSettled(Protocol):
    """Called once after each `pause` that was not called off: with what was kept, or with why it runs on."""

    async def __call__(self, sandbox_id: SandboxId, stored: Stored | None, why: str) -> None: ...


class Node(Protocol):
    """Machines of one host."""

    async def start(self, spec: MachineSpec) -> Started:
        """Start and identify a machine. If this raises or is cancelled, the host looks as it did before.

        Raises:
            NoCapacity, HostUnavailable, ImageNotFound, StartFailed.
        """

    async def stop(self, sandbox_id: SandboxId, *, keep_disk: bool = False) -> None:
        """End the machine and everything of it on the host, what was kept of it included. Idempotent.

        With `keep_disk` what was written and acknowledged stays on a disk that `wake` boots cold.
        """

    async def pause(self, sandbox_id: SandboxId) -> None:
        """Return once the vCPUs have stopped; memory and disk are written afterwards, and `on_paused` is told.

        Open streams end with Interrupted and their cursor.

        Raises:
            MachineGone; NoCapacity when the disk has no room for the memory (the machine goes on).
        """

    async def wake(self, spec: MachineSpec, *, from_disk: bool = False) -> Started:
        """Run again what `pause` or `stop(keep_disk=True)` kept. A pause that is still being written is called off.

        With `from_disk` the memory is given up and the disk is booted cold: the way out when the memory cannot be used.

        Raises:
            NoCapacity, HostUnavailable, StartFailed: what was kept is as it was.
            NotFound: nothing was kept of this sandbox.
        """

    async def fork(
        self, sandbox_id: SandboxId, children: Sequence[MachineSpec], *, keep_as: str | None = None
    ) -> CopiesStarted:
        """Start copies of a running machine; it stops for the capture only. All copies start, or none does.

        With `keep_as` the very moment that the copies begin as is also kept, as a snapshot of this id with memory.

        Raises:
            MachineGone, NoCapacity, HostUnavailable, StartFailed: the source goes on.
        """

    async def snapshot(self, sandbox_id: SandboxId, snapshot_id: str, mode: Literal["memory", "disk"]) -> Stored:
        """Keep a running or paused sandbox as it is now; it goes on as it was. `MachineSpec.snapshot_id` copies it."""

    async def forget_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot; copies that run keep what they need. Idempotent."""

    def stored(self, sandbox_id: SandboxId) -> Stored | None:
        """What is kept of a sandbox that does not run; None when there is nothing."""

    async def adopt(self) -> frozenset[SandboxId]:
        """At the start: take over the machines that an earlier service left running, and end what has no sandbox."""

    def lease(self, sandbox_id: SandboxId, ends_in_s: float) -> None:
        """Tell the lease guard when to end the machine if this service is not there to do it."""

    def doing(self, sandbox_id: SandboxId) -> str | None:
        """What a start that takes long does now, a clause for people; None where there is nothing to say."""

    def guest(self, sandbox_id: SandboxId) -> Guest:
        """Raises MachineGone when there is none."""

    def running(self) -> frozenset[SandboxId]:
        """Sandboxes that have a machine, read from the host and never from memory of the API."""

    def capacity(self) -> Capacity: ...

    def vmm_pid(self, sandbox_id: SandboxId) -> int | None:
        """Process of the sandbox's machine on this host; None where it has none of its own."""

    def on_ended(self, told: MachineEnded) -> None:
        """Who is told about machines that ended by themselves."""

    def on_paused(self, told: PauseSettled) -> None:
        """Who is told how the writing of a pause came out."""


class Load(Protocol):
    """What a sandbox does, as its host sees it; nothing inside is asked. Counters only grow while one machine runs."""

    def calls(self, sandbox_id: SandboxId) -> int:
        """Requests that reach into it now."""

    def cpu_s(self, sandbox_id: SandboxId) -> float | None:
        """CPU time of its machine's process so far; None where it has none of its own."""

    def traffic_bytes(self, sandbox_id: SandboxId) -> int:
        """What went over its connections so far, in both directions."""


class Seal(Protocol):
    """Makes values safe to store. `purpose` ties a sealed value to its place."""

    def seal(self, value: bytes, *, purpose: str) -> bytes: ...

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        """Raises when it was sealed for another purpose, under another key, or changed."""


class Meter(Protocol):
    """What is used on one host, from its own accounting."""

    def begin(self, sandbox_id: SandboxId) -> None:
        """Count the sandbox's machine from now on, or go on where an earlier service was. Idempotent."""

    def begin_paused(self, sandbox_id: SandboxId, owned_bytes: int) -> None:
        """Count what a paused sandbox alone owns on the host's disk."""

    def end(self, sandbox_id: SandboxId, kind: SampleKind) -> None:
        """Take the last sample, before the machine's process is ended. Idempotent."""

    def forget(self, sandbox_id: SandboxId) -> None:
        """A sandbox that will never count again. Idempotent."""

    async def tick(self) -> None:
        """Sample everything that counts."""

    async def collect(self) -> list[SampleBatch]:
        """Everything that was sampled and not `collected`, oldest first. The same again until it was."""

    async def collected(self, batches: list[SampleBatch]) -> None:
        """These were kept. Idempotent."""


class SampleCounter(Protocol):
    """Turns samples into records, each exactly once. Pure: where a count stands is kept by the caller."""

    def count(self, sandbox_id: SandboxId, document: Mapping[str, object] | None, samples: Iterable[Sample]) -> Counted:
        """Count these samples as far as they follow each other; those that came before add nothing."""

    def finish(self, sandbox_id: SandboxId, document: Mapping[str, object] | None) -> Counted:
        """No more will come: count what waits for an earlier one."""
