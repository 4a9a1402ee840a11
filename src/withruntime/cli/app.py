"""Puts the command line together: which groups there are, and what is passed on to the service's own program."""

import os
import sys
from typing import Annotated

import typer

from withruntime._version import VERSION
from withruntime.cli import compare, money, network, processes, sandboxes, server, sleeping, transfer
from withruntime.cli.terminal import fail

app = typer.Typer(
    help="Run code in machines of its own, on a machine of yours.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: runtime sandbox run -- python3 -c 'print(6 * 7)'",
)
app.add_typer(sandboxes.app, name="sandbox")
app.add_typer(sleeping.snapshots, name="snapshot")
app.add_typer(server.app, name="server")
app.add_typer(network.secrets, name="secrets")
for commands in (sleeping, processes, transfer, network):
    commands.register(sandboxes.app)
compare.register(app)
money.register(app, sandboxes.app)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"runtime {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Run code in machines of its own, on a machine of yours."""


@app.command(context_settings=_PASSED_ON)
def doctor(context: typer.Context) -> None:
    """Say what this machine can do and what is left over; --fix ends what is.

    Example: runtime doctor --fix
    """
    _pass_on("doctor", context.args)


@app.command(context_settings=_PASSED_ON)
def image(context: typer.Context) -> None:
    """Build, list and remove images: build, ls, rm, prune.

    Example: runtime image build
    """
    _pass_on("image", context.args)


@app.command(context_settings=_PASSED_ON)
def admin(context: typer.Context) -> None:
    """Run the service's own administration, such as keys.

    Example: runtime admin --help
    """
    _pass_on("admin", context.args)


def _pass_on(command: str, arguments: list[str]) -> None:
    """Become the service's program: its output, its exit code and its signals are then the caller's own."""
    sys.stdout.flush()
    try:
        line = [sys.executable, "-m", "runtimed", command, *arguments]
        os.execve(sys.executable, line, {**os.environ, "RUNTIME_PROGRAM": "runtime"})
    except OSError as error:
        fail(f"The service's program could not be started: {error.strerror}.")
