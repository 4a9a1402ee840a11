"""A ledger in memory, with the rules of core.ledger: for the simulation and the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runtimed.core.ledger import Entry, KeyPostedOtherwise, LedgerAccount, check_moves, moves, same_move


class Ledger:
    """Entries and what they sum to. The store keeps the same rules in SQL."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def post(self, entries: Iterable[Entry]) -> list[Entry]:
        """Post all or nothing, answering those that were new. Idempotent by key.

        Raises:
            Overdrawn, KeyPostedOtherwise: nothing was posted.
        """
        new: dict[str, Entry] = {}
        for entry in entries:
            known = self._entries.get(entry.key) or new.get(entry.key)
            if known is None:
                new[entry.key] = entry
            elif not same_move(known, entry):
                raise KeyPostedOtherwise(f"{entry.key} was posted before and moved something else")
        check_moves(self.balances(), new.values())
        self._entries.update(new)
        return list(new.values())

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def balances(self) -> Mapping[LedgerAccount, int]:
        return moves(self._entries.values())

    def balance(self, account: LedgerAccount) -> int:
        return self.balances().get(account, 0)
