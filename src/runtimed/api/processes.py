"""Processes: started and left running, read by position, written to, signalled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, not_built
from runtimed.api.auditing import note, program_of
from runtimed.api.envelope import json_response
from runtimed.api.exec import lease_note
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.ndjson import MEDIA_TYPE, event_lines
from runtimed.api.services import caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.commands import Ended, Lost, Output
from runtimed.core.ids import ProcessId
from runtimed.core.ports import GuestProcesses
from runtimed.wire import commands as wire

POLL_WAIT_MAX_MS = 8000
"""The wire protocol's figure."""

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/processes", tags=["processes"])


@router.post("", response_model=wire.Process)
async def spawn_process(request: Request, sandbox_id: str, body: wire.SpawnRequest) -> Response:
    """Start a process and answer at once; it outlives this connection."""
    services, caller = services_of(request), caller_of(request)
    note(request, program=program_of(body.to_command()))

    async def work(question: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            process = await inside.guest.processes.spawn(question.process_id(), body.to_command())
        told = lease_note(inside, body.to_command().timeout_ms)
        return Answer(status=201, body=wire.process_body(process) | told)

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.get("", response_model=wire.ProcessList)
async def processes(request: Request, sandbox_id: str) -> Response:
    """Those that run, and the newest that ended."""
    services = services_of(request)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        found = await inside.guest.processes.processes()
    return json_response(200, {"data": [wire.process_body(process) for process in found]})


@router.get("/{process_id}", response_model=wire.Process)
async def process(request: Request, sandbox_id: str, process_id: str) -> Response:
    """One process."""
    services = services_of(request)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        found = await inside.guest.processes.process(ProcessId(process_id))
    return json_response(200, wire.process_body(found))


@router.get("/{process_id}/output")
async def output(
    request: Request,
    sandbox_id: str,
    process_id: str,
    cursor: Annotated[int, Query(ge=0)] = 0,
    follow: bool = False,
    wait_ms: Annotated[int, Query(alias="waitMs", ge=0, le=POLL_WAIT_MAX_MS)] = 0,
) -> Response:
    """Output from a position on: with `follow` as NDJSON until the exit, else what there is within `waitMs`."""
    services = services_of(request)
    async with AsyncExitStack() as stack:
        stack.enter_context(services.limits.call(sandbox_id))
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        inner = inside.guest.processes
        found = await inner.process(ProcessId(process_id))
        if not follow:
            chunks, next_cursor, dropped = await _poll(inner, found.id, cursor=cursor, wait_ms=wait_ms)
            found = await inner.process(found.id)
            shown = [wire.polled_chunk(chunk, as_base64=found.output_base64) for chunk in chunks]
            body = {"chunks": shown, "nextCursor": next_cursor, "process": wire.process_body(found)}
            return json_response(200, body | ({"droppedBytes": dropped} if dropped else {}))
        events = await stack.enter_async_context(inner.follow(found.id, cursor=cursor))
        lines = event_lines(request, events, cursor=cursor, as_base64=found.output_base64)
        return Streamed(lines, media_type=MEDIA_TYPE, heartbeat=b"\n", open_until_sent=stack.pop_all())


async def _poll(
    inner: GuestProcesses, process_id: ProcessId, *, cursor: int, wait_ms: int
) -> tuple[list[Output], int, int]:
    """Chunks, the position after them, and how many bytes before them are gone."""
    chunks, dropped = await _read(inner, process_id, cursor=cursor, live=False)
    if not chunks and wait_ms:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                chunks, dropped = await _read(inner, process_id, cursor=cursor, live=True)
        except TimeoutError:
            pass  # nothing came: an empty answer
    position = chunks[-1].offset + len(chunks[-1].data) if chunks else cursor + dropped
    return chunks, position, dropped


async def _read(inner: GuestProcesses, process_id: ProcessId, *, cursor: int, live: bool) -> tuple[list[Output], int]:
    """All that is kept, or with `live` the first chunk that comes."""
    chunks: list[Output] = []
    dropped = 0
    async with inner.follow(process_id, cursor=cursor, live=live) as events:
        async for event in events:
            match event:
                case Output():
                    chunks.append(event)
                    if live:
                        break
                case Lost():
                    dropped += event.dropped_bytes
                case Ended():
                    break
    return chunks, dropped


@router.post("/{process_id}:write", response_model=wire.StdinTaken)
async def write(request: Request, sandbox_id: str, process_id: str, body: wire.WriteStdin) -> Response:
    """Bytes for its standard input, from a position on; answers the position after what was taken."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            offset = await inside.guest.processes.write_stdin(
                ProcessId(process_id), offset=body.offset, data=body.payload(), eof=body.eof
            )
        return Answer(status=200, body={"offset": offset})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/{process_id}:signal", response_model=wire.Process)
async def signal(request: Request, sandbox_id: str, process_id: str, body: wire.Signal) -> Response:
    """Send a signal, SIGTERM by default, to all that it started."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            await inside.guest.processes.signal(ProcessId(process_id), body.signal)
            found = await inside.guest.processes.process(ProcessId(process_id))
        return Answer(status=200, body=wire.process_body(found))

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/{process_id}:resize")
async def resize(request: Request, sandbox_id: str, process_id: str, body: wire.Resize) -> Response:
    """Change the size of its terminal."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            await inside.guest.processes.resize(ProcessId(process_id), cols=body.cols, rows=body.rows)
        return Answer(status=200, body={"cols": body.cols, "rows": body.rows})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.get("/{process_id}/files", include_in_schema=False)
async def traced_files(request: Request, sandbox_id: str, process_id: str) -> Response:
    """Not built."""
    raise not_built("traced files")
