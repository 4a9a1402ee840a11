"""Output of a process as newline-delimited JSON, ending in the exit or in a typed error with its cursor."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from starlette.requests import Request

from runtimed.api.auditing import note_over
from runtimed.api.envelope import error_body, request_id_of
from runtimed.api.services import services_of
from runtimed.core.commands import Ended, Lost, Output, ProcessEvent
from runtimed.core.errors import RuntimedError
from runtimed.wire.commands import event_body

MEDIA_TYPE = "application/x-ndjson"


def line(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


async def event_lines(
    request: Request, events: AsyncIterator[ProcessEvent], *, cursor: int, as_base64: bool
) -> AsyncGenerator[bytes]:
    """Each event as a line."""
    try:
        async for event in events:
            if isinstance(event, Ended):
                note_over(request, exitCode=event.exit.exit_code, timedOut=event.exit.timed_out)
            yield line(event_body(event, as_base64=as_base64))
            match event:
                case Output():
                    cursor = event.offset + len(event.data)
                case Lost():
                    cursor = event.resume_at
    except RuntimedError as error:
        services_of(request).metrics.failed(error.code)
        yield line({"type": "error", "error": error_body(error, request_id=request_id_of(request)), "cursor": cursor})
