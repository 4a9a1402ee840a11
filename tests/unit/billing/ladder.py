"""What the tests of billing stand on: the default rates, terms, a payer, records."""

from __future__ import annotations

from typing import Any

from runtimed.billing.holds import Payer
from runtimed.billing.pricebook import default_book
from runtimed.billing.rating import Terms
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.usage import UsageRecord, Used

RATES = default_book().periods[0].rates
ACCOUNT = AccountId("acc")
KEY = KeyId("key")
SBX = SandboxId("sbx")
HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000


def terms(**changed: Any) -> Terms:
    return Terms(**{"rates": RATES, "vcpu": 2, "memory_mib": 4096, **changed})


def payer(sandbox: SandboxId = SBX, **changed: Any) -> Payer:
    return Payer(**{"account_id": ACCOUNT, "key_id": KEY, "sandbox_id": sandbox, **changed})


def record(seq: int, used: Used, *, sandbox: SandboxId = SBX, credited: bool = False) -> UsageRecord:
    return UsageRecord(
        sandbox_id=sandbox, seq=seq, at_ms=seq * 10_000, sample_hash=f"{seq:064x}", used=used, credited=credited
    )
