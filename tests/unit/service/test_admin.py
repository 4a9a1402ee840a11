"""The operator makes accounts and keys, gives credit and sets limits; each change is in the audit chain as theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtimed.admin_app import admin_app
from runtimed.store.accounts import Accounts
from runtimed.store.audit import AuditQuery, AuditStore
from runtimed.store.database import open_database

Admin = Callable[..., Any]


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    def run(*words: str, code: int = 0) -> Any:
        told = CliRunner().invoke(admin_app, [*words, "--state-dir", str(tmp_path), "--json"])
        assert told.exit_code == code, told.output
        return json.loads(told.stdout) if code == 0 else told.stderr

    return run


@pytest.fixture
def plain(tmp_path: Path) -> Admin:
    def run(*words: str, code: int = 0) -> str:
        told = CliRunner().invoke(admin_app, [*words, "--state-dir", str(tmp_path)])
        assert told.exit_code == code, told.output
        return told.stdout if code == 0 else told.stderr

    return run


def test_a_new_account_pays_before_it_uses(admin: Admin) -> None:
    made = admin("account", "create", "research", "--sandboxes", "4")
    changed = admin("account", "set", "research", "--postpaid", "--sandboxes", "0")
    names = [account["name"] for account in admin("account", "ls")["data"]]

    assert (made["prepaid"], made["sandboxesMax"], made["creditMicros"]) == (True, 4, 0)
    assert (changed["prepaid"], changed["sandboxesMax"]) == (False, None)
    assert names == ["default", "research"]


def test_credit_that_comes_twice_under_one_mark_is_given_once(admin: Admin, plain: Admin) -> None:
    admin("account", "create", "research")
    admin("credit", "add", "research", "100.50", "--mark", "invoice 1")
    again = admin("credit", "add", "research", "100.50", "--mark", "invoice 1")
    taken = admin("credit", "take", "research", "0.50")

    assert again["creditMicros"] == 100_500_000
    assert taken["creditMicros"] == 100_000_000
    assert "another amount" in plain("credit", "add", "research", "7", "--mark", "invoice 1", code=1)
    assert "$100.00" in plain("credit", "take", "research", "100.01", code=1)
    assert admin("credit", "verify")["clean"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["credit", "add", "research", "0"], "amount: must be above 0"),
        (["credit", "add", "research", "12 EUR"], "amount: 'EUR' is not a currency"),
        (["credit", "add", "research", "1e9"], "amount: '1e9' is not an amount"),
        (["credit", "add", "--", "research", "-5"], "amount: must not be negative"),
        (["credit", "add", "nobody", "5"], "there is no account 'nobody'"),
        (["account", "create", "research"], "there is an account 'research' already"),
        (["account", "create", ""], "name: must be 1 to"),
        (["account", "create", "x", "--sandboxes", "-1"], "sandboxes: must be from 0"),
        (["key", "create", "k", "--daily-limit", "-1"], "daily-limit: must not be negative"),
        (["key", "create", "k", "--account", "nobody"], "there is no account"),
        (["key", "revoke", "nothing"], "there is no key"),
        (["key", "limit", "nothing", "5"], "there is no key"),
        (["key", "limit", "nothing"], "give an amount"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(tmp_path: Path, admin: Admin, words: list[str], said: str) -> None:
    admin("account", "create", "research")
    place = words.index("--") if "--" in words else len(words)
    told = CliRunner().invoke(admin_app, [*words[:place], "--state-dir", str(tmp_path), *words[place:]])

    assert told.exit_code == 1
    assert said in told.stderr
    assert told.stderr.count("\n") == 1


def test_a_key_is_shown_once_with_its_limit_and_can_be_limited_and_revoked(admin: Admin, plain: Admin) -> None:
    made = admin("key", "create", "ci", "--own-only", "--daily-limit", "5")
    limited = admin("key", "limit", made["id"], "$2.50")
    shown = admin("key", "ls")["data"][0]
    plain("key", "revoke", made["id"])
    plain("key", "revoke", made["id"])

    assert made["key"].startswith(f"rtcloud_{made['id']}_")
    assert (made["dailyLimitMicros"], limited["dailyLimitMicros"]) == (5_000_000, 2_500_000)
    assert "key" not in shown
    assert shown["accountWide"] is False
    assert admin("key", "ls")["data"][0]["revokedAt"]


@pytest.mark.parametrize(
    ("flags", "wide"),
    [([], False), (["--own-only"], False), (["--account-wide"], True), (["--read-only"], True)],
)
def test_a_key_reaches_what_it_made_unless_it_is_account_wide(admin: Admin, flags: list[str], wide: bool) -> None:
    assert admin("key", "create", "ci", *flags)["accountWide"] is wide


def test_every_change_of_the_operator_is_in_the_chain(tmp_path: Path, admin: Admin, plain: Admin) -> None:
    account = admin("account", "create", "research")["id"]
    key = admin("key", "create", "ci", "--account", "research")
    admin("credit", "add", "research", "5")
    admin("key", "limit", key["id"], "1")
    plain("key", "revoke", key["id"])

    async def lines() -> list[Any]:
        database = await open_database(f"sqlite+aiosqlite:///{tmp_path / 'runtime.db'}")
        try:
            return await AuditStore(database).page(AuditQuery(account_id=account))
        finally:
            await database.close()

    found = asyncio.run(lines())
    assert [line.event.action for line in reversed(found)] == [
        "account.create",
        "key.create",
        "credit.add",
        "key.limit",
        "key.revoke",
    ]
    assert all(line.event.actor.startswith("operator:") for line in found)
    assert key["key"] not in str(found)


def test_the_prices_are_shown_and_a_book_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    shown = CliRunner().invoke(admin_app, ["price", "show", "--json"])
    book = tmp_path / "prices.toml"
    book.write_text('currency = "USD"\n[[period]]\nfrom = 2026-01-01\ncpu_usd_per_vcpu_hour = "-1"\n')
    wrong = CliRunner().invoke(admin_app, ["price", "check", str(book)])

    assert json.loads(shown.stdout)["periods"][-1]["memory_usd_per_gib_hour"] == "0.0078125"
    assert wrong.exit_code == 1
    assert "period[0].cpu_usd_per_vcpu_hour" in wrong.stderr
    assert "period[0].memory_usd_per_gib_hour: is missing" in wrong.stderr


def test_the_first_account_is_the_services_own(tmp_path: Path, admin: Admin) -> None:
    admin("account", "create", "research")

    async def first() -> str:
        from runtimed.core.clock import SystemClock

        database = await open_database(f"sqlite+aiosqlite:///{tmp_path / 'runtime.db'}")
        try:
            accounts = Accounts(database, SystemClock())
            return await accounts.account_name(await accounts.first_account())
        finally:
            await database.close()

    assert asyncio.run(first()) == "default"
