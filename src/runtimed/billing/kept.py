"""Turns a tab into the document that the store keeps, and back, without losing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runtimed.billing.holds import Payer
from runtimed.billing.pricebook import Rates
from runtimed.billing.rating import Terms
from runtimed.billing.tab import Tab
from runtimed.core.ledger import KeptTab
from runtimed.core.usage import Used

_PLAIN = ("paid_ms", "paid_mb_ms", "stored_mb", "last_seq", "step", "held", "charged", "closed")


def keep(tab: Tab, *, running: bool) -> KeptTab:
    """The tab as the store keeps it. `running`: it takes one of the account's places."""
    document: dict[str, object] = {name: getattr(tab, name) for name in _PLAIN}
    document["payer"] = asdict(tab.payer)
    document["terms"] = asdict(tab.terms) | {"rates": tab.terms.rates.to_json()}
    document["used"], document["credited"] = asdict(tab.used), asdict(tab.credited)
    return KeptTab(
        sandbox_id=tab.payer.sandbox_id,
        account_id=tab.payer.account_id,
        key_id=tab.payer.key_id,
        unit="trial_ms" if tab.payer.funding == "trial" else "micros",
        running=running and not tab.closed,
        closed=tab.closed,
        charged=tab.charged,
        held=tab.held,
        document=document,
    )


def tab_of(kept: KeptTab) -> Tab:
    document: Mapping[str, Any] = kept.document
    terms = dict(document["terms"])
    return Tab(
        payer=Payer(**document["payer"]),
        terms=Terms(**{**terms, "rates": Rates.from_json(terms["rates"])}),
        used=Used(**document["used"]),
        credited=Used(**document["credited"]),
        **{name: document[name] for name in _PLAIN},
    )
