"""The commands for what sandboxes may reach, and for the secrets that they use without seeing them."""

import asyncio
import sys
from datetime import datetime, timedelta
from typing import Annotated

import typer

from withruntime._async.client import AsyncRuntime
from withruntime._async.sandbox import AsyncSandbox
from withruntime._errors import RuntimeError
from withruntime._values import Json
from withruntime.cli import terminal
from withruntime.cli.terminal import JsonFlag, SandboxRef

NoInternet = Annotated[bool, typer.Option("--no-internet", help="Let it reach nothing, but for what is allowed.")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow", help="Only this name, *.name, address or range; repeatable.")
]
Deny = Annotated[list[str] | None, typer.Option("--deny", help="Never this one, whatever is allowed; repeatable.")]
Connect = Annotated[list[str] | None, typer.Option("--connect", help="HOST:PORT beside what is allowed; repeatable.")]

CLOCKS_APART = timedelta(seconds=1)
"""A command's start is told by its machine's clock, a refusal by the gateway's."""
_EVER = "1970-01-02T00:00:00Z"
REFUSALS_SHOWN = 5
FOLLOW_EVERY_S = 0.5
_RECORD_COLUMNS = ("at", "what", "host", "port", "allowed", "rule", "failure", "bytesOut", "bytesIn")

secrets = typer.Typer(
    help="Keep secrets that sandboxes use without seeing them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def rules_of(
    no_internet: bool, allow: list[str] | None, deny: list[str] | None, connect: list[str] | None
) -> Json | None:
    """The rules that the options ask for; None when there are none."""
    lists = {"allow": allow, "deny": deny, "connect": connect}
    named = {name: list(hosts) for name, hosts in lists.items() if hosts}
    return {"internet": not no_internet, **named} if no_internet or named else None


def register(app: typer.Typer) -> None:
    """Add the commands to those of sandboxes."""
    app.command()(network)
    app.command()(egress)


def network(
    sandbox: SandboxRef,
    no_internet: NoInternet = False,
    allow: Allow = None,
    deny: Deny = None,
    connect: Connect = None,
    everything: Annotated[bool, typer.Option("--internet", help="Let it reach all that the service allows.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show what a sandbox may reach, or replace it at once, for open connections too.

    \b
    Examples:
      runtime sandbox network my-box
      runtime sandbox network my-box --allow pypi.example --allow '*.cdn.example'
      runtime sandbox network my-box --no-internet
    """
    rules = rules_of(no_internet, allow, deny, connect)
    if everything and (rules or {}).get("internet") is False:
        raise typer.BadParameter("--internet and --no-internet exclude each other")
    if everything and rules is None:
        rules = {"internet": True}

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        shown = await (found.network.get() if rules is None else found.network.set(**rules))
        if json:
            terminal.show_json(shown)
            return
        told = [(name, _listed(value)) for name, value in shown.items() if value is not None]
        terminal.show_table(("field", "value"), told)

    terminal.run(work)


def egress(
    sandbox: SandboxRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as connections come, until Ctrl-C.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show what became of a sandbox's connections: each verdict with the rule that decided. With --json, one a line.

    Example: runtime sandbox egress my-box --follow
    """

    async def work(client: AsyncRuntime) -> None:
        found = await terminal.find_sandbox(client, sandbox)
        rows, after = list[Json](), 0
        while True:
            page = await found.network.records(after=after, limit=1000)
            after = page["nextAfter"]
            if json or follow:
                for record in page["data"]:
                    terminal.show_json_line(record) if json else typer.echo(line(record))
                sys.stdout.flush()
            else:
                rows += page["data"]
            if not page["data"]:
                if not follow:
                    break
                await asyncio.sleep(FOLLOW_EVERY_S)
        if not json:
            terminal.show_table(_RECORD_COLUMNS, ([row.get(name) for name in _RECORD_COLUMNS] for row in rows))

    terminal.run(work)


async def tell_refusals(sandbox: AsyncSandbox, process_id: str) -> None:
    """Say on stderr which connections were refused since this command began, by which rule, and which failed."""
    refused, after = dict[str, None](), 0
    try:
        began = (
            datetime.fromisoformat((await sandbox.process(process_id)).info.get("startedAt") or _EVER) - CLOCKS_APART
        )
        while (page := await sandbox.network.records(after=after, limit=1000))["data"]:
            after = page["nextAfter"]
            for record in page["data"]:
                if datetime.fromisoformat(record["at"]) < began:
                    continue
                where = f"{record['host']}:{record['port']}"
                if not record["allowed"]:
                    refused[f"{where} was refused: {record['rule']}"] = None
                elif record["what"] != "dns" and record.get("failure"):
                    refused[f"{where} was allowed and failed: {record['failure']}"] = None
    except RuntimeError:
        return  # the command's own exit code is what counts
    for text in list(refused)[:REFUSALS_SHOWN]:
        terminal.note(text)
    if len(refused) > REFUSALS_SHOWN:
        terminal.note(f"and {len(refused) - REFUSALS_SHOWN} more; `runtime sandbox egress` shows them while it runs")


@secrets.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, and the variable that sandboxes see.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Where it may go: name or *.name; repeatable.")
    ] = None,
    header: Annotated[str | None, typer.Option(help="Set this header on every request to the hosts.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="The header's value, with {value} in it.")] = None,
    env: Annotated[str | None, typer.Option(help="Another name for the variable.")] = None,
    json: JsonFlag = False,
) -> None:
    """Store or replace a secret. Its value is read from the input, so that it stands in no history.

    \b
    Examples:
      runtime secrets set API_KEY --host api.example < key.txt
      pass show api | runtime secrets set API_KEY --host api.example --header X-Api-Key
    """
    if sys.stdin.isatty():
        value = typer.prompt("value", hide_input=True, err=True)
    else:
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise typer.BadParameter("the value is read from the input, and that is empty")

    async def work(client: AsyncRuntime) -> None:
        shown = await client.secrets.set(name, value=value, hosts=host, header=header, format=format_, env=env)
        if json:
            terminal.show_json(shown)
        else:
            typer.echo(f"{shown['name']} {shown['placeholder']}")

    terminal.run(work)


@secrets.command("ls")
def list_secrets(json: JsonFlag = False) -> None:
    """List secrets: names, hosts, placeholders; never values.

    Example: runtime secrets ls
    """

    async def work(client: AsyncRuntime) -> None:
        found = await client.secrets.list()
        if json:
            terminal.show_json(found)
            return
        columns = ("name", "hosts", "header", "placeholder", "updatedAt")
        terminal.show_table(columns, ([_listed(secret.get(column)) for column in columns] for secret in found))

    terminal.run(work)


@secrets.command("rm")
def remove_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")], json: JsonFlag = False
) -> None:
    """Erase a secret; its placeholder stops working at once.

    Example: runtime secrets rm API_KEY
    """

    async def work(client: AsyncRuntime) -> None:
        gone = await client.secrets.delete(name)
        if json:
            terminal.show_json(gone)
        else:
            typer.echo(name)

    terminal.run(work)


def _listed(value: object) -> object:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else value


def line(record: Json) -> str:
    """A record for people who follow."""
    verdict = "allowed" if record["allowed"] else "refused"
    moved = f" out={record['bytesOut']} in={record['bytesIn']}" if record["what"] == "closed" else ""
    failed = f" failed: {record['failure']}" if record.get("failure") else ""
    return (
        f"{record['at']} {record['what']} {verdict} {record['host']}:{record['port']} ({record['rule']}){moved}{failed}"
    )
