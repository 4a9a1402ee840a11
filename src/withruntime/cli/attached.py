"""Runs a command in a sandbox with this terminal's input and output attached: bytes both ways, nothing added."""

import asyncio
import builtins
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from withruntime._async import _io
from withruntime._async.process import AsyncProcess
from withruntime._async.sandbox import AsyncSandbox
from withruntime._calls import STREAMED_TIMEOUT_MS, User
from withruntime._errors import RuntimeError
from withruntime._stream import ResultCollector, chunk_bytes
from withruntime._values import CommandResult, Json
from withruntime.cli.terminal import EXIT_TIMEOUT

STDOUT, STDERR = 1, 2
_READ_BYTES = 1 << 16
_KILL_MAX_S = 5.0
_TERM_GRACE_S = 2.0
_ANSWER_GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class AttachedCommand:
    """What to run, and what of this terminal it gets."""

    argv: list[str]
    cwd: str | None = None
    user: User | None = None
    env: dict[str, str] | None = None
    timeout_s: float | None = None
    stdin: bool = False
    """Whether this process's own input is passed on."""
    collect: bool = False
    """Keep the output for a result instead of passing it on."""


def wants_stdin(interactive: bool) -> bool:
    """Input is passed on when it was asked for, or is no terminal; what is empty anyway need not be."""
    if interactive:
        return True
    try:
        about = os.fstat(0)
        return not os.isatty(0) and about.st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False  # closed


def exit_code_of(result: CommandResult) -> int:
    """The code that a shell would give: 124 for a timeout, 128 and the signal's number for a signal."""
    if result.timed_out:
        return EXIT_TIMEOUT
    if result.exit_code is None:
        return 128 + 9
    return result.exit_code if result.exit_code >= 0 else 128 - result.exit_code


async def run_attached(sandbox: AsyncSandbox, command: AttachedCommand) -> CommandResult:
    """Run a command to its end. However this ends, the command does not go on.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    process = await sandbox.spawn(
        command.argv,
        cwd=command.cwd,
        user=command.user,
        env=command.env,
        stdin="pipe" if command.stdin else None,
        timeout_ms=STREAMED_TIMEOUT_MS if command.timeout_s is None else int(command.timeout_s * 1000),
        output_encoding="base64",
    )
    try:
        if command.stdin:
            _InputPump(process, asyncio.get_running_loop()).start()
        wait_s = None if command.timeout_s is None else command.timeout_s + _ANSWER_GRACE_S
        return await _pass_output(process, wait_s, collect=command.collect)
    except BaseException:
        await _io.finish(lambda: _end(process), within_s=_KILL_MAX_S)
        raise


async def _pass_output(process: AsyncProcess, wait_s: float | None, *, collect: bool) -> CommandResult:
    collector = ResultCollector(process_id=process.id)
    out = DaemonThread()
    last: Json = {}
    async with _io.closing(process.output(timeout_seconds=wait_s)) as events:
        async for event in events:
            last = event
            if collect or event["type"] not in ("stdout", "stderr"):
                collector.add(event)
            else:
                await out.do(partial(write_event, event))
    return collector.result(last)


async def _end(process: AsyncProcess) -> None:
    """End the command politely, then not."""
    try:
        await process.kill("SIGTERM")
        deadline = asyncio.get_running_loop().time() + _TERM_GRACE_S
        while (await process.refresh()).get("state") == "running":
            if asyncio.get_running_loop().time() > deadline:
                await process.kill("SIGKILL")
                return
            await asyncio.sleep(0.1)
    except RuntimeError:
        return  # it is gone, or out of reach; its own time limit holds


def write_event(event: Json) -> None:
    """Write the bytes of an output event to where they belong."""
    write_all(STDOUT if event["type"] == "stdout" else STDERR, chunk_bytes(event))


def write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class _InputPump:
    """Passes this process's input on from a thread of its own: a read that never returns must hold nothing up."""

    def __init__(self, process: AsyncProcess, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="runtime-stdin").start()

    def _run(self) -> None:
        while True:
            try:
                data = os.read(0, _READ_BYTES)
            except OSError:
                data = b""
            if not self._pass_on(data) or not data:
                return

    def _pass_on(self, data: bytes) -> bool:
        write = self._process.write(data, eof=not data)
        try:
            asyncio.run_coroutine_threadsafe(write, self._loop).result()
        except RuntimeError:
            return False  # it takes no more input, and its end will be told by its output
        except (concurrent.futures.CancelledError, builtins.RuntimeError):
            write.close()  # the command has ended, and the event loop with it
            return False
        return True


class DaemonThread:
    """Does blocking work in order, on a thread that does not keep the program from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="runtime-stdout").start()

    async def do(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def attempt() -> None:
            failure: OSError | None = None
            try:
                work()
            except OSError as error:
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, failure)

        def settle(failure: OSError | None) -> None:
            if done.done():
                return
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

        self._work.put(attempt)
        await done

    def _run(self) -> None:
        while True:
            self._work.get()()
