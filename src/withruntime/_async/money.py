"""What a key may spend and what was done with it: limits and the audit log. Sums of money are microdollars as text."""

from typing import Any

from withruntime import _calls
from withruntime._async.transport import AsyncTransport
from withruntime._values import Json


class AsyncLimits:
    """`runtime.limits`: what bounds this key. Only the operator changes it."""

    def __init__(self, t: AsyncTransport) -> None:
        self._t = t

    async def get(self) -> dict[str, Any]:
        """Money over any 24 hours, the trial, credit, and how much the account may run at once, with what is used."""
        return await self._t.send(_calls.get("/v1/limits", _calls.as_object))


class AsyncAudit:
    """`runtime.audit`: every change of the account with who, when, from where and its request's id."""

    def __init__(self, t: AsyncTransport) -> None:
        self._t = t

    async def list(
        self, *, action: str | None = None, limit: int | None = None, before: str | None = None
    ) -> dict[str, Any]:
        """One page, newest first: `events`, and `next` to give as `before` for older ones.

        `action` is one action (`sandbox.create`) or a group that ends in a dot (`sandbox.`).
        """
        query = {"action": action, "limit": limit, "before": before}
        given = {name: value for name, value in query.items() if value is not None}
        return await self._t.send(_calls.get("/v1/audit", _calls.as_object, given))

    async def verify(self) -> Json:
        """Check the whole chain of the service: `clean`, how many `lines`, and each problem with the line's number."""
        return await self._t.send(_calls.get("/v1/audit/verify", _calls.as_object))
