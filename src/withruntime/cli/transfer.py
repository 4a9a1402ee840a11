"""The commands for files: cp, cat, files."""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from withruntime._async import _io
from withruntime._async.client import AsyncRuntime
from withruntime.cli import attached, terminal
from withruntime.cli.attached import DaemonThread
from withruntime.cli.terminal import JsonFlag, SandboxRef


def register(app: typer.Typer) -> None:
    """Add these commands to a group."""
    app.command()(cp)
    app.command()(cat)
    app.command()(files)


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A local path, or SANDBOX:/path.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A local path, or SANDBOX:/path.")],
) -> None:
    """Copy a file or a folder into or out of a sandbox.

    A target that ends in a slash, or is a folder here, gets the source under its own name.

    \b
    Examples:
      runtime sandbox cp data.csv my-box:/workspace/
      runtime sandbox cp my-box:/workspace/out ./out
    """
    remote_source, remote_target = _remote(source), _remote(target)
    if (remote_source is None) == (remote_target is None):
        raise typer.BadParameter("one of the two is in a sandbox: SANDBOX:/path")

    async def work(client: AsyncRuntime) -> None:
        async with terminal.patience(f"copying {source} to {target}"):
            if remote_target is not None:
                sandbox, path = remote_target
                found = await terminal.find_sandbox(client, sandbox)
                wanted = path + Path(source).resolve().name if path.endswith("/") else path
                await found.files.upload(source, wanted)
            elif remote_source is not None:
                sandbox, path = remote_source
                found = await terminal.find_sandbox(client, sandbox)
                local = Path(target)
                inside = target.endswith("/") or local.is_dir()
                await found.files.download(path, str(local / PurePosixPath(path).name if inside else local))

    terminal.run(work)


def cat(
    sandbox: SandboxRef,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file of the sandbox.")],
) -> None:
    """Print a file of a sandbox, byte by byte as it is.

    Example: runtime sandbox cat my-box /etc/os-release
    """

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        out = DaemonThread()
        async with _io.closing(found.files.read_stream(_absolute(path))) as pieces:
            async for piece in pieces:
                await out.do(partial(attached.write_all, attached.STDOUT, piece))

    terminal.run(work)


def files(
    sandbox: SandboxRef,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder of the sandbox.")] = "/workspace",
    depth: Annotated[int, typer.Option(help="How many levels to go down.")] = 1,
    hidden: Annotated[bool, typer.Option("--all", "-a", help="Also names that begin with a dot.")] = False,
    json: JsonFlag = False,
) -> None:
    """List the files of a sandbox.

    Example: runtime sandbox files my-box /workspace --depth 2
    """

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        entries = await found.files.list(_absolute(path), depth=depth, hidden=hidden or None)
        if json:
            terminal.show_json(entries)
            return
        columns = ("mode", "owner", "size", "modifiedAt", "path")
        terminal.show_table(columns, ([entry.get(column) for column in columns] for entry in entries))

    terminal.run(work)


def _remote(text: str) -> tuple[str, str] | None:
    """The sandbox and the path of `SANDBOX:/path`; None for a local path."""
    name, colon, path = text.partition(":")
    if not colon or not name or "/" in name:
        return None
    return name, _absolute(path)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/workspace/{path}"
