"""The commands for processes that go on by themselves: spawn, ps, logs, kill."""

from functools import partial
from typing import Annotated

import typer

from withruntime._async import _io
from withruntime._async.client import AsyncRuntime
from withruntime._async.process import AsyncProcess
from withruntime._errors import NotFoundError
from withruntime._stream import chunk_bytes
from withruntime.cli import attached, terminal
from withruntime.cli.attached import DaemonThread
from withruntime.cli.sandboxes import Command, Cwd, Env, Timeout, User
from withruntime.cli.terminal import JsonFlag, SandboxRef

ProcessId = Annotated[str, typer.Argument(metavar="PROCESS", help="The process's id, as `ps` shows it.")]


def register(app: typer.Typer) -> None:
    """Add these commands to a group."""
    app.command()(spawn)
    app.command()(ps)
    app.command()(logs)
    app.command()(kill)


def spawn(
    sandbox: SandboxRef,
    command: Command,
    timeout: Timeout = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    json: JsonFlag = False,
) -> None:
    """Start a process, print its id, and leave it running.

    Example: runtime sandbox spawn my-box -- python3 -m http.server 8000
    """
    if user not in (None, "sandbox", "root"):
        raise typer.BadParameter(f"{user!r} is no user here: sandbox or root")
    variables = terminal.key_values(env, what="variable") or None

    async def work(client: AsyncRuntime) -> None:
        process = await (await terminal.find_sandbox(client, sandbox)).spawn(
            command,
            cwd=cwd,
            user="root" if user == "root" else None,
            env=variables,
            timeout_ms=None if timeout is None else int(timeout * 1000),
            output_encoding="base64",
        )
        if json:
            terminal.show_json(process.info)
        else:
            typer.echo(process.id)

    terminal.run(work)


def ps(sandbox: SandboxRef, json: JsonFlag = False) -> None:
    """List the processes that run, and the newest that have ended.

    Example: runtime sandbox ps my-box
    """

    async def work(client: AsyncRuntime) -> None:
        found = await (await terminal.find_sandbox(client, sandbox)).processes()
        if json:
            terminal.show_json(found)
            return
        columns = ("id", "state", "exitCode", "user", "startedAt", "command")
        terminal.show_table(columns, ([info.get(column) for column in columns] for info in found))

    terminal.run(work)


def logs(
    sandbox: SandboxRef,
    process: ProcessId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the process ends.")] = False,
    cursor: Annotated[int, typer.Option(help="Byte position to begin at.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Print what a process wrote: of its output the newest 1 MiB is there.

    \b
    Examples:
      runtime sandbox logs my-box PROCESS -f
      runtime sandbox logs my-box PROCESS --json     one event a line, with positions
    """

    async def work(client: AsyncRuntime) -> None:
        found = await _find(client, sandbox, process)
        there = None if follow or found.state != "running" else int(found.info.get("outputBytes") or 0)
        if there is not None and cursor >= there:
            return
        out = DaemonThread()
        async with _io.closing(found.output(cursor)) as events:
            async for event in events:
                if json:
                    terminal.show_json_line(event)
                elif event["type"] == "truncated":
                    terminal.note(f"{event.get('droppedBytes')} bytes are not kept any more")
                elif event["type"] in ("stdout", "stderr"):
                    await out.do(partial(attached.write_event, event))
                if there is not None and event.get("offset", -1) + len(_bytes(event)) >= there:
                    return

    terminal.run(work)


def kill(
    sandbox: SandboxRef,
    process: ProcessId,
    signal: Annotated[str, typer.Option("--signal", "-s", help="Such as TERM, KILL, INT or HUP.")] = "TERM",
) -> None:
    """Send a process a signal.

    Example: runtime sandbox kill my-box PROCESS -s KILL
    """
    name = signal.upper()

    async def work(client: AsyncRuntime) -> None:
        found = await _find(client, sandbox, process)
        await found.kill(name if name.startswith("SIG") else f"SIG{name}")

    terminal.run(work)


async def _find(client: AsyncRuntime, sandbox: str, process: str) -> AsyncProcess:
    found = await terminal.find_sandbox(client, sandbox)
    try:
        return await found.process(process)
    except NotFoundError as none:
        none.hint = none.hint or f"`runtime sandbox ps {sandbox}` shows those that there are"
        raise


def _bytes(event: dict[str, object]) -> bytes:
    return chunk_bytes(event) if event["type"] in ("stdout", "stderr") else b""
