"""A key that is revoked while its answers are under way ends them, too."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from runtimed.sim.guest import Scripted

from .conftest import Api

WITHIN_S = 15.0
"""One second is the promise; a machine that runs other tests at the same time is given more."""


async def test_an_open_stream_ends_when_its_key_is_revoked(api: Api, port: int) -> None:
    api.node.script = lambda command: Scripted(gate=asyncio.Event())
    made = await api.create()
    key_id, headers = await api.new_key()
    url = f"http://127.0.0.1:{port}/v1/sandboxes/{made['id']}:exec"
    async with asyncio.timeout(WITHIN_S), httpx.AsyncClient(timeout=WITHIN_S) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", url, json={"command": "wait", "stream": True}, headers=headers) as reply:
                async for _ in reply.aiter_lines():
                    await api.accounts.revoke_key(key_id)
                    await api.clock.advance(1)


async def test_an_answer_that_is_still_waited_for_is_refused_when_its_key_is_revoked(api: Api) -> None:
    api.node.start_gate = asyncio.Event()
    key_id, headers = await api.new_key()
    waiting = asyncio.get_running_loop().create_task(
        api.http.post("/v1/sandboxes", json={}, headers={**headers, "Prefer": "wait=60"})
    )
    while not (await api.http.get("/v1/sandboxes")).json()["data"]:
        await asyncio.sleep(0.01)
    await api.accounts.revoke_key(key_id)
    await api.clock.advance(1)
    async with asyncio.timeout(WITHIN_S):
        reply = await waiting

    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")


async def test_an_open_stream_of_another_key_goes_on(api: Api, port: int) -> None:
    gate = asyncio.Event()
    api.node.script = lambda command: Scripted(output=[("stdout", b"done")], gate=gate)
    made = await api.create()
    key_id, _ = await api.new_key()
    _, headers = await api.new_key()
    url = f"http://127.0.0.1:{port}/v1/sandboxes/{made['id']}:exec"
    lines = []
    async with asyncio.timeout(WITHIN_S), httpx.AsyncClient(timeout=WITHIN_S) as client:
        async with client.stream("POST", url, json={"command": "wait", "stream": True}, headers=headers) as reply:
            async for line in reply.aiter_lines():
                lines.append(line)
                await api.accounts.revoke_key(key_id)
                await api.clock.advance(1)
                gate.set()

    assert "exit" in lines[-1]
