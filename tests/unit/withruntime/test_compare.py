"""A month of the same work costs what is published for each provider, to the cent."""

import json
from fractions import Fraction
from typing import Any

import pytest
from typer.testing import CliRunner

from withruntime._compare import WrongWork, cents, compare, providers, read_work, work_of
from withruntime.cli.app import app

PUBLISHED = {"Runtime": "56.94", "E2B": "276.00", "Vercel": "176.89", "Cloudflare": "115.04", "Modal": "396.60"}
MONTH = {"calls": 50_000, "seconds": 120, "cpu_seconds": 20, "vcpu": 2, "memory": 4096}
OPTIONS = ["--calls", "50000", "--seconds", "120", "--cpu-seconds", "20", "--vcpu", "2", "--memory", "4096"]


def usd(**changed: Any) -> dict[str, str | None]:
    rows = compare(read_work({**MONTH, **changed}))
    return {row.provider.name: None if row.usd is None else f"{row.usd:.2f}" for row in rows}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_published_month_costs_the_published_figures_to_the_cent() -> None:
    assert usd() == PUBLISHED


def test_the_command_prints_providers_and_dollars_as_json() -> None:
    shown = run(*OPTIONS, "--json")

    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == [{"provider": k, "usd": float(v)} for k, v in PUBLISHED.items()]


def test_the_table_for_people_says_when_and_where_each_rate_is_from() -> None:
    shown = run(*OPTIONS)

    assert shown.exit_code == 0
    assert all(figure in shown.stdout for figure in PUBLISHED.values())
    for provider in providers():
        for rate in provider.rates:
            line = next(
                line for line in shown.stdout.splitlines() if line.startswith(provider.name) and rate.note in line
            )
            assert rate.entered.isoformat() in line
            assert rate.source in line


def test_work_that_only_waits_costs_nothing_for_cpu_where_use_is_counted() -> None:
    idle, held = usd(cpu_seconds=0), usd()

    assert idle["E2B"] == held["E2B"]
    assert idle["Runtime"] == "52.08"


def test_the_shares_of_a_provider_sum_to_its_figure() -> None:
    for row in compare(read_work(MONTH)):
        assert row.usd is not None
        assert abs(sum(share for _, share in row.parts) - row.usd) <= cents(Fraction(len(row.parts), 200))


@pytest.mark.parametrize(
    ("changed", "not_sold"),
    [
        ({"vcpu": 16, "memory": 32_768}, {"Vercel", "Cloudflare"}),
        ({"memory": 65_536}, {"Cloudflare"}),
        ({"vcpu": 1, "memory": 128}, set()),
    ],
)
def test_a_size_that_a_provider_does_not_sell_has_no_figure(changed: dict[str, int], not_sold: set[str]) -> None:
    assert {name for name, figure in usd(**changed).items() if figure is None} == not_sold


def test_a_provider_that_sells_memory_with_a_vcpu_counts_at_least_that() -> None:
    small, large = usd(vcpu=4, memory=4096), usd(vcpu=4, memory=8192)

    assert small["Vercel"] == large["Vercel"]
    assert small["Runtime"] != large["Runtime"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"calls": 0}, "calls"),
        ({"calls": "-5"}, "calls"),
        ({"calls": "many"}, "calls"),
        ({"calls": ""}, "calls"),
        ({"calls": 1.5}, "calls"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": "-1"}, "seconds"),
        ({"seconds": "1e3"}, "seconds"),
        ({"seconds": 86_401}, "seconds"),
        ({"cpu_seconds": "nan"}, "cpu_seconds"),
        ({"cpu_seconds": 241}, "cpu_seconds"),  # two vCPUs have 240 in two minutes
        ({"vcpu": 17}, "vcpu"),
        ({"memory": 127}, "memory"),
    ],
)
def test_wrong_input_is_refused_naming_the_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(WrongWork) as refused:
        read_work({**MONTH, **changed})

    assert [issue["field"] for issue in refused.value.issues] == [field]


def test_an_accounts_own_month_is_priced_as_it_was_used():
    month = {"running": 6_000_000, "cpu": 1_000_000, "memory": 4 * 6_000_000 / 3600}
    work = work_of({"kinds": [{"kind": kind, "quantity": quantity} for kind, quantity in month.items()]})
    assert work is not None

    assert {row.provider.name: f"{row.usd:.2f}" for row in compare(work)} == PUBLISHED
    assert work_of({"kinds": [{"kind": kind, "quantity": 0} for kind in month]}) is None


def test_the_command_names_every_wrong_option_at_once() -> None:
    shown = run("--calls", "-1", "--seconds", "x", "--json")

    assert shown.exit_code == 2
    assert all(option in shown.stderr for option in ("--calls", "--seconds", "--cpu-seconds"))
    assert shown.stdout == ""
