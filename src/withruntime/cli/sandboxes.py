"""The commands that make, show and end sandboxes."""

from typing import Annotated

import typer

from withruntime._async.client import AsyncRuntime
from withruntime._async.sandbox import AsyncSandbox
from withruntime._values import Json
from withruntime.cli import attached, sleeping, spending, terminal
from withruntime.cli.attached import AttachedCommand
from withruntime.cli.network import Allow, Connect, Deny, NoInternet, rules_of, tell_refusals
from withruntime.cli.spending import CpuFloor, MaxCost, MaxTotalCost, Reserved, Trial
from withruntime.cli.terminal import JsonFlag, SandboxRef

app = typer.Typer(
    help="Make, use and end sandboxes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HIDDEN_COUNTED = 500
"""Ended sandboxes are counted up to here: a number is no reason to make a list wait."""
COMMAND = {"allow_interspersed_args": False}
"""Whatever follows the first word of a command belongs to the command, with or without `--` before it."""

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="A program and its arguments; no shell.")]
Image = Annotated[str | None, typer.Option(help="Image to start from.")]
Vcpu = Annotated[int | None, typer.Option(help="Virtual CPUs, 1 to 16.")]
Memory = Annotated[int | None, typer.Option("--memory", help="Memory in MiB.")]
Disk = Annotated[int | None, typer.Option("--disk", help="Disk in MiB, from 3072.")]
Name = Annotated[str | None, typer.Option(help="A name, held while the sandbox can run.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE to find it by; repeatable.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for its programs; repeatable.")]
Lease = Annotated[int | None, typer.Option(help="Seconds until its lease ends, 60 to 86400.")]
AtEnd = Annotated[str | None, typer.Option(help="What its lease's end does: pause, stop or delete.")]
IdlePause = Annotated[int | None, typer.Option(help="Seconds without use until it is paused, from 60; 0 never.")]
Cwd = Annotated[str | None, typer.Option(help="Folder to run in; /workspace where none is named.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds until the command is ended, with exit code 124.")]
User = Annotated[str | None, typer.Option(help="`sandbox` (there it is named runtime) or `root`.")]
Interactive = Annotated[bool, typer.Option("-i", "--interactive", help="Pass the input on even from a terminal.")]


@app.command(context_settings=COMMAND)
def run(
    command: Command,
    trial: Trial = False,
    max_cost: MaxCost = None,
    max_total_cost: MaxTotalCost = None,
    cpu_floor: CpuFloor = None,
    reserved: Reserved = False,
    timeout: Timeout = None,
    image: Image = None,
    vcpu: Vcpu = None,
    memory: Memory = None,
    disk: Disk = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    interactive: Interactive = False,
    no_internet: NoInternet = False,
    allow: Allow = None,
    deny: Deny = None,
    connect: Connect = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sandbox running afterwards.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run a command in a new sandbox, and delete the sandbox.

    Input, output and exit code are the command's own: 124 when its time was over, 128 and the signal's number when a
    signal ended it.

    \b
    Examples:
      runtime sandbox run -- python3 -c 'print(6 * 7)'
      runtime sandbox run --timeout 60 --env CI=1 -- make test
      tar c . | runtime sandbox run -- sh -c 'tar x && make'
      runtime sandbox run --allow api.example -- curl -sS https://api.example
    """
    fields = terminal.given(
        image=image,
        vcpu=vcpu,
        memory_mib=memory,
        disk_mib=disk,
        network=rules_of(no_internet, allow, deny, connect),
    )
    money = spending.fields(
        trial=trial, max_cost=max_cost, max_total_cost=max_total_cost, cpu_floor=cpu_floor, reserved=reserved
    )
    wanted = _attached(command, cwd=cwd, user=user, env=env, timeout=timeout, interactive=interactive, collect=json)

    async def work(client: AsyncRuntime) -> int:
        async with terminal.patience("starting a sandbox"):
            sandbox = await client.sandboxes.create_telling(
                terminal.note, on_capacity_wait=terminal.no_room, **fields, **money
            )
        if not keep:
            async with sandbox:
                return await _attend(sandbox, wanted, json=json)
        terminal.note(f"the sandbox is {sandbox.id}")
        return await _attend(sandbox, wanted, json=json)

    terminal.run(work)


@app.command("exec")
def exec_(
    sandbox: SandboxRef,
    command: Command,
    timeout: Timeout = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    interactive: Interactive = False,
    json: JsonFlag = False,
) -> None:
    """Run a command in a sandbox that is there.

    \b
    Examples:
      runtime sandbox exec my-box -- ls -la
      echo hello | runtime sandbox exec my-box -- cat
    """
    wanted = _attached(command, cwd=cwd, user=user, env=env, timeout=timeout, interactive=interactive, collect=json)

    async def work(client: AsyncRuntime) -> int:
        return await _attend(await terminal.find_sandbox(client, sandbox), wanted, json=json)

    terminal.run(work)


@app.command()
def create(
    name: Name = None,
    image: Image = None,
    vcpu: Vcpu = None,
    memory: Memory = None,
    disk: Disk = None,
    env: Env = None,
    label: Labels = None,
    lease: Lease = None,
    at_end: AtEnd = None,
    idle_pause: IdlePause = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Renew the lease; keep the disk at a stop.")] = False,
    snapshot: Annotated[str | None, typer.Option(help="Begin as a copy of this snapshot, by id or name.")] = None,
    no_internet: NoInternet = False,
    allow: Allow = None,
    deny: Deny = None,
    connect: Connect = None,
    trial: Trial = False,
    max_cost: MaxCost = None,
    max_total_cost: MaxTotalCost = None,
    cpu_floor: CpuFloor = None,
    reserved: Reserved = False,
    json: JsonFlag = False,
) -> None:
    """Make a sandbox and print its id.

    \b
    Examples:
      runtime sandbox create --name my-box --memory 2048
      runtime sandbox create --lease 3600 --at-end stop --label job=42
      runtime sandbox create --max-cost 0.05 --max-total-cost 2
      runtime sandbox create --snapshot ready
    """
    fields = terminal.given(
        name=name,
        image=image,
        vcpu=vcpu,
        memory_mib=memory,
        disk_mib=disk,
        timeout_seconds=lease,
        on_lease_end=at_end,
        idle_pause_seconds=idle_pause,
        persistent=persistent or None,
        env=terminal.key_values(env, what="variable") or None,
        labels=terminal.key_values(label, what="label") or None,
        network=rules_of(no_internet, allow, deny, connect),
    )
    money = spending.fields(
        trial=trial, max_cost=max_cost, max_total_cost=max_total_cost, cpu_floor=cpu_floor, reserved=reserved
    )

    async def work(client: AsyncRuntime) -> None:
        kept = {} if snapshot is None else {"snapshot": (await terminal.find_snapshot(client, snapshot))["id"]}
        async with terminal.patience("starting a sandbox"):
            sandbox = await client.sandboxes.create_telling(
                terminal.note, on_capacity_wait=terminal.no_room, **fields, **money, **kept
            )
        _show(sandbox.info, json=json)

    terminal.run(work)


@app.command("ls")
def list_(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; repeatable.")] = None,
    label: Labels = None,
    json: JsonFlag = False,
) -> None:
    """List sandboxes, oldest first.

    Example: runtime sandbox ls --label job=42
    """
    labels = terminal.key_values(label, what="label")

    async def work(client: AsyncRuntime) -> None:
        page = await client.sandboxes.list(state=state, include_stopped=all_, labels=labels)
        found = [sandbox.info async for sandbox in page]
        if json:
            terminal.show_json(found)
            return
        columns = ("id", "name", "state", "vcpu", "memoryMiB", "image", "createdAt", "endsAt")
        terminal.show_table(columns, ([info.get(column) for column in columns] for info in found))
        if not all_ and not state:
            await _tell_hidden(client, labels)

    terminal.run(work)


async def _tell_hidden(client: AsyncRuntime, labels: dict[str, str]) -> None:
    """Say on stderr that there are more, so that nobody looks for one that is only not shown."""
    hidden = 0
    async for _ in await client.sandboxes.list(state=["stopped"], include_stopped=True, labels=labels):
        hidden += 1
        if hidden == _HIDDEN_COUNTED:
            break
    if hidden:
        at_least = "at least " if hidden == _HIDDEN_COUNTED else ""
        terminal.note(f"{at_least}{hidden} ended {'one is' if hidden == 1 else 'ones are'} hidden: --all shows them")


@app.command()
def get(
    sandbox: SandboxRef,
    starts: Annotated[bool, typer.Option("--starts", help="How each of its machines came up.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show what a sandbox is, or how it started.

    \b
    Examples:
      runtime sandbox get my-box --json
      runtime sandbox get my-box --starts
    """

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        if starts:
            sleeping.show_starts(await found.starts(), json=json)
            return
        terminal.show_fields(found.info, json=json)

    terminal.run(work)


@app.command()
def extend(
    sandbox: SandboxRef,
    seconds: Annotated[int, typer.Argument(metavar="SECONDS", help="How much later it should end.")],
    json: JsonFlag = False,
) -> None:
    """Let a sandbox live longer.

    Example: runtime sandbox extend my-box 600
    """

    async def work(client: AsyncRuntime) -> None:
        found = await (await terminal.find_sandbox(client, sandbox)).extend(seconds)
        if json:
            terminal.show_json(found.info)
        else:
            typer.echo(f"{found.id} ends at {found.info.get('endsAt') or 'no set time'}")

    terminal.run(work)


@app.command()
def stop(
    sandboxes: Annotated[list[str], typer.Argument(metavar="SANDBOX", help="Ids or names.")], json: JsonFlag = False
) -> None:
    """Stop sandboxes; of persistent ones the disk stays, for a restart.

    Example: runtime sandbox stop my-box
    """

    async def work(client: AsyncRuntime) -> None:
        async def end(sandbox: AsyncSandbox) -> Json:
            return (await sandbox.stop()).info

        await terminal.do_to_each(client, sandboxes, end, json=json)

    terminal.run(work)


@app.command()
def rm(
    sandboxes: Annotated[list[str], typer.Argument(metavar="SANDBOX", help="Ids or names.")], json: JsonFlag = False
) -> None:
    """Delete sandboxes and everything in them, in whatever state they are.

    Example: runtime sandbox rm my-box
    """

    async def work(client: AsyncRuntime) -> None:
        async def delete(sandbox: AsyncSandbox) -> Json:
            return {"id": sandbox.id, **await sandbox.delete()}

        await terminal.do_to_each(client, sandboxes, delete, json=json)

    terminal.run(work)


def _attached(
    command: list[str],
    *,
    cwd: str | None,
    user: str | None,
    env: list[str] | None,
    timeout: float | None,
    interactive: bool,
    collect: bool,
) -> AttachedCommand:
    if user not in (None, "sandbox", "root"):
        raise typer.BadParameter(f"{user!r} is no user here: sandbox or root")
    if timeout is not None and not 0 < timeout <= 86_400:
        raise typer.BadParameter("--timeout is more than 0 and at most 86400 seconds")
    return AttachedCommand(
        argv=command,
        cwd=cwd,
        user="root" if user == "root" else "sandbox" if user else None,
        env=terminal.key_values(env, what="variable") or None,
        timeout_s=timeout,
        stdin=attached.wants_stdin(interactive),
        collect=collect,
    )


async def _attend(sandbox: AsyncSandbox, command: AttachedCommand, *, json: bool) -> int:
    # A command may take longer than a lease: nobody should lose the machine under it.
    stop_keeping = sandbox.keep_alive()
    try:
        result = await attached.run_attached(sandbox, command)
    finally:
        stop_keeping()
    if attached.exit_code_of(result) and result.process_id is not None:
        await tell_refusals(sandbox, result.process_id)
    if json:
        terminal.show_json(result.to_json() | {"sandboxId": sandbox.id})
        return attached.exit_code_of(result)
    if result.lease_ends_in_seconds is not None:
        terminal.note(f"the sandbox's lease had {result.lease_ends_in_seconds:g} s left when the command began")
    if result.out_of_memory:
        terminal.note(f"the command ran out of memory ({result.out_of_memory.get('message', 'no details')})")
    return attached.exit_code_of(result)


def _show(info: Json, *, json: bool) -> None:
    if json:
        terminal.show_json(info)
    else:
        typer.echo(info["id"])
