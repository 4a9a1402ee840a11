"""Commands: run to the end with their output in the answer, or streamed as they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, not_built
from runtimed.api.auditing import note, program_of
from runtimed.api.idempotency import Answer, Done, KeyedRequest, asked
from runtimed.api.ndjson import MEDIA_TYPE, event_lines, line
from runtimed.api.presence import Presence
from runtimed.api.services import caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.commands import Captured, Command
from runtimed.core.errors import OutcomeUnknown, RuntimedError
from runtimed.core.ids import ProcessId
from runtimed.core.limits import CAPTURE_BYTES, CAPTURE_LONG_BYTES, CAPTURE_LONG_FROM_MS, LEASE_NEAR_S
from runtimed.core.sandbox import Inside
from runtimed.core.tasks import spawn
from runtimed.wire import commands as wire

router = APIRouter(prefix="/v1/sandboxes", tags=["commands"])


@router.post("/{sandbox_id}:exec", response_model=wire.ExecResult)
async def execute(request: Request, sandbox_id: str, body: wire.ExecRequest) -> Response:
    """Run a command. A non-zero exit and a timeout are results. With `stream`, answers NDJSON events."""
    if body.trace_files:
        raise not_built("traceFiles", ["traceFiles"])
    note(request, program=program_of(body.to_command()))
    if body.stream:
        return await _stream(request, sandbox_id, body.to_command())
    services, caller = services_of(request), caller_of(request)
    command = body.to_command()
    keep_bytes = CAPTURE_LONG_BYTES if command.timeout_ms > CAPTURE_LONG_FROM_MS else CAPTURE_BYTES

    async def work(question: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            capture = inside.guest.processes.capture(question.process_id(), command, keep_bytes=keep_bytes)
            done = await _unless_abandoned(services.presence, question.process_id(), capture)
        note(request, exitCode=done.exit.exit_code, timedOut=done.exit.timed_out)
        return Answer(status=200, body=wire.captured_body(done) | lease_note(inside, command.timeout_ms))

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


async def _unless_abandoned(presence: Presence, process_id: ProcessId, capture: Awaitable[Captured]) -> Captured:
    """The result; a command whose client has left for good is ended, since nobody can ever name it."""
    running = asyncio.ensure_future(capture)  # noqa: TID251 - awaited below, whatever happens
    abandoned = spawn(presence.abandoned(process_id), name=f"whether {process_id} is waited for")
    try:
        await asyncio.wait([running, abandoned], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise OutcomeUnknown("the client of the command has left: it was ended", details={"processId": process_id})
    finally:
        abandoned.cancel()
        if not running.done():
            running.cancel()
            await asyncio.wait([running])


def lease_note(inside: Inside, timeout_ms: int) -> dict[str, object]:
    """What a command is told whose sandbox's lease was near its end when it began, and nothing else."""
    left_s = inside.lease_left_s
    if left_s is None or left_s >= min(LEASE_NEAR_S, timeout_ms / 1000):
        return {}
    return {"leaseEndsInSeconds": round(max(0.0, left_s), 1)}


async def _stream(request: Request, sandbox_id: str, command: Command) -> Response:
    """A repeat reads the same process from its first byte; nothing runs twice."""
    services, caller = services_of(request), caller_of(request)
    question = await asked(request, caller, idempotency=services.idempotency, sandbox_id=sandbox_id)
    earlier = await services.idempotency.enter(question, claim=False)
    async with AsyncExitStack() as stack:
        if earlier is not None:
            body = await _again(request, sandbox_id, earlier, stack)
        else:
            body = await _first(request, question, command, stack)
        headers = {"Idempotency-Replayed": "true"} if earlier else {}
        # From here on the response closes what is open, when its last byte is sent or its client has left.
        return Streamed(body, media_type=MEDIA_TYPE, headers=headers, heartbeat=b"\n", open_until_sent=stack.pop_all())


async def _first(
    request: Request, question: KeyedRequest, command: Command, stack: AsyncExitStack
) -> AsyncGenerator[bytes]:
    services = services_of(request)
    sandbox_id = question.sandbox_id or ""
    process_id = question.process_id()
    outcome = Done(error=RuntimedError("the first request with this key failed"))
    try:
        stack.enter_context(services.limits.call(sandbox_id))
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        events = await stack.enter_async_context(inside.guest.processes.run(process_id, command))
        began = await anext(events)
        outcome = Done(answer=Answer(status=200, body={"processId": process_id}))
    except RuntimedError as error:
        outcome = Done(error=error)
        raise
    finally:
        await services.idempotency.leave(question, outcome)

    async def lines() -> AsyncGenerator[bytes]:
        yield line(wire.event_body(began, as_base64=False) | lease_note(inside, command.timeout_ms))
        async for text in event_lines(request, events, cursor=0, as_base64=False):
            yield text

    return lines()


async def _again(request: Request, sandbox_id: str, earlier: Done, stack: AsyncExitStack) -> AsyncGenerator[bytes]:
    services = services_of(request)
    if earlier.answer is None or earlier.answer.status >= 400:
        raise earlier.error or RuntimedError("the first request with this key failed")
    process_id = ProcessId(str(earlier.answer.body["processId"]))
    stack.enter_context(services.limits.call(sandbox_id))
    inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
    events = await stack.enter_async_context(inside.guest.processes.follow(process_id, cursor=0))

    async def lines() -> AsyncGenerator[bytes]:
        yield line({"type": "start", "processId": process_id, "replayed": True})
        async for text in event_lines(request, events, cursor=0, as_base64=False):
            yield text

    return lines()
