"""The commands that keep sandboxes and bring them back: pause, wake, restart, fork, snapshot, update."""

from typing import Annotated

import typer

from withruntime import _calls
from withruntime._async.client import AsyncRuntime
from withruntime._async.sandbox import AsyncSandbox
from withruntime._values import Json
from withruntime.cli import terminal
from withruntime.cli.spending import MaxTotalCost, micros
from withruntime.cli.terminal import JsonFlag, SandboxRef, SnapshotRef

snapshots = typer.Typer(
    help="List, show and delete snapshots.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sandboxes = Annotated[list[str], typer.Argument(metavar="SANDBOX", help="Ids or names.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE to find it by; repeatable.")]
STEPS = ("policyBound", "scheduled", "restored", "booted", "ready")


def pause(sandboxes: Sandboxes, json: JsonFlag = False) -> None:
    """Pause sandboxes: memory, processes and files are kept, and the next command wakes them.

    Example: runtime sandbox pause my-box
    """

    async def work(client: AsyncRuntime) -> None:
        async def stop(sandbox: AsyncSandbox) -> Json:
            return (await sandbox.pause()).info

        await terminal.do_to_each(client, sandboxes, stop, json=json)

    terminal.run(work)


def wake(
    sandboxes: Sandboxes,
    lease: Annotated[int | None, typer.Option(help="Seconds until the new lease ends.")] = None,
    json: JsonFlag = False,
) -> None:
    """Wake paused sandboxes, each for a new lease: of --lease, else as long as its first. Those awake stay as they are.

    Example: runtime sandbox wake my-box --lease 3600
    """

    async def work(client: AsyncRuntime) -> None:
        async def rouse(sandbox: AsyncSandbox) -> Json:
            info = (await sandbox.wake(timeout_seconds=lease, on_capacity_wait=terminal.no_room)).info
            terminal.note(until(info))
            return info

        await terminal.do_to_each(client, sandboxes, rouse, json=json)

    terminal.run(work)


def restart(sandboxes: Sandboxes, json: JsonFlag = False) -> None:
    """Start stopped sandboxes again from their disks; of a paused one this gives up the memory.

    Example: runtime sandbox restart my-box
    """

    async def work(client: AsyncRuntime) -> None:
        async def boot(sandbox: AsyncSandbox) -> Json:
            info = (await sandbox.restart(on_capacity_wait=terminal.no_room)).info
            terminal.note(until(info))
            return info

        async with terminal.patience("booting from the disk: about 20 s without KVM"):
            await terminal.do_to_each(client, sandboxes, boot, json=json)

    terminal.run(work)


def fork(
    sandbox: SandboxRef,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=16, help="How many copies.")] = 1,
    name: Annotated[str | None, typer.Option(help="Name of the first; the others are NAME-1, NAME-2, ...")] = None,
    label: Labels = None,
    secret: Annotated[
        list[str] | None, typer.Option("--secret", help="A secret that the copies may use; repeatable.")
    ] = None,
    keep_snapshot: Annotated[
        bool, typer.Option("--keep-snapshot", help="Keep what they began as; with --json under `snapshot`.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Copy a running sandbox with memory, processes and files, and print the ids of the copies.

    \b
    Examples:
      runtime sandbox fork my-box --count 3 --name try
      runtime sandbox fork my-box --keep-snapshot
    """
    labels = terminal.key_values(label, what="label") or None

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        if not keep_snapshot:
            copies = await found.fork(count, name=name, labels=labels, secrets=secret)
            _show_all([copy.info for copy in (copies if isinstance(copies, list) else [copies])], json=json)
            return
        fields = {"count": count, "name": name, "labels": labels, "keepSnapshot": True, "secrets": secret}
        path = _calls.sandbox_path(found.id, ":fork")
        made: Json = await client.request("POST", path, body=dict(terminal.given(**fields)))
        if json:
            terminal.show_json(made)
            return
        _show_all(made["sandboxes"], json=False)
        terminal.note(f"they began as the snapshot {made['snapshot']['id']}")

    terminal.run(work)


def snapshot(
    sandbox: SandboxRef,
    name: Annotated[str | None, typer.Option(help="A name for the snapshot.")] = None,
    mode: Annotated[str, typer.Option(help="memory keeps what runs too; disk keeps the files.")] = "memory",
    days: Annotated[int | None, typer.Option(help="Days to keep it, 1 to 365; 30 where none is named.")] = None,
    label: Labels = None,
    json: JsonFlag = False,
) -> None:
    """Keep a sandbox to begin others from, and print the snapshot's id; it goes on as it was.

    Example: runtime sandbox snapshot my-box --name ready --days 90
    """
    if mode not in ("memory", "disk"):
        raise typer.BadParameter(f"{mode!r} is no mode: memory or disk")
    labels = terminal.key_values(label, what="label") or None

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        async with terminal.patience("keeping it"):
            kept = await found.snapshot(name=name, labels=labels, retention_days=days, mode=mode)
        if json:
            terminal.show_json(kept)
        else:
            typer.echo(kept["id"])

    terminal.run(work)


def update(
    sandbox: SandboxRef,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    lease: Annotated[int | None, typer.Option(help="Seconds until the new lease ends.")] = None,
    at_end: Annotated[str | None, typer.Option(help="What its lease's end does: pause, stop or delete.")] = None,
    idle_pause: Annotated[
        int | None, typer.Option(help="Seconds without use until it is paused, from 60; 0 never.")
    ] = None,
    auto_wake: Annotated[
        bool | None, typer.Option("--auto-wake/--no-auto-wake", help="Whether the next command wakes it.")
    ] = None,
    persistent: Annotated[
        bool | None, typer.Option("--persistent/--no-persistent", help="Renew the lease; keep the disk at a stop.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days to keep it when paused or stopped, 1 to 365.")] = None,
    label: Labels = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for its programs.")] = None,
    max_total_cost: MaxTotalCost = None,
    json: JsonFlag = False,
) -> None:
    """Change what a sandbox is and does.

    Example: runtime sandbox update my-box --idle-pause 0 --lease 86400
    """
    fields = terminal.given(
        name=name,
        timeout_seconds=lease,
        on_timeout=at_end,
        idle_pause_seconds=idle_pause,
        auto_wake=auto_wake,
        persistent=persistent,
        labels=terminal.key_values(label, what="label") or None,
        env=terminal.key_values(env, what="variable") or None,
        max_total_cost_micros=micros(max_total_cost, option="--max-total-cost"),
    )
    if not fields and days is None:
        raise typer.BadParameter("name what to change; `runtime sandbox update --help` lists it")

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        if fields:
            await found.update(**fields)
        if days is not None:
            await found.set_retention(days)
        _show_all([found.info], json=json)

    terminal.run(work)


@snapshots.command("ls")
def list_snapshots(
    sandbox: Annotated[str | None, typer.Option(help="Only those of this sandbox.")] = None,
    json: JsonFlag = False,
) -> None:
    """List snapshots, oldest first.

    Example: runtime snapshot ls
    """

    async def work(client: AsyncRuntime) -> None:
        of = None if sandbox is None else (await terminal.find_sandbox(client, sandbox)).id
        found = [one async for one in await client.snapshots.list(sandbox_id=of)]
        if json:
            terminal.show_json(found)
            return
        columns = ("id", "name", "mode", "state", "storedBytes", "sourceSandboxId", "createdAt", "expiresAt")
        terminal.show_table(columns, ([one.get(column) for column in columns] for one in found))

    terminal.run(work)


@snapshots.command("get")
def get_snapshot(snapshot: SnapshotRef, json: JsonFlag = False) -> None:
    """Show what a snapshot is.

    Example: runtime snapshot get ready --json
    """

    async def work(client: AsyncRuntime) -> None:
        terminal.show_fields(await terminal.find_snapshot(client, snapshot), json=json)

    terminal.run(work)


@snapshots.command("rm")
def remove_snapshots(
    snapshots: Annotated[list[str], typer.Argument(metavar="SNAPSHOT", help="Ids, or names of ready ones.")],
    json: JsonFlag = False,
) -> None:
    """Delete snapshots; what began from them goes on.

    Example: runtime snapshot rm ready
    """

    async def work(client: AsyncRuntime) -> None:
        # All are found first: a wrong name among them deletes nothing.
        ids = [(await terminal.find_snapshot(client, one))["id"] for one in snapshots]
        for one in ids:
            await client.snapshots.delete(one)
        _show_all([{"id": one} for one in ids], json=json)

    terminal.run(work)


def register(app: typer.Typer) -> None:
    """Put the commands on a sandbox into their group."""
    app.command()(pause)
    app.command()(wake)
    app.command()(restart)
    app.command()(fork)
    app.command()(snapshot)
    app.command()(update)


def show_starts(starts: list[Json], *, json: bool) -> None:
    """Receipts: the time of each step in milliseconds since the start was asked for."""
    if json:
        terminal.show_json(starts)
        return
    columns = (
        "number",
        "cause",
        "how",
        "askedAt",
        *STEPS,
        "firstCommandMs",
        "clockSkewMs",
        "entropyReseeded",
        "policy",
    )
    rows = []
    for start in starts:
        steps, checks = start["stepsMs"], start["checks"]
        told = [start["number"], start["cause"], start["how"], start["askedAt"], *(steps.get(step) for step in STEPS)]
        told += [start.get("firstCommandMs"), checks["clockSkewMs"], checks["entropyReseeded"], checks["policyVersion"]]
        rows.append([round(cell, 1) if isinstance(cell, float) else cell for cell in told])
    terminal.show_table(columns, rows)


def until(info: Json) -> str:
    """How long a sandbox has now, and what comes then."""
    ends, at_end = info.get("endsAt"), info.get("onTimeout") or info.get("onLeaseEnd")
    if ends is None:
        return f"{info['id']} runs on; its lease renews itself"
    then = {"stop": "is stopped", "delete": "is deleted"}.get(str(at_end), "is paused")
    return f"{info['id']} runs until {ends}, then it {then}; `runtime sandbox extend` moves that"


def _show_all(infos: list[Json], *, json: bool) -> None:
    if json:
        terminal.show_json(infos)
    else:
        for info in infos:
            typer.echo(info["id"])
