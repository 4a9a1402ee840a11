"""The whole service in this process over a simulated node, spoken to like any client does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from runtimed.core.clock import ManualClock
from runtimed.core.wait import wait_for
from runtimed.main import Service, build_service
from runtimed.settings import Settings
from runtimed.sim.guest import Scripted, SimGuest
from runtimed.sim.node import SimNode
from runtimed.store.accounts import Accounts
from runtimed.store.database import Database, open_database, sqlite_url


@dataclass(kw_only=True)
class Api:
    """A client with a full key, and what is behind the service."""

    http: httpx.AsyncClient
    node: SimNode
    clock: ManualClock
    service: Service
    accounts: Accounts
    database: Database
    account_id: str
    created: list[str] = field(default_factory=list)

    async def create(self, **body: Any) -> dict[str, Any]:
        reply = await self.http.post("/v1/sandboxes", json=body, headers={"Prefer": "wait=10"})
        assert reply.status_code in (200, 201), reply.text
        return reply.json()  # type: ignore[no-any-return]

    async def call(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return await self.http.request(method, path, json=body, headers=headers, **options)

    async def exec(self, sandbox_id: str, key: str | None = None, **body: Any) -> httpx.Response:
        return await self.call("POST", f"/v1/sandboxes/{sandbox_id}:exec", body, key=key)

    def guest(self, sandbox_id: str) -> SimGuest:
        return self.node.guests[sandbox_id]  # type: ignore[index]

    async def new_key(self, *, kind: str = "full", account_wide: bool = True) -> tuple[str, dict[str, str]]:
        """A key's id, and the headers that use it."""
        key, text = await self.accounts.create_key(
            self.account_id,  # type: ignore[arg-type]
            name="test",
            kind=kind,  # type: ignore[arg-type]
            account_wide=account_wide,
        )
        return key.id, {"Authorization": f"Bearer {text}"}

    def script(self, **what: Any) -> None:
        """What every command of machines started from now on does."""
        self.node.script = lambda command: Scripted(**what)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    clock = ManualClock()
    node = SimNode(clock=clock)
    settings = Settings(state_dir=tmp_path, cache_dir=tmp_path, exec_per_sandbox=4)
    service = await build_service(settings, node=node, database=database, clock=clock)
    accounts = Accounts(database, clock)
    account_id = await accounts.first_account()
    _, text = await accounts.create_key(account_id, name="test", kind="full")
    transport = httpx.ASGITransport(service.app)
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        yield Api(
            http=http,
            node=node,
            clock=clock,
            service=service,
            accounts=accounts,
            database=database,
            account_id=account_id,
        )
    if node.start_gate is not None:
        node.start_gate.set()
    await service.recovery.leave(end=True)
    await service.services.idempotency.close()
    await database.close()


@pytest.fixture
async def port(api: Api) -> AsyncIterator[int]:
    """The same service on a real socket, for what only a real connection shows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            api.service.app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="websockets-sansio",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))

        async def started() -> bool | None:
            return server.started or None

        await wait_for("listening", started, within_s=5, every_s=0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving
