# Generated from src/withruntime/_async/snapshots.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Snapshots of an account: what was kept of sandboxes, to begin others from."""

from typing import Any

from withruntime import _snapshot_calls
from withruntime._sync.page import Page
from withruntime._sync.transport import Transport
from withruntime._values import Json


class Snapshots:
    """`runtime.snapshots`. Begin a sandbox from one with `Sandbox.create(snapshot=...)`."""

    def __init__(self, t: Transport) -> None:
        self._t = t

    def create(self, sandbox_id: str, **fields: Any) -> Json:  # noqa: ANN401
        """Keep a sandbox, and return once that is done: `mode` is `memory` or `disk`.

        Also takes `name`, `labels` and `retention_days` (1 to 365; 30 where none is named).

        Raises:
            TypeError: a field that a snapshot does not have.
            RuntimeError: it could not be made (`snapshot_failed`).
        """
        call = _snapshot_calls.take(sandbox_id, fields)
        made = _snapshot_calls.made(call, self._t.policy, mode=fields.get("mode"), within_s=None)
        return self._t.drive(made)

    def get(self, snapshot_id: str) -> Json:
        """One snapshot.

        Raises:
            NotFoundError: there is none.
        """
        return self._t.send(_snapshot_calls.get(snapshot_id))

    def list(
        self,
        *,
        sandbox_id: str | None = None,
        name: str | None = None,
        state: str | None = None,
        limit: int | None = None,
    ) -> Page[Json]:
        """Snapshots, oldest first, of one sandbox where it is named. Iterating goes through all pages of `limit`."""
        return self._page({"sandboxId": sandbox_id, "name": name, "state": state, "limit": limit}, None)

    def update(
        self,
        snapshot_id: str,
        *,
        idempotency_key: str | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> Json:
        """Change `name` or `labels`; with `if_labels` only while its labels are those.

        Raises:
            ConflictError: they are others by now (`snapshot_metadata_changed`).
        """
        return self._t.send(_snapshot_calls.update(snapshot_id, fields, key=idempotency_key))

    def extend(self, snapshot_id: str, retention_days: int) -> Json:
        """Keep it for so many days from now."""
        return self._t.send(_snapshot_calls.extend(snapshot_id, retention_days))

    def delete(self, snapshot_id: str) -> None:
        """Remove it; what began from it keeps what it needs. Deleting again changes nothing."""
        self._t.send(_snapshot_calls.delete(snapshot_id))

    def _page(self, query: Json, cursor: str | None) -> Page[Json]:
        page = self._t.send(_snapshot_calls.page({**query, "cursor": cursor}))
        return Page(page.data, page.next_cursor, lambda following: self._page(query, following))
