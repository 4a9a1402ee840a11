"""Shows what was used, what may be spent, what was done, and what a sandbox cost."""

import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

import typer

from withruntime import _calls
from withruntime._async.client import AsyncRuntime
from withruntime._errors import NotFoundError
from withruntime._values import Json
from withruntime.cli import terminal
from withruntime.cli.terminal import JsonFlag, SandboxRef

MICROS = Decimal(1_000_000)

audit_app = typer.Typer(
    help="Read the audit log, or verify that nobody touched it.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer, sandbox_app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(usage)
    app.command()(limits)
    app.add_typer(audit_app, name="audit")
    sandbox_app.command()(receipt)


def usd(micros: object) -> str:
    """Exact dollars of whole microdollars."""
    amount = (Decimal(str(micros)) / MICROS).normalize()
    decimals = max(2, -int(amount.as_tuple().exponent))
    return f"{'-' if amount < 0 else ''}${abs(amount):.{decimals}f}"


def usage(
    since: Annotated[str | None, typer.Option(help="From when, such as 2026-11-01T00:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Until when.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print everything that was counted as CSV.")] = False,
    requests: Annotated[str | None, typer.Option(help="Count requests instead: 24h, 7d, 30d or 90d.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show what the account used and spent, in the last 30 days or in a time.

    \b
    Examples:
      runtime usage
      runtime usage --since 2026-11-01T00:00:00Z --csv > november.csv
    """
    if sum((csv, json, requests is not None)) > 1 and csv:
        raise typer.BadParameter("--csv goes with neither --json nor --requests")
    window = terminal.given(since=since, until=until)

    async def work(client: AsyncRuntime) -> None:
        if requests is not None:
            _requests(await client.usage_requests(requests), json)
        elif csv:
            await _export(client, window)
        else:
            _usage(await client.request("GET", "/v1/usage", query=window), json)

    terminal.run(work)


def limits(json: JsonFlag = False) -> None:
    """Show what bounds this key and its account.

    Example: runtime limits
    """

    async def work(client: AsyncRuntime) -> None:
        shown = await client.limits.get()
        if json:
            terminal.show_json(shown)
            return
        daily, trial, credit = shown["daily"], shown["trial"], shown["credit"]
        rows: list[list[object]] = [
            ["access", shown["access"], None, None],
            ["money in 24 hours", _usd(daily["limitMicros"]), _used(daily), _usd(daily["remainingMicros"])],
            *([row["label"], row["max"], row["used"], None] for row in shown["account"]),
        ]
        if trial is not None:
            held_ms = trial.get("heldMs", 0)
            of_all, used, left = (
                _hours(ms) for ms in (trial["totalMs"], trial["usedMs"] - held_ms, trial["availableMs"])
            )
            rows.append(["trial hours", of_all, f"{used}, {_hours(held_ms)} held" if held_ms else used, left])
        if credit["prepaid"]:
            rows.append(["credit", None, f"{usd(credit['heldMicros'])} held", usd(credit["availableMicros"])])
        else:
            rows.append(["owed", None, f"{usd(credit['owedMicros'])}, {usd(credit['heldMicros'])} held", None])
        terminal.show_table(["what", "limit", "used", "left"], rows)
        if any("held" in str(row[2]) for row in rows):
            terminal.note("held is set aside for what runs, and comes back but for what is used")

    terminal.run(work)


@audit_app.callback()
def audit(
    context: typer.Context,
    action: Annotated[str | None, typer.Option(help="Only this, such as sandbox.create, or sandbox. for all.")] = None,
    limit: Annotated[int, typer.Option(help="Lines, newest first.", min=1, max=1000)] = 50,
    before: Annotated[str | None, typer.Option(help="Lines older than this number.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show every change with who, when, from where and its request's id, newest first.

    \b
    Examples:
      runtime audit --action sandbox.create
      runtime audit verify
    """
    if context.invoked_subcommand is not None:
        return

    async def work(client: AsyncRuntime) -> None:
        page = await client.audit.list(action=action, limit=limit, before=before)
        if json:
            terminal.show_json(page)
            return
        terminal.show_table(
            ["number", "at", "action", "target", "who", "from", "outcome", "details"],
            [
                [
                    *(event["number"], event["at"], event["action"], event["target"], event["actor"]),
                    *(event["address"], event["outcome"], _details(event["details"])),
                ]
                for event in page["events"]
            ],
        )
        if page["next"]:
            terminal.note(f"older ones: runtime audit --before {page['next']}")

    terminal.run(work)


@audit_app.command()
def verify(json: JsonFlag = False) -> None:
    """Find lines that were edited, removed or moved since they were written. Exit code 1 when there are any.

    Example: runtime audit verify
    """

    async def work(client: AsyncRuntime) -> int:
        checked = await client.audit.verify()
        if json:
            terminal.show_json(checked)
        elif checked["clean"]:
            typer.echo(f"each line is as it was written ({checked['lines']} in all)")
        else:
            for problem in checked["problems"]:
                typer.echo(f"line {problem['number']}: {problem['message']}")
        return 0 if checked["clean"] else terminal.EXIT_ERROR

    terminal.run(work)


def receipt(sandbox: SandboxRef, json: JsonFlag = False) -> None:
    """Show what a sandbox cost, line by line, and the share of its time that it waited. A deleted one by its id.

    Example: runtime sandbox receipt my-sandbox
    """

    async def work(client: AsyncRuntime) -> None:
        shown = await _receipt(client, sandbox)
        if json:
            terminal.show_json(shown)
            return
        rows: list[list[object]] = [
            [line["what"], line["quantity"], line["unit"], line["usdPerUnit"], usd(line["micros"])]
            for line in shown["lines"]
        ]
        rows.append(["total", None, None, None, usd(shown["totalMicros"])])
        terminal.show_table(["what", "quantity", "unit", "usd each", "usd"], rows)
        terminal.note(_ran(shown))

    terminal.run(work)


async def _receipt(client: AsyncRuntime, reference: str) -> Json:
    try:
        sandbox_id = (await terminal.find_sandbox(client, reference)).id
    except NotFoundError:
        sandbox_id = reference  # of a deleted one there is a receipt and nothing else
    try:
        found: Json = await client.request("GET", _calls.sandbox_path(sandbox_id, "/receipt"))
    except NotFoundError as none:
        none.hint = "`runtime usage` shows the ids of all that cost something, deleted ones too"
        raise
    return found


def _usage(shown: Json, json: bool) -> None:
    if json:
        terminal.show_json(shown)
        return
    terminal.show_table(
        ["sandbox", "name", "usd", "cpu s", "running s", "waited"],
        [
            [
                *(use["id"], use["name"], usd(use["chargedMicros"]), f"{use['cpuSeconds']:.2f}"),
                *(f"{use['runningSeconds']:.0f}", _share(use["waitedShare"])),
            ]
            for use in shown["resources"]
        ],
    )
    kinds = ", ".join(
        f"{kind['quantity']:g} {kind['unit']} {kind['kind'].replace('_', ' ')}" for kind in shown["kinds"]
    )
    terminal.note(f"from {shown['since']} until {shown['until']}: {usd(shown['spentMicros'])} ({kinds})")
    terminal.note(f"held now: {usd(shown['held'])}; spent in all: {usd(shown['spent'])}")


def _requests(shown: Json, json: bool) -> None:
    if json:
        terminal.show_json(shown)
        return
    terminal.show_table(
        ["operation", "requests", "refused"],
        [[row["operation"], row["requests"], row["failed"]] for row in shown["operations"]],
    )


async def _export(client: AsyncRuntime, window: Mapping[str, Any]) -> None:
    cursor: str | None = None
    while True:
        query = {**window, **({"cursor": cursor} if cursor else {})}
        page: dict[str, Any] = await client.request("GET", "/v1/usage/export", query=query)
        sys.stdout.write(page["csv"].replace("\r\n", "\n"))
        cursor = page["nextCursor"]
        if cursor is None:
            return


def _usd(micros: object) -> str | None:
    return None if micros is None else usd(micros)


def _used(daily: Json) -> str:
    """What was used, apart from what is only held."""
    held = int(daily.get("heldMicros") or 0)
    settled = usd(int(daily["usedMicros"]) - held)
    return f"{settled}, {usd(held)} held" if held else settled


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:.2f}"


def _share(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _details(details: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in details.items() if value is not None)


def _ran(shown: Json) -> str:
    waited = _share(shown["waitedShare"])
    ran = f"it ran {shown['runningSeconds']:g} s and used {shown['cpuSeconds']:g} CPU-seconds"
    waits = f", and waited {waited} of its time" if waited else ""
    held = f"; {usd(shown['heldMicros'])} are held" if shown["heldMicros"] else ""
    return f"{ran}{waits}{held}"
