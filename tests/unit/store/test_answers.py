"""Answers kept for retries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimed.core.ids import AccountId
from runtimed.store.answers import KEPT_S, AnswerStore, KeptAnswer
from runtimed.store.database import Database

NOW_S = 1000.0
RUNNING = KeptAnswer(account_id=AccountId("a"), key="k", request_hash="h", sandbox_id="s", status=None, body={})
DONE = replace(RUNNING, status=201, body={"id": "é"})


@pytest.fixture
def answers(database: Database) -> AnswerStore:
    return AnswerStore(database)


async def test_a_key_is_claimed_once(answers: AnswerStore) -> None:
    assert await answers.claim(RUNNING, now_s=NOW_S) is None
    assert await answers.claim(RUNNING, now_s=NOW_S) == RUNNING


async def test_a_finished_answer_is_found_for_a_day(answers: AnswerStore) -> None:
    await answers.claim(RUNNING, now_s=NOW_S)
    await answers.finish([DONE], now_s=NOW_S)

    assert await answers.find(AccountId("a"), "k", now_s=NOW_S + KEPT_S - 1) == DONE
    assert await answers.find(AccountId("a"), "k", now_s=NOW_S + KEPT_S) is None


async def test_an_expired_key_can_be_claimed_again(answers: AnswerStore) -> None:
    await answers.finish([DONE], now_s=NOW_S)

    assert await answers.claim(RUNNING, now_s=NOW_S + KEPT_S + 1) is None


async def test_a_key_given_up_is_free(answers: AnswerStore) -> None:
    await answers.claim(RUNNING, now_s=NOW_S)
    await answers.give_up(AccountId("a"), "k")

    assert await answers.claim(RUNNING, now_s=NOW_S) is None


async def test_a_new_service_frees_what_the_old_one_was_running(answers: AnswerStore) -> None:
    await answers.claim(RUNNING, now_s=NOW_S)
    await answers.finish([replace(DONE, key="other")], now_s=NOW_S)

    await answers.abandon_running()

    assert await answers.find(AccountId("a"), "k", now_s=NOW_S) is None
    assert await answers.find(AccountId("a"), "other", now_s=NOW_S) is not None


async def test_two_accounts_may_use_one_key(answers: AnswerStore) -> None:
    await answers.claim(RUNNING, now_s=NOW_S)

    assert await answers.claim(replace(RUNNING, account_id=AccountId("b")), now_s=NOW_S) is None
