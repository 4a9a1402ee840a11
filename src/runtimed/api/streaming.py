"""Sends long answers: pushes back on slow readers, keeps quiet ones alive, and lets go when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runtimed.core.tasks import spawn

HEARTBEAT_S = 15.0
"""Proxies cut connections that are quiet for 30 or 60 s; the public client gives up after 180 s."""


class Streamed(Response):
    """A body made while it is sent. `open_until_sent` is closed in the end, however that comes.

    An error out of `body` leaves the body without its end, so that a client sees that it is cut.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        heartbeat: bytes = b"",
        open_until_sent: AsyncExitStack | None = None,
    ) -> None:
        self.body_iterator = body
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self._heartbeat = heartbeat
        self._stack = open_until_sent or AsyncExitStack()
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack, aclosing(self.body_iterator) as body:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                # All of the body runs in this task, because what it holds open may only be closed where it was opened.
                async with asyncio.timeout(None) as client_here:
                    watch = spawn(_until_gone(receive, client_here), name="watch for a client that leaves")
                    pulse = _Pulse(send, self._heartbeat)
                    try:
                        async for chunk in body:
                            await pulse.send_body(chunk, more=True)
                            # Sending to a client that has left returns at once: let the watch have its turn.
                            await asyncio.sleep(0)
                        await pulse.send_body(b"", more=False)
                    finally:
                        watch.cancel()
                        pulse.stop()
            except TimeoutError:
                if not client_here.expired():
                    raise  # one of the body's own


class _Pulse:
    """Sends chunks, and the heartbeat whenever none was sent for a while."""

    def __init__(self, send: Send, heartbeat: bytes) -> None:
        self._send = send
        self._one_at_a_time = asyncio.Lock()
        self._sent = asyncio.Event()
        self._task = spawn(self._beat(heartbeat), name="heartbeat of a stream") if heartbeat else None

    async def send_body(self, chunk: bytes, *, more: bool) -> None:
        message: Message = {"type": "http.response.body", "body": chunk, "more_body": more}
        async with self._one_at_a_time:
            await self._send(message)
        self._sent.set()

    async def _beat(self, heartbeat: bytes) -> None:
        while True:
            self._sent.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._sent.wait()
            except TimeoutError:
                await self.send_body(heartbeat, more=True)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _until_gone(receive: Receive, client_here: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client_here.reschedule(asyncio.get_running_loop().time())
