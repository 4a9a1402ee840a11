"""What sandboxes may reach and the secrets they may use: binds policies to machines, changes both while they run."""

from __future__ import annotations

import asyncio
import secrets as randomness
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runtimed.core.clock import Clock
from runtimed.core.egress import EgressBinding, EgressDoor
from runtimed.core.errors import Conflict, InvalidRequest, NotFound
from runtimed.core.ids import AccountId, SandboxId, new_id
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.secrets import PLACEHOLDER_PREFIX, SecretPlan, SecretRecord, check_secret
from runtimed.store.egress_secrets import SecretStore

PLACEHOLDER_BYTES = 20
SECRETS_MAX = 256
"""Of one account: each is looked at for every connection to a host."""


class Ways:
    """How machines are bound to what they may reach. Without a door they are bound to nothing, and reach nothing."""

    def __init__(self, door: EgressDoor | None = None) -> None:
        self._door = door

    def bind(self, record: SandboxRecord) -> None:
        """Before its machine runs, by every way in which it can start, and again whenever its rules change."""
        if self._door is None:
            return
        network = record.network
        self._door.bind(
            record.id,
            EgressBinding(
                account_id=record.account_id,
                rules=network.rules,
                secrets=None if network.secrets is None else frozenset(network.secrets),
            ),
        )

    def unbind(self, sandbox_id: SandboxId) -> None:
        """Its machine is gone. Twice is once."""
        if self._door is not None:
            self._door.unbind(sandbox_id)

    def check_secrets(self, account_id: AccountId, names: Sequence[str] | None) -> None:
        """Raises InvalidRequest for each name that no secret of the account has: a slip, else seen late."""
        if self._door is None or not names:
            return
        known = {record.plan.name for record in self._door.secrets if record.account_id == account_id}
        unknown = [(place, name) for place, name in enumerate(names) if name not in known]
        if unknown:
            issues = [
                {"field": f"secrets.{place}", "message": f"there is no secret {name[:128]!r}"}
                for place, name in unknown
            ]
            raise InvalidRequest(issues, hint="runtime secrets ls shows those that there are")

    def placeholders(self, sandbox_id: SandboxId) -> Mapping[str, str]:
        """The variables by which a bound sandbox sees its secrets."""
        if self._door is None:
            return {}
        return {secret.plan.variable: secret.placeholder for secret in self._door.secrets_of(sandbox_id)}


class Secrets:
    """The secrets of accounts. Values come in, and never go out again."""

    def __init__(self, *, door: EgressDoor, store: SecretStore, clock: Clock) -> None:
        self._door, self._store, self._clock = door, store, clock
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """At the start: give the gateway what is stored. Raises HostUnavailable when a value cannot be opened."""
        for record in await self._store.all():
            self._door.put_secret(record)

    async def put(self, account_id: AccountId, plan: SecretPlan, value: str) -> SecretRecord:
        """Store or replace; a replaced one keeps its placeholder. Counts from the next request on.

        Raises:
            InvalidRequest: naming each wrong field, never the value.
            Conflict: there are too many, or another one is seen in the same variable.
        """
        if wrong := check_secret(plan, value):
            raise InvalidRequest(wrong)
        async with self._writing:
            others = await self._store.page(account_id, after="", limit=SECRETS_MAX + 1)
            known = next((record for record in others if record.plan.name == plan.name), None)
            self._check_others(others, known, plan)
            now_s = self._clock.now_s()
            secret_id = known.id if known else new_id()
            record = SecretRecord(
                id=secret_id,
                account_id=account_id,
                plan=replace(plan, env=plan.env or (known.plan.env if known else None)),
                placeholder=known.placeholder
                if known
                else PLACEHOLDER_PREFIX + randomness.token_hex(PLACEHOLDER_BYTES),
                sealed=self._door.seal(secret_id, value),
                created_at_s=known.created_at_s if known else now_s,
                updated_at_s=now_s,
            )
            await self._store.put(record)
            self._door.put_secret(record)
        return record

    async def page(self, account_id: AccountId, *, after: str, limit: int) -> tuple[list[SecretRecord], bool]:
        """Secrets by name, and whether there are more."""
        found = await self._store.page(account_id, after=after, limit=limit + 1)
        return found[:limit], len(found) > limit

    async def delete(self, account_id: AccountId, name: str) -> None:
        """Erase it; its placeholder stops working at once. Raises NotFound."""
        async with self._writing:
            record = await self._store.named(account_id, name)
            if record is None:
                raise NotFound(f"there is no secret {name!r}", hint="runtime secrets ls shows those that there are")
            self._door.drop_secret(record.id)
            await self._store.drop(record.id)

    @staticmethod
    def _check_others(others: list[SecretRecord], known: SecretRecord | None, plan: SecretPlan) -> None:
        if known is None and len(others) >= SECRETS_MAX:
            raise Conflict(f"an account has at most {SECRETS_MAX} secrets", hint="delete one that is not used")
        variable = plan.env or (known.plan.variable if known else plan.name)
        for other in others:
            if other.plan.name != plan.name and other.plan.variable == variable:
                raise Conflict(
                    f"the secret {other.plan.name!r} is seen in the variable {variable} already",
                    hint="give one of them another env",
                )
