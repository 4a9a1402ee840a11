"""The options that bound what a sandbox may cost and say what CPU it is guaranteed; dollars in, microdollars out."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from withruntime.cli import terminal

DECIMALS = 6
MICROS_PER_USD = 1_000_000
_AMOUNT = re.compile(r"\$?(\d{1,9})(?:\.(\d{1,6}))?")

MaxCost = Annotated[
    str | None, typer.Option("--max-cost", metavar="USD", help="Refuse it if its first lease could cost more.")
]
MaxTotalCost = Annotated[
    str | None, typer.Option("--max-total-cost", metavar="USD", help="End it once it has cost this much in all.")
]
Trial = Annotated[bool, typer.Option("--trial", help="Use trial hours only, never credit.")]
CpuFloor = Annotated[
    int | None,
    typer.Option("--cpu-floor", metavar="MILLIS", help="Thousandths of a vCPU to guarantee, paid also when unused."),
]
Reserved = Annotated[bool, typer.Option("--reserved", help="Guarantee all of its vCPUs, paid also when unused.")]


def fields(
    *,
    trial: bool,
    max_cost: str | None,
    max_total_cost: str | None,
    cpu_floor: int | None = None,
    reserved: bool = False,
) -> Mapping[str, Any]:
    """What a create is told of money and guaranteed CPU. Raises BadParameter for an amount that is none."""
    return terminal.given(
        funding="trial" if trial else None,
        max_cost_micros=micros(max_cost, option="--max-cost"),
        max_total_cost_micros=micros(max_total_cost, option="--max-total-cost"),
        cpu_floor_millis=cpu_floor,
        cpu="reserved" if reserved else None,
    )


def micros(usd: str | None, *, option: str) -> int | None:
    """Dollars as people write them (`0.50`, `$3`) as whole microdollars, exactly. Raises BadParameter."""
    if usd is None:
        return None
    found = _AMOUNT.fullmatch(usd.strip())
    if found is None:
        raise typer.BadParameter(f"{option}: {usd!r} is not an amount in US dollars such as 0.50")
    whole, part = str(found[1]), str(found[2] or "")
    return int(whole) * MICROS_PER_USD + int(part.ljust(DECIMALS, "0"))
