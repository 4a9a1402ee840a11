"""All sandboxes of an account: making, finding and ending them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from withruntime import _calls, _flows
from withruntime._async import _io
from withruntime._async.page import AsyncPage
from withruntime._async.sandbox import LAST_WORK_MAX_S, AsyncSandbox
from withruntime._async.transport import AsyncTransport
from withruntime._calls import OnProgress
from withruntime._errors import InvalidRequestError, RuntimeError
from withruntime._flows import Creation
from withruntime._retry import OnCapacityWait
from withruntime._values import Json

_log = logging.getLogger("withruntime")

CHANGES_AT_ONCE = 8


def _log_wait(sandbox_id: str) -> None:
    _log.info("waiting for the sandbox %s to start", sandbox_id)


def _log_progress(doing: str) -> None:
    _log.info("the sandbox is starting: %s", doing)


class AsyncSandboxes:
    """The sandboxes that a key can see."""

    def __init__(self, t: AsyncTransport) -> None:
        self._t = t

    async def create(
        self,
        *,
        wait: bool = True,
        idempotency_key: str | None = None,
        keep: bool = False,
        wait_for_capacity: float | None = None,
        on_capacity_wait: OnCapacityWait | None = None,
        **fields: Any,  # noqa: ANN401 - typed in Sandbox.create; here they are passed on
    ) -> AsyncSandbox:
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
        return await self._create(creation, on_capacity_wait, keep=keep)

    async def create_telling(
        self,
        on_progress: OnProgress,
        *,
        on_capacity_wait: OnCapacityWait | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> AsyncSandbox:
        """The same as `create`, and tells `on_progress` in a clause what a start that takes long does.

        The first sandbox of a size boots, for some 20 s where there is no hardware virtualisation; later ones start in
        about a second.
        """
        call = _calls.create_sandbox(fields, key=None, wait=True, room_wait_s=self._t.room_wait_s(None))
        creation = Creation(call=replace(call, wait_s=_flows.PROGRESS_S), wait=True, on_progress=on_progress)
        return await self._create(creation, on_capacity_wait, keep=False)

    async def _create(self, creation: Creation, on_capacity_wait: OnCapacityWait | None, *, keep: bool) -> AsyncSandbox:
        await self._t.ready()
        policy = self._t.policy_for_room(on_capacity_wait)
        try:
            info = await self._t.drive(_flows.create(creation, policy))
        except BaseException as error:
            if creation.info is not None or not isinstance(error, RuntimeError):
                await _io.finish(lambda: self._abandon(creation), within_s=LAST_WORK_MAX_S)
            raise
        sandbox = AsyncSandbox(self._t, info)
        sandbox._delete_at_block_end = not keep and not info.get("reused", False)
        return sandbox

    async def get_or_create(
        self,
        name: str,
        *,
        wait: bool = True,
        idempotency_key: str | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> AsyncSandbox:
        """The sandbox that holds a name, woken if it was paused, or a new one by that name.

        A `with` block deletes it at its end only if it is new.
        """
        return await self.create(
            wait=wait, idempotency_key=idempotency_key, **{**fields, "name": name, "get_or_create": True}
        )

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """One sandbox by its id.

        Raises:
            NotFoundError: there is none.
        """
        return AsyncSandbox(self._t, await self._t.send(_calls.get_sandbox(sandbox_id)))

    async def list(
        self,
        *,
        state: Sequence[str] | None = None,
        include_stopped: bool = False,
        labels: dict[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> AsyncPage[AsyncSandbox]:
        """The sandboxes, oldest first; all `labels` must match. Iterating goes through all pages of `limit`."""
        query = _calls.list_query(state=state, include_stopped=include_stopped, labels=labels, name=name, limit=limit)
        return await self._page(query, None)

    async def delete(self, sandbox_id: str, idempotency_key: str | None = None) -> Json:
        """Delete one by its id, in whatever state it is. Deleting again answers the same."""
        return await self._t.send(_calls.delete_sandbox(sandbox_id, key=idempotency_key))

    async def stop_all(self, *, labels: dict[str, str]) -> Json:
        """Stop all that have these labels. Returns the ids `stopped` and `failed`."""
        return await self._end_all("stopped", labels, include_stopped=False)

    async def delete_all(self, *, labels: dict[str, str]) -> Json:
        """Delete all that have these labels. Returns the ids `deleted` and `failed`."""
        return await self._end_all("deleted", labels, include_stopped=True)

    async def _page(self, query: Json, cursor: str | None) -> AsyncPage[AsyncSandbox]:
        page = await self._t.send(_calls.list_sandboxes({**query, "cursor": cursor}))
        found = [AsyncSandbox(self._t, info) for info in page.data]
        return AsyncPage(found, page.next_cursor, lambda following: self._page(query, following))

    async def _end_all(self, done: str, labels: dict[str, str], *, include_stopped: bool) -> Json:
        if not labels:
            raise InvalidRequestError("Name a label: everything is too much at once.", code="invalid_request")
        query = _calls.list_query(state=None, include_stopped=include_stopped, labels=labels, name=None, limit=100)
        outcome: dict[str, Any] = {done: [], "failed": []}

        async def end(info: Json) -> None:
            sandbox_id = info["id"]
            call = _calls.delete_sandbox(sandbox_id)
            if done == "stopped":
                call = _calls.change_sandbox(sandbox_id, "stop", wait_s=_calls.SETTLE_S)
            try:
                await self._t.send(call)
                outcome[done].append(sandbox_id)
            except RuntimeError as error:
                _log.warning("the sandbox %s could not be %s: %s", sandbox_id, done, error)
                outcome["failed"].append(sandbox_id)

        found = await self._t.drive(_flows.all_sandboxes(query, self._t.policy))
        await _io.for_each(found, end, at_once=CHANGES_AT_ONCE)
        return outcome

    async def _abandon(self, creation: Creation) -> None:
        try:
            await self._t.drive(_flows.abandon(creation, self._t.policy))
        except RuntimeError as error:
            _log.warning("a sandbox that nobody waits for was left to its lease: %s", error)
