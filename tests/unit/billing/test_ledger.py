"""Entries balance, post once however often they come, and never spend what is not there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.billing.ledger import Ledger
from runtimed.core import ledger
from runtimed.core.ledger import Entry, KeyPostedOtherwise, LedgerAccount, Overdrawn

from .ladder import ACCOUNT, SBX

MONEY = [ledger.GRANTED, ledger.REVENUE, ledger.credit(ACCOUNT), ledger.owed(ACCOUNT), ledger.held(SBX)]


def entry(key: str, source: LedgerAccount, target: LedgerAccount, amount: int) -> Entry:
    return Entry(key=key, at_s=1.0, source=source, target=target, amount=amount, reason="grant", account_id=ACCOUNT)


def granted(amount: int) -> Ledger:
    book = Ledger()
    book.post([entry("grant", ledger.GRANTED, ledger.credit(ACCOUNT), amount)])
    return book


entries = st.builds(
    lambda key, pair, amount: entry(str(key), pair[0], pair[1], amount),
    st.integers(0, 12),
    st.permutations(MONEY),
    st.integers(1, 100),
)


@given(st.lists(st.lists(entries, max_size=4), max_size=12))
def test_whatever_is_posted_the_sum_is_zero_and_nothing_is_overdrawn(batches: list[list[Entry]]) -> None:
    book = Ledger()
    for batch in batches:
        before = book.entries()
        try:
            book.post(batch)
        except (Overdrawn, KeyPostedOtherwise):
            assert book.entries() == before

    assert sum(book.balances().values()) == 0
    assert all(b >= 0 or ledger.may_be_negative(a) for a, b in book.balances().items())
    assert len({e.key for e in book.entries()}) == len(book.entries())


@given(st.lists(entries, unique_by=lambda e: e.key, max_size=10), st.randoms())
def test_the_order_of_repeats_does_not_matter(once: list[Entry], chance: random.Random) -> None:
    pool = [replace(e, source=ledger.GRANTED, target=ledger.credit(ACCOUNT)) for e in once]
    mixed = pool * 3
    chance.shuffle(mixed)
    book, plain = Ledger(), Ledger()
    plain.post(pool)
    for one in mixed:
        book.post([one])

    assert book.balances() == plain.balances()


def test_the_same_key_with_another_amount_is_refused() -> None:
    book = granted(100)

    with pytest.raises(KeyPostedOtherwise):
        book.post([entry("grant", ledger.GRANTED, ledger.credit(ACCOUNT), 101)])
    assert book.balance(ledger.credit(ACCOUNT)) == 100


def test_a_batch_that_overdraws_posts_nothing_of_itself() -> None:
    book = granted(100)

    with pytest.raises(Overdrawn) as refused:
        book.post(
            [
                entry("a", ledger.credit(ACCOUNT), ledger.held(SBX), 60),
                entry("b", ledger.credit(ACCOUNT), ledger.held(SBX), 60),
            ]
        )
    assert (refused.value.account, refused.value.balance) == (ledger.credit(ACCOUNT), -20)
    assert book.balance(ledger.credit(ACCOUNT)) == 100


def test_an_account_that_pays_afterwards_may_owe() -> None:
    book = Ledger()
    book.post([entry("hold", ledger.owed(ACCOUNT), ledger.held(SBX), 60)])

    assert book.balance(ledger.owed(ACCOUNT)) == -60


@pytest.mark.parametrize(
    ("source", "target", "amount"),
    [
        (ledger.GRANTED, ledger.credit(ACCOUNT), 0),
        (ledger.GRANTED, ledger.credit(ACCOUNT), -1),
        (ledger.GRANTED, ledger.GRANTED, 1),
        (ledger.GRANTED, ledger.trial(ACCOUNT), 1),  # dollars are no hours
    ],
)
def test_an_entry_that_moves_nothing_sensible_can_not_be_made(
    source: LedgerAccount, target: LedgerAccount, amount: int
) -> None:
    with pytest.raises(ValueError, match=r"moves something|cannot move"):
        entry("x", source, target, amount)
