"""The operator's commands for accounts, keys, credit and prices: `runtimed admin`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from runtimed import settings as settings_module
from runtimed.core.errors import RuntimedError
from runtimed.core.money import format_usd
from runtimed.core.wording import program
from runtimed.settings import CommandError, Settings, SettingsError

HELP = {"help_option_names": ["-h", "--help"]}
admin_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="What only the operator may do."
)
key_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP,
    help="API keys: made, limited and revoked here and nowhere else.",
)
account_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP,
    help="Accounts: how they pay, and how much they may run at once.",
)
credit_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP,
    help="Credit of accounts that pay before they use.",
)
price_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, context_settings=HELP, help="The price book.")
for _app, _name in ((account_app, "account"), (key_app, "key"), (credit_app, "credit"), (price_app, "price")):
    admin_app.add_typer(_app, name=_name)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
StateOption = Annotated[Path | None, typer.Option("--state-dir", help="Database, key and machines.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
AccountArgument = Annotated[str, typer.Argument(help="An account's id or name.")]
KeyArgument = Annotated[str, typer.Argument(help="The key's id: the uuid in it.")]
AmountArgument = Annotated[str, typer.Argument(metavar="USD", help="An amount such as 12.50.")]
MarkOption = Annotated[str | None, typer.Option(help="A number of yours; the same again is done once.")]


@account_app.command("create")
def account_create(
    name: Annotated[str, typer.Argument(help="Its name.")],
    config: ConfigOption = None,
    state_dir: StateOption = None,
    postpaid: Annotated[bool, typer.Option("--postpaid", help="It pays afterwards, and needs no credit.")] = False,
    sandboxes: Annotated[int | None, typer.Option(help="Sandboxes that it may run at once.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an account. Without --postpaid it runs nothing but trial hours until it has credit.

    Example: runtime admin account create research --sandboxes 20
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        shown = with_operator(
            _settings(config, state_dir),
            lambda op: op.create_account(name, prepaid=not postpaid, sandboxes_max=sandboxes),
        )
    _tell(shown, str(shown["id"]), as_json)


@account_app.command("set")
def account_set(
    account: AccountArgument,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    prepaid: Annotated[bool | None, typer.Option("--prepaid/--postpaid", help="Pays before, or afterwards.")] = None,
    sandboxes: Annotated[int | None, typer.Option(help="Sandboxes at once; 0 lifts the limit.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Change how an account pays, or how much it may run at once.

    Example: runtime admin account set default --prepaid --sandboxes 4
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        shown = with_operator(
            _settings(config, state_dir), lambda op: op.set_account(account, prepaid=prepaid, sandboxes_max=sandboxes)
        )
    _tell(shown, str(shown["id"]), as_json)


@account_app.command("ls")
def account_ls(config: ConfigOption = None, state_dir: StateOption = None, as_json: JsonOption = False) -> None:
    """List accounts with their money.

    Example: runtime admin account ls
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        accounts = with_operator(_settings(config, state_dir), lambda op: op.accounts())
    if as_json:
        _say_json({"data": accounts})
        return
    for shown in accounts:
        pays = "prepaid" if shown["prepaid"] else "postpaid"
        money = f"{_usd(shown['creditMicros'])} credit" if shown["prepaid"] else f"{_usd(shown['owedMicros'])} owed"
        money += f", {_usd(shown['heldMicros'])} held"
        places = "any number" if shown["sandboxesMax"] is None else f"at most {shown['sandboxesMax']}"
        _say(f"{shown['id']}  {pays:8}  {money:20}  {places:12}  {shown['name']}")


@key_app.command("create")
def key_create(  # noqa: PLR0913 - one parameter for each flag
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    config: ConfigOption = None,
    state_dir: StateOption = None,
    account: Annotated[str | None, typer.Option(help="An account's id or name; the first one without.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Sees what is outside sandboxes.")] = False,
    own_only: Annotated[bool, typer.Option("--own-only", help="Reaches only what it made itself.")] = False,
    account_wide: Annotated[bool, typer.Option("--account-wide", help="Reaches all of the account.")] = False,
    daily_limit: Annotated[str | None, typer.Option(metavar="USD", help="The most in any 24 hours.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this once.

    It reaches only what it made itself, unless it is --account-wide; a --read-only key sees all of the account
    unless it is --own-only.

    Example: runtime admin key create ci --daily-limit 5
    """
    from runtimed.admin_work import KeyWish, with_operator

    if own_only and account_wide:
        _fail("--own-only and --account-wide exclude each other")
    wide = account_wide or (read_only and not own_only)
    wish = KeyWish(name=name, account=account, read_only=read_only, account_wide=wide, day_limit_usd=daily_limit)
    with told_plainly():
        shown = with_operator(_settings(config, state_dir), lambda op: op.create_key(wish))
    _tell(shown, str(shown["key"]), as_json)


@key_app.command("ls")
def key_ls(config: ConfigOption = None, state_dir: StateOption = None, as_json: JsonOption = False) -> None:
    """List keys; never their secrets.

    Example: runtime admin key ls
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        keys = with_operator(_settings(config, state_dir), lambda op: op.keys())
    if as_json:
        _say_json({"data": keys})
        return
    for key in keys:
        state = "revoked" if key["revokedAt"] else "valid"
        limit = "no limit" if key["dailyLimitMicros"] is None else f"{_usd(key['dailyLimitMicros'])} a day"
        _say(f"{key['id']}  {key['kind']:9} {key['createdAt']}  {state:7}  {limit:16}  {key['name']}")


@key_app.command("limit")
def key_limit(
    key: KeyArgument,
    usd: Annotated[str | None, typer.Argument(metavar="USD", help="The most in any 24 hours.")] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    none: Annotated[bool, typer.Option("--none", help="Lift the limit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set or lift what a key may spend in any 24 hours. Counts at once.

    Example: runtime admin key limit 6cc1954f-1965-4f85-86a9-eaa6d0364713 5.00
    """
    from runtimed.admin_work import with_operator

    if none == (usd is not None):
        _fail("give an amount, or --none to lift the limit")
    with told_plainly():
        shown = with_operator(_settings(config, state_dir), lambda op: op.limit_key(key, usd))
    limit = shown["dailyLimitMicros"]
    _tell(shown, "no limit" if limit is None else f"{_usd(limit)} in 24 hours", as_json)


@key_app.command("revoke")
def key_revoke(key: KeyArgument, config: ConfigOption = None, state_dir: StateOption = None) -> None:
    """Revoke a key. A running service refuses it within a second, and ends what it has open.

    Example: runtime admin key revoke 6cc1954f-1965-4f85-86a9-eaa6d0364713
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        with_operator(_settings(config, state_dir), lambda op: op.revoke_key(key))
    _say(f"revoked {key}")


@credit_app.command("add")
def credit_add(
    account: AccountArgument,
    usd: AmountArgument,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    mark: MarkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an account credit.

    Example: runtime admin credit add research 100 --mark invoice-2026-17
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        shown = with_operator(_settings(config, state_dir), lambda op: op.add_credit(account, usd, mark=mark))
    _tell(shown, f"{shown['name']} has {_usd(shown['creditMicros'])} of credit", as_json)


@credit_app.command("take")
def credit_take(
    account: AccountArgument,
    usd: AmountArgument,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    mark: MarkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take credit back that is not held.

    Example: runtime admin credit take research 20
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        shown = with_operator(_settings(config, state_dir), lambda op: op.take_credit(account, usd, mark=mark))
    _tell(shown, f"{shown['name']} has {_usd(shown['creditMicros'])} of credit", as_json)


@credit_app.command("verify")
def credit_verify(config: ConfigOption = None, state_dir: StateOption = None, as_json: JsonOption = False) -> None:
    """Check that every balance is the sum of its entries, and the audit chain with them. Exit code 1 when not.

    Example: runtime admin credit verify
    """
    from runtimed.admin_work import with_operator

    with told_plainly():
        shown = with_operator(_settings(config, state_dir), lambda op: op.check_books())
    problems = [*_texts(shown["ledger"]), *_texts(shown["audit"])]
    clean = f"the ledger balances, and each audit line is as it was written ({shown['auditLines']} in all)"
    _tell(shown, "\n".join(problems) or clean, as_json)
    raise typer.Exit(1 if problems else 0)


@price_app.command("show")
def price_show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the price book that new sandboxes are charged by.

    Example: runtime admin price show
    """
    _show_prices(_settings(config, None), as_json)


@price_app.command("check")
def price_check(file: Annotated[Path, typer.Argument(help="A price book.")], as_json: JsonOption = False) -> None:
    """Say whether a price book can be used, and what is wrong with it, field by field.

    Example: runtime admin price check prices-2027.toml
    """
    _show_prices(replace(Settings(), price_book=str(file)), as_json)


def _show_prices(settings: Settings, as_json: bool) -> None:
    from runtimed.money_parts import price_book, shown_periods

    with told_plainly():
        periods = shown_periods(price_book(settings))
    if as_json:
        _say_json({"currency": "USD", "periods": periods})
        return
    for period in periods:
        _say(f"from {period.pop('from')} until {period.pop('until') or 'further notice'}")
        for name, value in period.items():
            _say(f"  {name:28} {value}")


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors that the operator can do something about end in one sentence and exit code 1."""
    try:
        yield
    except (RuntimedError, CommandError) as error:
        hint = getattr(error, "hint", None)
        _fail(f"{error}{f'; {hint}' if hint else ''}")


def _settings(config: Path | None, state_dir: Path | None) -> Settings:
    try:
        return settings_module.load(config=config, flags={"state_dir": state_dir})
    except SettingsError as error:
        _fail(f"the settings are wrong: {error}")


def _tell(shown: dict[str, object], line: str, as_json: bool) -> None:
    _say_json(shown) if as_json else _say(line)


def _usd(micros: object) -> str:
    assert isinstance(micros, int)
    return format_usd(micros)


def _texts(found: object) -> list[str]:
    return [str(text) for text in found] if isinstance(found, list) else []


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _say_json(value: object) -> None:
    _say(json.dumps(value, indent=2))


def _fail(sentence: str) -> NoReturn:
    sys.stderr.write(f"{program()}: {sentence}\n")
    raise typer.Exit(1)
