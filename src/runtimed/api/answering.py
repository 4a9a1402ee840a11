"""Runs what a request asks for once, whatever its client does, and answers late rather than too late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.envelope import error_body, internal_error, json_response, request_id_of
from runtimed.api.idempotency import Answer, Done, KeyedRequest, asked
from runtimed.api.presence import until_gone
from runtimed.api.services import caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.errors import RuntimedError, Unavailable
from runtimed.core.tasks import spawn

LATE_AFTER_S = 45.0
"""Proxies cut a connection that is silent for 60 s, and the public client gives up on the headers after 125 s."""
PREFER_WAIT_MAX_S = 120
NOBODY_READS = 499
"""Status for the log of a request whose client has hung up; its work goes on."""


async def answer_once(
    request: Request,
    work: Callable[[KeyedRequest], Awaitable[Answer]],
    *,
    sandbox_id: str | None = None,
    claim: bool = True,
) -> Response:
    """The answer of `work`, which goes on when the client leaves, or that of the request it repeats."""
    services = services_of(request)
    question = await asked(request, caller_of(request), idempotency=services.idempotency, sandbox_id=sandbox_id)
    here = ExitStack()
    here.enter_context(services.presence.here(question.process_id()))
    task = spawn(services.idempotency.once(question, lambda: work(question), claim=claim), name="answer a request")
    gone = spawn(until_gone(request), name="watch for a client that leaves")
    late = False
    try:
        await asyncio.wait([task, gone], timeout=LATE_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        late = not task.done() and not gone.done()
        if task.done():
            status, body, headers = _outcome(task.result())
            return json_response(status, body, headers)
        if gone.done():
            return json_response(NOBODY_READS, {}, {})
    finally:
        gone.cancel()
        if not late:
            here.close()
    answer = _late(task, request_id_of(request), here)
    return Streamed(answer, media_type="application/json", headers={"Runtime-Late-Answer": "true"}, heartbeat=b" ")


def _outcome(done: Done) -> tuple[int, Mapping[str, object], dict[str, str]]:
    """Status, body and headers. Raises the error where there is one."""
    if done.answer is None:
        raise done.error or internal_error()
    if not done.replayed:
        return done.answer.status, done.answer.body, {}
    return done.answer.status, {**done.answer.body, "replayed": True}, {"Idempotency-Replayed": "true"}


async def _late(task: asyncio.Task[Done], request_id: str | None, here: ExitStack) -> AsyncGenerator[bytes]:
    with here:
        yield b" "
        try:
            # A failure that is no RuntimedError goes on: the body is cut then, and the outermost layer logs it.
            _, body, _ = _outcome(await asyncio.shield(task))
        except RuntimedError as error:
            body = {"error": error_body(error, request_id=request_id)}
        yield json.dumps(body).encode()


def prefer_wait_s(request: Request) -> float:
    """Seconds that the client wants its answer held for, from `Prefer: wait=N`; 0 without."""
    for part in request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isdigit():
            return float(min(int(value), PREFER_WAIT_MAX_S))
    return 0.0


def not_built(what: str, fields: list[str] | None = None, *, hint: str | None = None) -> Unavailable:
    return Unavailable(
        f"{what}: not available in this version",
        hint=hint or "leave it out; the table in README.md says what works",
        details={"fields": fields} if fields else None,
    )
