"""The commands for the local service: start, status, stop, logs."""

import os
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from withruntime import _local
from withruntime._errors import RuntimeError
from withruntime._local import Service
from withruntime.cli import terminal
from withruntime.cli.terminal import JsonFlag

app = typer.Typer(
    help="Start, watch and stop the service of this user on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FOLLOW_EVERY_S = 0.25


@app.command()
def start(json: JsonFlag = False) -> None:
    """Start the local service if it does not run, and wait until it answers.

    A first start builds what is missing, which takes minutes; every command that needs the service does this too.

    Example: runtime server start
    """
    try:
        service = _local.ensure(dict(os.environ), report=terminal.note)
    except RuntimeError as error:
        terminal.fail(error.message, hint=error.hint)
    _show(service, json=json)


@app.command()
def status(json: JsonFlag = False) -> None:
    """Say whether the local service runs; exit code 1 if it does not, or not yet.

    Example: runtime server status --json
    """
    state = _state()
    service = _local.find(state)
    if service is not None:
        _show(service, json=json)
        return
    pid, doing = _local.holder(state), _local.progress(state)
    if json:
        terminal.show_json({"running": False, "starting": pid is not None, "pid": pid, "stateDir": str(state)})
    elif pid is not None:
        typer.echo(f"The local service is starting (pid {pid}){f': {doing}' if doing else '.'}")
    else:
        typer.echo("The local service does not run.")
    raise typer.Exit(terminal.EXIT_ERROR)


@app.command()
def stop(
    end_sandboxes: Annotated[bool, typer.Option("--end-sandboxes", help="End what runs; paused ones stay.")] = False,
    json: JsonFlag = False,
) -> None:
    """Stop the local service; it need not run. Sandboxes go on, and the next service finds them.

    \b
    Examples:
      runtime server stop
      runtime server stop --end-sandboxes
    """
    state = _state()
    try:
        pid = _local.stop(state, end_sandboxes=end_sandboxes)
    except RuntimeError as error:
        terminal.fail(error.message, hint=error.hint)
    left = None if pid is None else _local.going_on(state, pid)
    if json:
        terminal.show_json({"running": False, "stopped": pid is not None, "pid": pid, "goingOn": left})
        return
    typer.echo("The local service did not run." if pid is None else f"Stopped (pid {pid}).")
    if left:
        one = left == 1
        typer.echo(
            f"{left} sandbox{' goes' if one else 'es go'} on until {'its lease ends' if one else 'their leases end'}; "
            "`runtime server start` finds them again."
        )


@app.command()
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the newest lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
) -> None:
    """Print the log of the local service.

    Example: runtime server logs -f
    """
    path = _state() / "service.log"
    if not path.exists():
        terminal.fail(f"There is no log at {path}.", hint="`runtime server start` starts the service.")
    _print_log(path, lines, follow=follow)


def _print_log(path: Path, lines: int, *, follow: bool) -> None:
    with path.open(encoding="utf-8", errors="replace") as log:
        for line in deque(log, maxlen=max(0, lines)):
            typer.echo(line, nl=False)
        while follow:
            if fresh := log.read():
                typer.echo(fresh, nl=False)
            else:
                time.sleep(_FOLLOW_EVERY_S)


def _state() -> Path:
    return _local.state_dir(os.environ)


def _show(service: Service, *, json: bool) -> None:
    if json:
        told = {"running": True, "pid": service.pid, "url": service.url, "version": service.version}
        terminal.show_json(told | {"stateDir": str(service.state)})
    else:
        typer.echo(f"The local service runs at {service.url} (pid {service.pid}, version {service.version}).")
