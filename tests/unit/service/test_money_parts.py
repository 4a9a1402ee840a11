"""What the parts of money are made of: the operator's price book."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimed.billing.pricebook import default_book
from runtimed.money_parts import price_book
from runtimed.settings import CommandError, Settings


def test_without_a_book_of_their_own_operators_have_the_packages(tmp_path: Path) -> None:
    assert price_book(Settings(state_dir=tmp_path)) == default_book()


@pytest.mark.parametrize(("text", "said"), [(None, "cannot be read"), ("currency = 'EUR'", "currency: must be USD")])
def test_a_book_that_cannot_be_used_stops_the_service_with_one_sentence(
    tmp_path: Path, text: str | None, said: str
) -> None:
    book = tmp_path / "prices.toml"
    if text is not None:
        book.write_text(text)

    with pytest.raises(CommandError, match=said):
        price_book(Settings(state_dir=tmp_path, price_book=str(book)))
