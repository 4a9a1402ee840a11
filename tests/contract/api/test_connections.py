"""What only a real connection shows: slow readers, clients that leave, quiet streams, keep-alive."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from runtimed.api import streaming
from runtimed.core.commands import Began, Command, Output, ProcessEvent
from runtimed.core.ids import ProcessId
from runtimed.core.wait import wait_for

from .conftest import Api

CHUNK = b"x" * 65_536


class Faucet:
    """A process that writes as fast as it is read."""

    def __init__(self) -> None:
        self.chunks = 0
        self.closed = asyncio.Event()

    @asynccontextmanager
    async def run(self, process_id: ProcessId, command: Command) -> AsyncIterator[AsyncIterator[ProcessEvent]]:
        try:
            yield self._events(process_id)
        finally:
            self.closed.set()

    async def _events(self, process_id: ProcessId) -> AsyncIterator[ProcessEvent]:
        yield Began(process_id=process_id, pid=1)
        while True:
            yield Output(stream="stdout", offset=self.chunks * len(CHUNK), data=CHUNK)
            self.chunks += 1


@asynccontextmanager
async def connection(api: Api, port: int, path: str, body: object) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
    text = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: {api.http.headers['Authorization']}",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
    ]
    writer.write("\r\n".join([*head, "", ""]).encode() + text)
    try:
        yield reader
    finally:
        writer.close()


@pytest.fixture
async def faucet(api: Api) -> tuple[Faucet, str]:
    made = await api.create()
    faucet = Faucet()
    api.guest(made["id"]).processes.run = faucet.run  # type: ignore[method-assign, assignment]
    return faucet, f"/v1/sandboxes/{made['id']}:exec"


async def test_a_slow_reader_holds_the_process_back_and_not_the_service_s_memory(
    api: Api, port: int, faucet: tuple[Faucet, str]
) -> None:
    running, path = faucet
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with connection(api, port, path, {"command": "yes", "stream": True}) as reader:
        await reader.readline()

        async def held_back() -> bool | None:
            seen = running.chunks
            await asyncio.sleep(0.2)
            return running.chunks == seen or None

        await wait_for("the process being held back", held_back, within_s=20)
        held_at = running.chunks
        # Reading on lets it go on.
        await reader.readexactly(4 << 20)

        async def goes_on() -> bool | None:
            return running.chunks > held_at or None

        await wait_for("the process going on", goes_on, within_s=20)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib

    assert held_at * len(CHUNK) < 32 << 20
    assert grown_kib < 64 << 10


async def test_a_client_that_leaves_lets_go_of_the_process_at_once(
    api: Api, port: int, faucet: tuple[Faucet, str]
) -> None:
    running, path = faucet
    async with connection(api, port, path, {"command": "yes", "stream": True}) as reader:
        await reader.readline()

    async with asyncio.timeout(10):
        await running.closed.wait()


async def test_a_client_that_leaves_a_quiet_stream_lets_go_too_and_the_process_runs_on(api: Api, port: int) -> None:
    gate = asyncio.Event()
    api.script(gate=gate)
    made = await api.create()
    path = f"/v1/sandboxes/{made['id']}:exec"
    async with connection(api, port, path, {"command": "x", "stream": True}) as reader:
        await reader.readline()
        await _until_calls(api, made["id"], 1)
    await _until_calls(api, made["id"], 0)

    processes = await api.guest(made["id"]).processes.processes()

    assert [process.state for process in processes] == ["running"]


async def test_ex_41_a_quiet_stream_beats_until_the_process_ends(
    api: Api, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.05)
    gate = asyncio.Event()
    api.script(gate=gate)
    made = await api.create()
    beats = 0
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=api.http.headers) as client:
        body = {"command": "sleep", "stream": True}
        async with client.stream("POST", f"/v1/sandboxes/{made['id']}:exec", json=body) as reply:
            lines = reply.aiter_lines()
            start = json.loads(await anext(lines))
            async for line in lines:
                beats += not line
                if beats == 3:
                    gate.set()
                if line:
                    break

    assert start["type"] == "start"
    assert beats >= 3
    assert json.loads(line)["type"] == "exit"


async def test_a_create_whose_client_hangs_up_goes_on_and_can_be_joined(api: Api, port: int) -> None:
    api.node.start_gate = asyncio.Event()
    headers = {**api.http.headers, "Idempotency-Key": "k", "Prefer": "wait=60"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/sandboxes", json={}, timeout=0.3)
    api.node.start_gate.set()

    again = await api.http.post("/v1/sandboxes", json={}, headers=headers)

    assert (again.json()["state"], again.json()["replayed"]) == ("running", True)
    assert len(api.node.running()) == 1


async def test_lk_11_health_answers_beside_many_slow_calls(api: Api, port: int) -> None:
    gate = asyncio.Event()
    api.script(gate=gate)
    made = [await api.create() for _ in range(50)]
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=api.http.headers, limits=limits, timeout=30
    ) as client:
        async with asyncio.TaskGroup() as group:
            slow = [
                group.create_task(client.post(f"/v1/sandboxes/{one['id']}:exec", json={"command": "x"}))
                for one in made
                for _ in range(4)
            ]
            health = [await client.get("/healthz") for _ in range(20)]
            waiting = sum(not task.done() for task in slow)
            gate.set()

    assert waiting == 200
    assert {reply.status_code for reply in health} == {200}
    assert {task.result().status_code for task in slow} == {200}


async def test_every_answer_has_a_length_and_the_connection_stays(api: Api, port: int) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=api.http.headers, limits=httpx.Limits(max_connections=1)
    ) as client:
        made = (await client.post("/v1/sandboxes", json={}, headers={"Prefer": "wait=9"})).json()
        base = f"/v1/sandboxes/{made['id']}"
        for method, path in (
            ("GET", base),
            ("GET", "/v1/nothing"),
            ("PATCH", base),
            ("POST", f"{base}:stop"),
            ("DELETE", base),
            ("GET", "/healthz"),
        ):
            reply = await client.request(method, path)
            assert "content-length" in reply.headers or reply.headers.get("transfer-encoding") == "chunked"
            assert "content-encoding" not in reply.headers
            assert not 300 <= reply.status_code < 400


async def _until_calls(api: Api, sandbox_id: str, count: int) -> None:
    async def counted() -> bool | None:
        return api.service.services.limits._running[sandbox_id] == count or None

    await wait_for(f"{count} calls under way", counted, within_s=10, every_s=0.01)
