"""The operator's command line: serve, images, keys, and what state this host is in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from runtimed import settings as settings_module
from runtimed.settings import Settings, SettingsError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The service of Runtime, for its operator.")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
StateOption = Annotated[Path | None, typer.Option("--state-dir", help="Database, key and machines.")]


@app.callback()
def about() -> None:
    """The service of Runtime, for its operator. Users have the command `runtime`."""


def fail(sentence: str) -> NoReturn:
    """Say why it cannot be done, and end with exit code 1."""
    sys.stderr.write(f"runtimed: {sentence}\n")
    raise typer.Exit(1)


def settings_of(config: Path | None, **flags: object) -> Settings:
    try:
        return settings_module.load(config=config, flags=flags)
    except SettingsError as error:
        fail(f"the settings are wrong: {error}")


@app.command()
def serve(  # noqa: PLR0913 - one parameter for each flag
    config: ConfigOption = None,
    state_dir: StateOption = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Images and templates.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    spares: Annotated[int | None, typer.Option(help="Machines of the default shape kept ready.")] = None,
    vmm: Annotated[str | None, typer.Option(help="qemu, or fake for tests.")] = None,
    accel: Annotated[str | None, typer.Option(help="auto, kvm or tcg.")] = None,
    jail: Annotated[bool | None, typer.Option(help="Jail each QEMU with bubblewrap.")] = None,
    image: Annotated[str | None, typer.Option(help="What a create without an image gets.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Prepare this host and serve until SIGTERM or Ctrl-C. Sandboxes end with the service.

    Example: runtimed serve --port 8080 --spares 4
    """
    from runtimed.main import serve as run_service  # slow to import, and no other command needs it

    settings = settings_of(
        config,
        state_dir=state_dir,
        cache_dir=cache_dir,
        host=host,
        port=port,
        spares=spares,
        vmm=vmm,
        accel=accel,
        jail=jail,
        image=image,
        log_level=log_level,
    )
    raise typer.Exit(run_service(settings))


def main() -> None:
    """The `runtimed` command."""
    app()


if __name__ == "__main__":
    main()
