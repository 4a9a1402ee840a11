"""Talks to whoever sits at the terminal: results on stdout, everything else on stderr, errors with the way out."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from withruntime import _local
from withruntime._async import _io
from withruntime._async.client import AsyncRuntime
from withruntime._async.sandbox import AsyncSandbox
from withruntime._errors import ConflictError, NotFoundError, RuntimeError
from withruntime._settings import configured_origin
from withruntime._values import Json

T = TypeVar("T")

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_TIMEOUT = 124
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_SIGNALS_UNTIL_FORCED = 3
_PATIENCE_S = 2.0

_FLAGS = {
    "timeoutSeconds": "--lease",
    "onLeaseEnd": "--at-end",
    "idlePauseSeconds": "--idle-pause",
    "memoryMiB": "--memory",
    "diskMiB": "--disk",
    "vcpu": "--vcpu",
    "cpuFloorMillis": "--cpu-floor",
    "maxCostMicros": "--max-cost",
    "maxTotalCostMicros": "--max-total-cost",
    "retentionDays": "--days",
    "days": "--days",
    "image": "--image",
    "env": "--env",
    "labels": "--label",
    "label": "--label",
    "state": "--state",
    "hosts": "--host",
    "range": "--requests",
    "allow": "--allow",
    "deny": "--deny",
    "connect": "--connect",
}
"""Fields whose option has another name; the lease of an extension is no option, and has no such field."""
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What an id or a name can be: nothing else is sent, where it could mean another route."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SandboxRef = Annotated[str, typer.Argument(metavar="SANDBOX", help="The sandbox's id or name.")]
SnapshotRef = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The snapshot's id, or the name of a ready one.")]


def note(text: str) -> None:
    """Say something that is not the result."""
    try:
        sys.stderr.write(f"runtime: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody listens


def fail(message: str, *, hint: str | None = None, code: int = EXIT_ERROR) -> NoReturn:
    """Say what went wrong and what to do, and exit."""
    note(f"error: {message}")
    if hint:
        note(f"hint: {hint}")
    raise typer.Exit(code)


def show_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_line(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under headings. Nothing is shortened, so that a pipe gets whole ids."""
    cells = [[column.upper() for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_fields(info: Json, *, json: bool) -> None:
    """One thing with all that is known of it."""
    if json:
        show_json(info)
    else:
        show_table(("field", "value"), [(name, value) for name, value in info.items() if value is not None])


def _cell(value: object) -> str:
    if isinstance(value, bool | list | dict):
        value = json.dumps(value, ensure_ascii=False)
    text = "-" if value is None or value == "" else str(value)
    # A name may hold anything; a terminal would obey what is in it.
    return "".join(character if character.isprintable() else "?" for character in text)


def run(work: Callable[[AsyncRuntime], Awaitable[int | None]]) -> NoReturn:
    """Do the work of a command with a client, and exit with the code that it returns.

    SIGINT, SIGTERM and SIGHUP cancel the work, which cleans up behind itself; the third one ends everything.
    """
    ended_by: list[int] = []
    try:
        code = asyncio.run(_supervised(work, ended_by))
    except asyncio.CancelledError:
        code = 128 + (ended_by[0] if ended_by else signal.SIGINT)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except RuntimeError as error:
        if error.status >= 500 and error.request_id:
            note(f"the service knows this as request {error.request_id}")
        fail(in_flags(error), hint=error.hint)
    except ValueError as error:
        fail(str(error), code=EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}")
    leave(code or 0)


def in_flags(error: RuntimeError) -> str:
    """The message with the options of this program in place of the fields of the wire, for who typed the options."""
    issues = (error.details or {}).get("issues")
    if error.code != "invalid_request" or not isinstance(issues, list):
        return error.message
    told = [(str(issue.get("field")), issue.get("message")) for issue in issues if isinstance(issue, dict)]
    return "; ".join(f"{_flag(field)}: {message}" for field, message in told) or error.message


def _flag(field: str) -> str:
    """`network.allow.0` is the first --allow, `env.A` the --env for A."""
    name, _, rest = field.removeprefix("network.").partition(".")
    if name not in _FLAGS:
        return field
    return _FLAGS[name] if not rest or rest.isdigit() else f"{_FLAGS[name]} {rest}"


def leave(code: int) -> NoReturn:
    """Exit now. Threads that wait for an input or an output that never comes are left behind."""
    try:
        sys.stdout.flush()
    except OSError:
        code = code or EXIT_BROKEN_PIPE
    finally:
        os._exit(code)


async def _supervised(work: Callable[[AsyncRuntime], Awaitable[int | None]], ended_by: list[int]) -> int | None:
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None, "asyncio.run gives us a task"

    def asked_to_end(number: int) -> None:
        ended_by.append(number)
        if len(ended_by) == 1:
            main.cancel()
        elif len(ended_by) == _SIGNALS_UNTIL_FORCED:
            os._exit(128 + number)
        else:
            note("cleaning up; once more to leave at once")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup it stays ignored
            loop.add_signal_handler(number, asked_to_end, number)
    if configured_origin(None, os.environ) is None:
        await _io.in_thread(lambda give_up: _local.ensure(dict(os.environ), report=note, give_up=give_up))
    async with AsyncRuntime() as client:
        return await work(client)


@asynccontextmanager
async def patience(text: str) -> AsyncIterator[None]:
    """Say what is going on once it takes long enough to wonder."""
    handle = asyncio.get_running_loop().call_later(_PATIENCE_S, note, text)
    try:
        yield
    finally:
        handle.cancel()


def no_room(error: RuntimeError, wait_s: float) -> None:
    note(f"waiting for room ({error.code}); next try in {wait_s:.1f} s")


async def find_sandbox(client: AsyncRuntime, reference: str) -> AsyncSandbox:
    """A sandbox by id, else the one that holds the name: it runs, or may run again. Else the last that had it."""
    _check_reference(reference)
    try:
        return await client.sandboxes.get(reference)
    except NotFoundError:
        named = [one async for one in await client.sandboxes.list(name=reference, include_stopped=True)]
        holding = [one for one in named if one.state != "stopped" or one.info.get("diskKept")]
        if not named:
            raise
        return (holding or named)[-1]


async def find_snapshot(client: AsyncRuntime, reference: str) -> Json:
    """A snapshot by id, else the one that is ready and has the name. No two may: nobody could say which is meant."""
    _check_reference(reference)
    try:
        return await client.snapshots.get(reference)
    except NotFoundError:
        named = [one async for one in await client.snapshots.list(name=reference)]
        ready = [one for one in named if one.get("state") == "ready"]
        if len(ready) == 1:
            return ready[0]
        if ready:
            raise ConflictError(
                f"{len(ready)} snapshots are called {reference!r}: {', '.join(one['id'] for one in ready)}",
                code="name_ambiguous",
                hint="name one by its id",
            ) from None
        if named:
            states = ", ".join(f"{one['id']} is {one['state']}" for one in named)
            raise NotFoundError(
                f"no snapshot that is called {reference!r} is ready: {states}",
                code="snapshot_not_found",
                hint="name one by its id",
            ) from None
        raise NotFoundError(
            f"there is no snapshot with the id or the name {reference!r}",
            code="snapshot_not_found",
            hint="`runtime snapshot ls` shows those that there are",
        ) from None


def _check_reference(reference: str) -> None:
    if _REFERENCE.fullmatch(reference) is None:
        raise ValueError(f"{reference!r} is no id and no name")


async def do_to_each(
    client: AsyncRuntime, references: Sequence[str], act: Callable[[AsyncSandbox], Awaitable[Json]], *, json: bool
) -> None:
    """Do one thing to several sandboxes. All are found before the first is touched; each is told when it is done."""
    found = [await find_sandbox(client, one) for one in references]
    done: list[Json] = []
    for sandbox in found:
        done.append(await act(sandbox))
        if not json:
            typer.echo(sandbox.id)
    if json:
        show_json(done)


def key_values(given: Sequence[str] | None, *, what: str) -> dict[str, str]:
    """Read `K=V` options."""
    found: dict[str, str] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{one!r} is no {what}: write NAME=VALUE")
        found[name] = value
    return found


def given(**options: object) -> Mapping[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
