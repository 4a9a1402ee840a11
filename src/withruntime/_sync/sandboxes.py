# Generated from src/withruntime/_async/sandboxes.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""All sandboxes of an account: making, finding and ending them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from withruntime import _calls, _flows
from withruntime._calls import OnProgress
from withruntime._errors import InvalidRequestError, RuntimeError
from withruntime._flows import Creation
from withruntime._retry import OnCapacityWait
from withruntime._sync import _io
from withruntime._sync.page import Page
from withruntime._sync.sandbox import LAST_WORK_MAX_S, Sandbox
from withruntime._sync.transport import Transport
from withruntime._values import Json

_log = logging.getLogger("withruntime")

CHANGES_AT_ONCE = 8


def _log_wait(sandbox_id: str) -> None:
    _log.info("waiting for the sandbox %s to start", sandbox_id)


def _log_progress(doing: str) -> None:
    _log.info("the sandbox is starting: %s", doing)


class Sandboxes:
    """The sandboxes that a key can see."""

    def __init__(self, t: Transport) -> None:
        self._t = t

    def create(
        self,
        *,
        wait: bool = True,
        idempotency_key: str | None = None,
        keep: bool = False,
        wait_for_capacity: float | None = None,
        on_capacity_wait: OnCapacityWait | None = None,
        **fields: Any,  # noqa: ANN401 - typed in Sandbox.create; here they are passed on
    ) -> Sandbox:
        """Make a sandbox and return once it runs; with `wait=False` as soon as it exists.

        A `with` block deletes it at its end, and only stops it with `keep=True`. While the service has no room the
        call waits, for `wait_for_capacity` seconds at most (120 by default), and tells `on_capacity_wait` each time.
        Cancelled at any moment, it leaves no sandbox behind. A start that takes long is told at level INFO of the
        logger `withruntime`, with what the service does.

        Raises:
            TypeError: a field that a sandbox does not have.
            InvalidRequestError: a value is wrong; `details` names every one.
            RuntimeError: it did not come to run (`start_failed`), or there was no room (`no_capacity`).
        """
        call = _calls.create_sandbox(
            fields, key=idempotency_key, wait=wait, room_wait_s=self._t.room_wait_s(wait_for_capacity)
        )
        creation = Creation(call=call, wait=wait)
        if wait and _log.isEnabledFor(logging.INFO):
            # In steps only where somebody listens: else one request waits for all of it.
            told = replace(call, wait_s=_flows.PROGRESS_S)
            creation = Creation(call=told, wait=True, on_progress=_log_progress, on_wait=_log_wait)
        return self._create(creation, on_capacity_wait, keep=keep)

    def create_telling(
        self,
        on_progress: OnProgress,
        *,
        on_capacity_wait: OnCapacityWait | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> Sandbox:
        """The same as `create`, and tells `on_progress` in a clause what a start that takes long does.

        The first sandbox of a size boots, for some 20 s where there is no hardware virtualisation; later ones start in
        about a second.
        """
        call = _calls.create_sandbox(fields, key=None, wait=True, room_wait_s=self._t.room_wait_s(None))
        creation = Creation(call=replace(call, wait_s=_flows.PROGRESS_S), wait=True, on_progress=on_progress)
        return self._create(creation, on_capacity_wait, keep=False)

    def _create(self, creation: Creation, on_capacity_wait: OnCapacityWait | None, *, keep: bool) -> Sandbox:
        self._t.ready()
        policy = self._t.policy_for_room(on_capacity_wait)
        try:
            info = self._t.drive(_flows.create(creation, policy))
        except BaseException as error:
            if creation.info is not None or not isinstance(error, RuntimeError):
                _io.finish(lambda: self._abandon(creation), within_s=LAST_WORK_MAX_S)
            raise
        sandbox = Sandbox(self._t, info)
        sandbox._delete_at_block_end = not keep and not info.get("reused", False)
        return sandbox

    def get_or_create(
        self,
        name: str,
        *,
        wait: bool = True,
        idempotency_key: str | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> Sandbox:
        """The sandbox that holds a name, woken if it was paused, or a new one by that name.

        A `with` block deletes it at its end only if it is new.
        """
        return self.create(
            wait=wait, idempotency_key=idempotency_key, **{**fields, "name": name, "get_or_create": True}
        )

    def get(self, sandbox_id: str) -> Sandbox:
        """One sandbox by its id.

        Raises:
            NotFoundError: there is none.
        """
        return Sandbox(self._t, self._t.send(_calls.get_sandbox(sandbox_id)))

    def list(
        self,
        *,
        state: Sequence[str] | None = None,
        include_stopped: bool = False,
        labels: dict[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Page[Sandbox]:
        """The sandboxes, oldest first; all `labels` must match. Iterating goes through all pages of `limit`."""
        query = _calls.list_query(state=state, include_stopped=include_stopped, labels=labels, name=name, limit=limit)
        return self._page(query, None)

    def delete(self, sandbox_id: str, idempotency_key: str | None = None) -> Json:
        """Delete one by its id, in whatever state it is. Deleting again answers the same."""
        return self._t.send(_calls.delete_sandbox(sandbox_id, key=idempotency_key))

    def stop_all(self, *, labels: dict[str, str]) -> Json:
        """Stop all that have these labels. Returns the ids `stopped` and `failed`."""
        return self._end_all("stopped", labels, include_stopped=False)

    def delete_all(self, *, labels: dict[str, str]) -> Json:
        """Delete all that have these labels. Returns the ids `deleted` and `failed`."""
        return self._end_all("deleted", labels, include_stopped=True)

    def _page(self, query: Json, cursor: str | None) -> Page[Sandbox]:
        page = self._t.send(_calls.list_sandboxes({**query, "cursor": cursor}))
        found = [Sandbox(self._t, info) for info in page.data]
        return Page(found, page.next_cursor, lambda following: self._page(query, following))

    def _end_all(self, done: str, labels: dict[str, str], *, include_stopped: bool) -> Json:
        if not labels:
            raise InvalidRequestError("Name a label: everything is too much at once.", code="invalid_request")
        query = _calls.list_query(state=None, include_stopped=include_stopped, labels=labels, name=None, limit=100)
        outcome: dict[str, Any] = {done: [], "failed": []}

        def end(info: Json) -> None:
            sandbox_id = info["id"]
            call = _calls.delete_sandbox(sandbox_id)
            if done == "stopped":
                call = _calls.change_sandbox(sandbox_id, "stop", wait_s=_calls.SETTLE_S)
            try:
                self._t.send(call)
                outcome[done].append(sandbox_id)
            except RuntimeError as error:
                _log.warning("the sandbox %s could not be %s: %s", sandbox_id, done, error)
                outcome["failed"].append(sandbox_id)

        found = self._t.drive(_flows.all_sandboxes(query, self._t.policy))
        _io.for_each(found, end, at_once=CHANGES_AT_ONCE)
        return outcome

    def _abandon(self, creation: Creation) -> None:
        try:
            self._t.drive(_flows.abandon(creation, self._t.policy))
        except RuntimeError as error:
            _log.warning("a sandbox that nobody waits for was left to its lease: %s", error)
