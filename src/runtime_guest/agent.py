"""The agent: answers what the host asks on each stream, by method, and tells failures by code."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from runtime_guest import frames, identity
from runtime_guest.errors import GuestError, from_os_error
from runtime_guest.port import Wire
from runtime_guest.streams import Link, LinkLost, Stream, StreamReset

Handler = Callable[[Stream, "dict[str, Any]"], Awaitable[None]]


class Agent:
    """One channel, many conversations. A new HELLO of the host starts the conversations anew, and nothing else."""

    def __init__(self, methods: dict[str, Handler]) -> None:
        self._methods = methods
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.connection = frames.Connection(host=False)
        self.link = Link(self.connection, write=self._write, opened=self._opened, greeted=self._greeted)
        self.wire = Wire(
            received=self._received,
            down=self._down,
            full=self.link.transport_full,
            ready=self.link.transport_ready,
        )

    def _write(self, data: bytes) -> None:
        self.wire.write(data)

    def _received(self, data: memoryview) -> None:
        try:
            self.link.feed(data)
        except frames.ProtocolViolation as wrong:  # What a half-sent frame of an earlier connection looks like.
            identity.log(f"protocol: {wrong}")
            self._down("the host broke the protocol")

    def _down(self, why: str) -> None:
        self.link.fail(why)
        self.connection.restart()

    def _greeted(self, hello: frames.HelloReceived) -> None:
        if hello.fresh:
            self.link.fail("the host connected anew")
        self.connection.hello(hello.nonce, {"version": frames.VERSION, "max_frame": frames.MAX_FRAME})
        self.link.flush_soon()

    def _opened(self, stream: Stream) -> None:
        task = self._loop.create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream) -> None:
        handler = self._methods.get(stream.method)
        try:
            if handler is None:
                raise GuestError("unavailable", f"the agent has no method {stream.method}")
            await handler(stream, stream.params)
        except GuestError as refused:
            stream.reset(refused.code, refused.message, refused.details)
        except (StreamReset, LinkLost):
            pass  # Nobody is there to be answered.
        except OSError as failure:
            told = from_os_error(failure)
            stream.reset(told.code, told.message, told.details)
        except (KeyError, TypeError, ValueError) as wrong:
            stream.reset("invalid_request", f"{stream.method}: {wrong!r}", {"field": "params"})
            identity.log(traceback.format_exc())
        except Exception:  # noqa: BLE001 - the boundary of PID 1: one bad request must not end the machine
            stream.reset("internal_error", f"{stream.method} failed inside the agent")
            identity.log(traceback.format_exc())
