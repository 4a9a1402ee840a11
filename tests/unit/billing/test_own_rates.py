"""The rates that `runtime compare` shows for this product are those of the price book."""

from __future__ import annotations

from fractions import Fraction

from runtimed.billing.pricebook import default_book
from runtimed.core.money import MICROS_PER_USD
from withruntime._compare import providers


def test_our_own_rates_in_the_comparison_are_those_of_the_price_book() -> None:
    ours = {rate.counts: (rate.usd * MICROS_PER_USD, rate.per) for rate in providers()[0].rates}
    book = default_book().periods[-1].rates

    assert providers()[0].name == "Runtime"
    assert ours == {"cpu_used": (book.cpu_vcpu_hour, "hour"), "memory": (book.memory_gib_hour, "hour")}
    assert all(isinstance(usd, Fraction) for usd, _ in ours.values())
