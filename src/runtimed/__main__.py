"""The operator's command line: serve, images, keys, and what state this host is in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from runtimed import settings as settings_module
from runtimed.admin_app import HELP, admin_app
from runtimed.core.errors import RuntimedError
from runtimed.core.wording import program
from runtimed.settings import CommandError, Settings, SettingsError

image_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="Build, list and remove images."
)
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP,
    add_completion=False,
    help="The service of Runtime, for its operator.",
)

app.add_typer(image_app, name="image")
app.add_typer(admin_app, name="admin")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
StateOption = Annotated[Path | None, typer.Option("--state-dir", help="Database, key and machines.")]
CacheOption = Annotated[Path | None, typer.Option("--cache-dir", help="Images and templates.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def err(line: str) -> None:
    sys.stderr.write(line + "\n")


def say_json(value: object) -> None:
    say(json.dumps(value, indent=2))


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Errors that the operator can do something about end in one sentence and exit code 1."""
    try:
        yield
    except (RuntimedError, CommandError) as error:
        hint = getattr(error, "hint", None)
        fail(f"{error}{f' {hint}' if hint else ''}")


@app.callback()
def about() -> None:
    """The service of Runtime, for its operator. Users have the command `runtime`."""


def fail(sentence: str) -> NoReturn:
    """Say why it cannot be done, and end with exit code 1."""
    sys.stderr.write(f"{program()}: {sentence}\n")
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
    cache_dir: CacheOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    spares: Annotated[int | None, typer.Option(help="Machines of the default shape kept ready.")] = None,
    spare_shapes: Annotated[
        str | None, typer.Option(help="The same for other shapes: [IMAGE:]VCPUxMEMORYxDISK=COUNT, by comma.")
    ] = None,
    vmm: Annotated[str | None, typer.Option(help="qemu, or fake for tests.")] = None,
    accel: Annotated[str | None, typer.Option(help="auto, kvm or tcg.")] = None,
    jail: Annotated[bool | None, typer.Option(help="Jail each QEMU with bubblewrap.")] = None,
    image: Annotated[str | None, typer.Option(help="What a create without an image gets.")] = None,
    end_sandboxes: Annotated[
        bool | None, typer.Option("--end-sandboxes/--keep-sandboxes", help="Whether sandboxes end with the service.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Prepare this host and serve until SIGTERM or Ctrl-C. Sandboxes go on after it, until their leases end.

    SIGUSR1 before that ends them with the service, like --end-sandboxes.

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
        spare_shapes=spare_shapes,
        vmm=vmm,
        accel=accel,
        jail=jail,
        image=image,
        end_sandboxes=end_sandboxes,
        log_level=log_level,
    )
    raise typer.Exit(run_service(settings))


@app.command()
def doctor(
    config: ConfigOption = None,
    state_dir: StateOption = None,
    cache_dir: CacheOption = None,
    as_json: JsonOption = False,
    fix: Annotated[bool, typer.Option("--fix", help="End what is left over.")] = False,
) -> None:
    """Say what this host can do and what is left over on it. Exit code 1 when something is wrong or left.

    Example: runtime doctor --fix
    """
    from runtimed.doctor import examine

    findings = asyncio.run(examine(settings_of(config, state_dir=state_dir, cache_dir=cache_dir), fix=fix))
    clean = not any(finding.bad for finding in findings)
    if as_json:
        say_json({"clean": clean, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            say(f"{finding.verdict:6} {finding.name:12} {finding.line}")
    raise typer.Exit(0 if clean else 1)


@image_app.command("build")
def image_build(
    name: Annotated[str, typer.Argument(help="A packaged recipe, or the path of one.")] = "",
    config: ConfigOption = None,
    cache_dir: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an image, or find that it is built. Ctrl-C leaves nothing behind, and the next build goes on.

    Example: runtime image build default
    """
    from runtimed import image_commands

    settings = settings_of(config, cache_dir=cache_dir)
    with told_plainly():
        shown = image_commands.build(settings, name or settings.image, err)
    say_json(shown) if as_json else say(f"{shown['name']} {shown['id']}")


@image_app.command("ls")
def image_ls(config: ConfigOption = None, cache_dir: CacheOption = None, as_json: JsonOption = False) -> None:
    """List the images that are built.

    Example: runtime image ls --json
    """
    from runtimed import image_commands

    images = image_commands.listed(settings_of(config, cache_dir=cache_dir))
    if as_json:
        say_json({"data": images})
        return
    for image in images:
        system = f"{image['distribution']} {image['release']}"
        say(f"{image['name']:16} {system:20} {image['sizeMiB']:>6} MiB  {image['id']}")


@image_app.command("rm")
def image_rm(
    name: Annotated[str, typer.Argument(help="An image's name or id.")],
    config: ConfigOption = None,
    state_dir: StateOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Remove an image. Refused while a service runs, since its machines may be using it.

    Example: runtime image rm default
    """
    from runtimed import image_commands

    with told_plainly():
        say(f"removed {image_commands.remove(settings_of(config, state_dir=state_dir, cache_dir=cache_dir), name)}")


@image_app.command("prune")
def image_prune(
    config: ConfigOption = None,
    state_dir: StateOption = None,
    cache_dir: CacheOption = None,
    days: Annotated[int | None, typer.Option(min=0, max=3650, help="Unused for so long; 0 is an hour.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old images, kernels, tools, agent disks and templates that nothing needs any more.

    What a sandbox of any state folder stands on, running or kept, stays, and so does what a running service has used.

    Example: runtime image prune --dry-run
    """
    from runtimed import image_commands
    from runtimed.core.clock import SystemClock
    from runtimed.pruning import prune

    settings = settings_of(config, state_dir=state_dir, cache_dir=cache_dir)
    with told_plainly():
        keep_days = settings.cache_keep_days if days is None else days
        pruned = prune(settings, now_s=SystemClock().now_s(), keep_days=keep_days, dry_run=dry_run)
    if as_json:
        say_json({"dryRun": dry_run, "data": [one.to_json() for one in pruned.removed]})
        return
    for line in image_commands.prune_lines(pruned, dry_run=dry_run):
        say(line)


def main() -> None:
    """The `runtimed` command, and what `runtime` passes on to it."""
    app(prog_name=program())


if __name__ == "__main__":
    main()
