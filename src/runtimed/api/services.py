"""Everything that a route may use, made once by `main` and handed to the application."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request

from runtimed.api.admission import CallLimits
from runtimed.api.auditing import Auditor
from runtimed.api.idempotency import Idempotency
from runtimed.api.metrics import Metrics
from runtimed.api.ports import (
    AccountingVerbs,
    EgressRecordVerbs,
    ForkVerbs,
    MoveVerbs,
    SandboxVerbs,
    SecretVerbs,
    SnapshotVerbs,
)
from runtimed.api.presence import Presence
from runtimed.core.clock import Clock
from runtimed.core.egress import EgressDoor
from runtimed.core.sandbox import Caller
from runtimed.store.accounts import Accounts


@dataclass(frozen=True, kw_only=True)
class Services:
    sandboxes: SandboxVerbs
    moves: MoveVerbs
    forks: ForkVerbs
    snapshots: SnapshotVerbs
    secrets: SecretVerbs
    accounting: AccountingVerbs
    auditor: Auditor
    clock: Clock
    egress: EgressDoor
    egress_records: EgressRecordVerbs
    forbidden_ports: list[int]
    """Refused whatever a sandbox's rules say."""
    accounts: Accounts
    idempotency: Idempotency
    limits: CallLimits
    presence: Presence
    metrics: Metrics
    closing: asyncio.Event
    """Set once the service stops; nothing new is begun then."""
    region: str
    default_image: str


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def caller_of(request: Request) -> Caller:
    """Who is asking; the `Authenticate` middleware has put it there before any route runs."""
    caller = request.scope["caller"]
    assert isinstance(caller, Caller)
    return caller
