"""Shows what the same work costs at other providers: `runtime compare`."""

from typing import Annotated

import typer

from withruntime._async.client import AsyncRuntime
from withruntime._compare import Comparison, WrongWork, compare, read_work, work_of
from withruntime.cli.terminal import EXIT_USAGE, JsonFlag, fail, note, run, show_json, show_table


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command("compare")(compare_providers)


def compare_providers(
    calls: Annotated[str, typer.Option(help="Calls a month, each in a sandbox.")] = "",
    seconds: Annotated[str, typer.Option(help="Seconds that a sandbox exists for one call.")] = "",
    cpu_seconds: Annotated[str, typer.Option(help="CPU-seconds that one call uses.")] = "",
    vcpu: Annotated[str, typer.Option(help="vCPUs of a sandbox.")] = "2",
    memory: Annotated[str, typer.Option(help="Memory of a sandbox, MiB.")] = "4096",
    as_json: JsonFlag = False,
) -> None:
    """Say what a month of the same work costs here and at other providers.

    Without calls, seconds and CPU-seconds the work is what the account did in its last 30 days, at 2 vCPU.

    \b
    Examples:
      runtime compare --calls 50000 --seconds 120 --cpu-seconds 20
      runtime compare
    """
    if not (calls or seconds or cpu_seconds):
        run(lambda client: _compare_own(client, as_json))
    asked = {"calls": calls, "seconds": seconds, "cpu_seconds": cpu_seconds, "vcpu": vcpu, "memory": memory}
    try:
        work = read_work(asked)
    except WrongWork as wrong:
        options = [f"--{issue['field'].replace('_', '-')} {issue['message']}" for issue in wrong.issues]
        fail("; ".join(options), hint="runtime compare --help shows an example", code=EXIT_USAGE)
    _tell(compare(work), as_json)


async def _compare_own(client: AsyncRuntime, as_json: bool) -> None:
    work = work_of(await client.usage())
    if work is None:
        fail("The account has used nothing in the last 30 days.", hint="runtime compare --help shows how to name work")
    hours, cpu = float(work.seconds / 3600), float(work.cpu_seconds)
    note(f"{hours:.2f} sandbox hours with {work.memory_mib} MiB and {cpu:.2f} CPU-seconds")
    _tell(compare(work), as_json)


def _tell(found: list[Comparison], as_json: bool) -> None:
    if as_json:
        show_json([{"provider": c.provider.name, "usd": None if c.usd is None else float(c.usd)} for c in found])
        return
    _show(found)


def _show(found: list[Comparison]) -> None:
    ours = found[0].usd
    show_table(
        ["provider", "usd a month", "times", "note"],
        [
            [
                c.provider.name,
                "size not sold" if c.usd is None else f"{c.usd:.2f}",
                None if c.usd is None or not ours else f"{c.usd / ours:.1f}",
                c.provider.note,
            ]
            for c in found
        ],
    )
    typer.echo("")
    show_table(
        ["provider", "counts", "usd", "per", "share", "entered", "source", "note"],
        [
            [
                c.provider.name,
                rate.counts.replace("_", " "),
                f"{float(rate.usd):.10f}".rstrip("0"),
                rate.per,
                f"{share:.2f}",
                rate.entered.isoformat(),
                rate.source,
                rate.note,
            ]
            for c in found
            for rate, share in c.parts
        ],
    )
