"""The client: one service, one key, one pool of connections."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from withruntime import _calls, _settings
from withruntime._async.money import AsyncAudit, AsyncLimits
from withruntime._async.sandboxes import AsyncSandboxes
from withruntime._async.secrets import AsyncSecrets
from withruntime._async.snapshots import AsyncSnapshots
from withruntime._async.transport import AsyncTransport, ClientOptions
from withruntime._retry import RetryPolicy
from withruntime._values import Json


class AsyncRuntime:
    """Talks to a service: the one at `base_url` or RUNTIME_API_URL, else the local one, started when none runs.

    The key is `api_key`, else RUNTIME_API_KEY, else that of the local service, else that of the saved login.
    `timeout` is the silence allowed on a connection, in seconds; `wait_for_capacity` is how long a create waits
    while the service has no room. `on_queued` is told how many calls wait for one of the `max_connections`.

    Raises:
        ValueError: the address is not a bare https origin, nor http on this machine.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        timeout: float = 300,
        max_retries: int = 4,
        max_connections: int = 48,
        wait_for_capacity: float = 120,
        on_queued: Callable[[int], None] | None = None,
    ) -> None:
        options = ClientOptions(
            api_key=api_key,
            origin=_settings.configured_origin(base_url, os.environ),
            policy=RetryPolicy(max_retries=max_retries, timeout_s=timeout, room_wait_s=wait_for_capacity),
            max_connections=max_connections,
            on_queued=on_queued,
        )
        self._t = AsyncTransport(options)
        self.sandboxes = AsyncSandboxes(self._t)
        self.snapshots = AsyncSnapshots(self._t)
        self.secrets = AsyncSecrets(self._t)
        self.limits = AsyncLimits(self._t)
        self.audit = AsyncAudit(self._t)

    @property
    def base_url(self) -> str | None:
        """The address of the service; None until the local one was found."""
        return self._t.origin

    async def me(self) -> Json:
        """Who the key belongs to."""
        return await self._t.send(_calls.get("/v1/me", _calls.as_object))

    async def usage(self) -> Json:
        """Credit, holds, what the account spent in all, and what it used in the last 30 days, by sandbox."""
        return await self._t.send(_calls.get("/v1/usage", _calls.as_object))

    async def usage_requests(self, range: str = "24h") -> Json:
        """How often each operation was asked for, and refused: in the last `24h`, `7d`, `30d` or `90d`."""
        return await self._t.send(_calls.get("/v1/usage/requests", _calls.as_object, {"range": range}))

    async def usage_export(
        self, since: str, until: str, *, cursor: str | None = None, limit: int | None = None
    ) -> Json:
        """One page of everything that was counted from `since` until `until`, as `data` and as `csv`.

        Both are moments such as `2026-11-01T00:00:00Z`. Ask again with `nextCursor` until it is None; only the first
        page's `csv` has a heading. Nothing before `finalThrough` will change any more.
        """
        query = {"since": since, "until": until, "cursor": cursor, "limit": limit}
        given = {name: value for name, value in query.items() if value is not None}
        return await self._t.send(_calls.get("/v1/usage/export", _calls.as_object, given))

    async def request(self, method: str, path: str, **kwargs: Any) -> Any:  # noqa: ANN401 - any route, any answer
        """Call a route that has no method here. Takes `query`, `body` and `idempotency_key`; returns the JSON."""
        return await self._t.send(_calls.free_request(method, path, kwargs))

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self._t.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
