# Generated from src/withruntime/_async/transport.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Carries calls to the service and answers back; what to send and when to send it again is decided elsewhere."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, TypeVar

import httpx

from withruntime import _flows, _local, _settings
from withruntime._calls import Answer, Call
from withruntime._errors import RuntimeError
from withruntime._flows import Attempt, Flow, Refusal, Sleep
from withruntime._http_client import client_options, failure_of, timeouts
from withruntime._retry import Attempts, OnCapacityWait, RetryPolicy, TransportFailure
from withruntime._settings import Endpoint
from withruntime._stream import Follower, Pause
from withruntime._sync import _io
from withruntime._values import Json

T = TypeVar("T")

_log = logging.getLogger("withruntime")


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What a client was constructed with."""

    api_key: str | None = None
    origin: str | None = None
    """None means the local service, which is found or started on first use."""
    policy: RetryPolicy
    max_connections: int = 48
    on_queued: Callable[[int], None] | None = None


class Transport:
    """Sends calls over one pool of connections, opened on first use and again after a close."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.policy = options.policy
        self._endpoint: Endpoint | None = None
        self._http: _io.HttpClient | None = None
        self._home: object = None
        self._finding = _io.Lock()
        self._under_way = 0

    @property
    def origin(self) -> str | None:
        return self.options.origin if self._endpoint is None else self._endpoint.origin

    def policy_for_room(self, on_capacity_wait: OnCapacityWait | None) -> RetryPolicy:
        """The policy of this client, with somebody to tell that there is no room yet."""
        return self.policy if on_capacity_wait is None else replace(self.policy, on_capacity_wait=on_capacity_wait)

    def room_wait_s(self, asked_s: float | None) -> float:
        return self.policy.room_wait_s if asked_s is None else asked_s

    def ready(self) -> _io.HttpClient:
        """The connections to the service, which is found, and if it is the local one started, before the first use.

        Raises:
            AuthenticationError: there is no key for it.
            ServiceUnavailableError: the local service does not start.
        """
        home = _io.home()
        http = self._http
        if http is not None and self._home is home:
            return http
        with self._finding:
            http = self._http
            if http is None or self._home is not home:
                endpoint = self._endpoint
                if endpoint is None:
                    endpoint = _io.in_thread(self._find)
                options = client_options(endpoint, max_connections=self.options.max_connections)
                http = _io.HttpClient(**options)
                self._endpoint, self._http, self._home = endpoint, http, home
            return http

    def send(self, call: Call[T], *, policy: RetryPolicy | None = None) -> T:
        """Send a call until it is answered or has failed for good, and read its answer."""
        return self.drive(_flows.deliver(call, policy or self.policy))

    def drive(self, flow: Flow[T]) -> T:
        """Do the steps of a flow and give each outcome back to it."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    _io.sleep(step.seconds)
                    step = next(flow)
                    continue
                try:
                    outcome = self._attempt(step)
                except TransportFailure as failure:
                    step = flow.throw(failure)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            flow.close()

    def follow(self, follower: Follower) -> Iterator[Json]:
        """Yield the events of a command over as many connections as it takes."""
        while (step := follower.next_step()) is not None:
            if isinstance(step, Pause):
                _io.sleep(step.seconds)
                continue
            failure: RuntimeError | TransportFailure | None = None
            try:
                with (
                    self.opened(step.call, total_s=follower.time_left_s()) as response,
                    _io.closing(_io.chunks_of(response, follower.time_left_s)) as chunks,
                ):
                    for chunk in chunks:
                        for event in follower.feed(chunk):
                            yield event
                        if follower.ended:
                            break
            except (RuntimeError, TransportFailure) as error:
                failure = error
            follower.closed(failure)

    @contextlib.contextmanager
    def opened(self, call: Call[Any], *, total_s: float | None = None) -> Iterator[httpx.Response]:
        """Send a call once and leave its body to be read as it comes, with `_io.chunks_of`.

        Raises:
            RuntimeError: the answer is not 2xx.
            TransportFailure: there is no answer, or it breaks off.
        """
        silence_s = self.policy.timeout_s if call.silence_s is None else call.silence_s
        headers_s = min(silence_s, _flows.HEADERS_MAX_S)
        if total_s is not None:
            headers_s = max(0.001, min(headers_s, total_s))
        attempt = Attempt(call=call, headers_s=headers_s, silence_s=silence_s, total_s=None)
        with self._sent(attempt) as response:
            outcome = _flows.judged(call, response.status_code, {}, b"")
            if isinstance(outcome, Refusal):
                body = self._read(response, total_s)
                outcome = _flows.judged(call, response.status_code, dict(response.headers), body)
                assert isinstance(outcome, Refusal)
                raise outcome.error
            yield response

    @contextlib.contextmanager
    def body(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """The same, sent again as often as it takes until the answer begins.

        Raises:
            RuntimeError: it was refused for good, or never answered.
            TransportFailure: the body breaks off: what was read of it cannot be taken back, so the reader decides.
        """
        attempts = Attempts(policy=self.policy)
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    response = stack.enter_context(self.opened(call))
                    break
                except (RuntimeError, TransportFailure) as failure:
                    pause = attempts.pause_after(failure)
                    if pause is None and isinstance(failure, TransportFailure):
                        raise failure.as_error(call.idempotency_key) from failure
                    if pause is None:
                        raise
                _io.sleep(pause)
            yield response

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        http, self._http = self._http, None
        if http is not None and self._home is _io.home():
            http.close()

    def _attempt(self, step: Attempt) -> Answer | Refusal:
        with self._sent(step) as response:
            body = self._read(response, step.total_s)
        return _flows.judged(step.call, response.status_code, dict(response.headers), body)

    def _read(self, response: httpx.Response, total_s: float | None) -> bytes:
        with _io.cut_after(response, total_s):
            return response.read()

    @contextlib.contextmanager
    def _sent(self, step: Attempt) -> Iterator[httpx.Response]:
        http = self.ready()
        limits = timeouts(headers_s=step.headers_s, silence_s=step.silence_s)
        request = http.build_request(
            step.call.method,
            step.call.path,
            headers=step.call.headers(),
            content=step.call.payload,
            extensions={"timeout": limits},
        )
        self._under_way += 1
        try:
            self._tell_queued()
            response = http.send(request, stream=True)
            # httpcore looks the timeout up again when it begins to read the body.
            limits["read"] = step.silence_s
            try:
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            failure = failure_of(error)
            if failure.kind == "not_connected" and self._endpoint is not None and self._endpoint.local:
                self._forget()
            raise failure from error
        finally:
            self._under_way -= 1

    def _tell_queued(self) -> None:
        queued = self._under_way - self.options.max_connections
        if queued > 0 and self.options.on_queued is not None:
            self.options.on_queued(queued)

    def _forget(self) -> None:
        """The local service is gone or has moved: look for it again before the next attempt.

        The connections are let go and not closed: another thread may be about to find out the same with them.
        """
        self._endpoint = self._http = None

    def _find(self, give_up: Event) -> Endpoint:
        env = dict(os.environ)
        if self.options.origin is not None:
            return _settings.remote_endpoint(self.options.origin, self.options.api_key, env)
        service = _local.ensure(env, report=_tell_progress, give_up=give_up)
        return _settings.local_endpoint(service, self.options.api_key, env)


def _tell_progress(line: str) -> None:
    # A first start takes minutes. A warning is seen also where nobody has set logging up.
    _log.warning("the local service is starting: %s", line)
