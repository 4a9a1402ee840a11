"""A count is worded the way people say it."""

from __future__ import annotations

import pytest

from runtimed.core.wording import are, counted


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(0, "sandbox", "0 sandboxes"), (1, "sandbox", "1 sandbox"), (2, "sandbox", "2 sandboxes"), (2, "line", "2 lines")],
)
def test_one_is_no_plural(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said


def test_the_verb_follows_the_number() -> None:
    assert (are(1), are(0), are(3)) == ("is", "are", "are")
