"""Answers a repeated request with the first answer: replays one that is done, joins one that still runs.

While this process lives it knows its own requests; the store knows them for 24 hours. Requests that change what the
service itself keeps are claimed in the store before they run. Commands and files are not, since a claim would cost
each of them a write to the disk before it starts, and a process of the guest has an id made from the key instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from starlette.requests import Request

from runtimed.api.envelope import error_body
from runtimed.core.clock import Clock
from runtimed.core.errors import (
    GuestBusy,
    IdempotencyKeyReused,
    InvalidRequest,
    OutcomeUnknown,
    RuntimedError,
    StartFailed,
)
from runtimed.core.ids import AccountId, ProcessId, new_id
from runtimed.core.sandbox import Caller
from runtimed.core.tasks import spawn
from runtimed.store.answers import AnswerStore, KeptAnswer

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_REMEMBERED = (OutcomeUnknown, StartFailed)
"""Errors after which something may have happened; any other one left the world as it was, and a retry runs."""
FLUSH_AFTER_S = 0.2
"""Answers are written together this much later; until then they are known in memory, and in the store as claimed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    body: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class KeyedRequest:
    """One request that a key was given for, or none."""

    account_id: AccountId
    key: str | None
    request_hash: str
    sandbox_id: str | None

    def process_id(self) -> ProcessId:
        """The same for every repeat of the request, so that the guest starts one process for all of them."""
        if self.key is None:
            return ProcessId(new_id())
        return ProcessId(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.account_id} {self.sandbox_id} {self.key}")))


async def asked(
    request: Request, caller: Caller, *, idempotency: Idempotency, sandbox_id: str | None = None
) -> KeyedRequest:
    """Reads key and body. Raises InvalidRequest for a key that could not have been sent by a client of ours."""
    key = request.headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        message = "must be 1 to 128 letters, digits or _ . : - and start with a letter or digit"
        raise InvalidRequest([{"field": "Idempotency-Key", "message": message}])
    text = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return KeyedRequest(
        account_id=caller.account_id,
        key=key,
        request_hash=idempotency.fingerprint(text),
        sandbox_id=sandbox_id,
    )


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a request came out: an answer or an error, and whether it is that of an earlier request."""

    answer: Answer | None = None
    error: RuntimedError | None = None
    replayed: bool = False


class _Run:
    """A request that this process is answering, or has answered and not written down yet."""

    def __init__(self, request_hash: str, claimed: bool) -> None:
        self.request_hash = request_hash
        self.claimed = claimed
        self.outcome: asyncio.Future[Done] = asyncio.get_running_loop().create_future()


class Idempotency:
    """The requests of this process, in front of the store."""

    def __init__(self, store: AnswerStore, clock: Clock, *, secret: bytes) -> None:
        """`secret` is kept outside of the database."""
        self._store = store
        self._clock = clock
        self._secret = secret
        self._runs: dict[tuple[AccountId, str], _Run] = {}
        self._unwritten: list[KeptAnswer] = []
        self._writer: asyncio.Task[None] | None = None

    def fingerprint(self, text: bytes) -> str:
        """Tells requests apart. Without the secret nobody can try out what a body held: it may be a secret's value."""
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    async def once(self, request: KeyedRequest, work: Callable[[], Awaitable[Answer]], *, claim: bool) -> Done:
        """Run the work, unless a request with the same key has or does; then its outcome is the answer.

        With `claim` the store knows of the request before it runs.
        """
        try:
            earlier = await self.enter(request, claim=claim)
        except RuntimedError as error:
            return Done(error=error)
        if earlier is not None:
            return earlier
        try:
            done = Done(answer=await work())
        except RuntimedError as error:
            done = Done(error=error)
        except BaseException:
            await self.leave(request, Done(error=RuntimedError("the first request with this key failed")))
            raise
        await self.leave(request, done)
        return done

    async def enter(self, request: KeyedRequest, *, claim: bool) -> Done | None:
        """None for the first request with its key, which must `leave`; else the outcome of the first.

        Raises IdempotencyKeyReused when the first was another request, GuestBusy when it runs in another process.
        """
        if request.key is None:
            return None
        slot = (request.account_id, request.key)
        if (run := self._runs.get(slot)) is not None:
            _same(run.request_hash, request)
            return replace(await asyncio.shield(run.outcome), replayed=True)
        run = self._runs[slot] = _Run(request.request_hash, claim)  # before any await: a repeat that comes now joins
        try:
            kept = await self._kept(request, request.key, claim=claim)
            if kept is None:
                return None
            _same(kept.request_hash, request)
            if kept.status is None:
                raise GuestBusy("a request with this key is running", hint="ask again", retry_after_ms=1000)
        except RuntimedError as error:
            self._resolve(slot, Done(error=error))
            raise
        except BaseException:
            self._resolve(slot, Done(error=RuntimedError("the first request with this key failed")))
            raise
        done = Done(answer=Answer(status=kept.status, body=kept.body), replayed=True)
        self._resolve(slot, done)
        return done

    async def leave(self, request: KeyedRequest, done: Done) -> None:
        """Tell whoever joined, and keep the outcome where a repeat must not run again."""
        if request.key is None:
            return
        slot = (request.account_id, request.key)
        run = self._runs[slot]
        answer = done.answer
        if isinstance(done.error, _REMEMBERED):
            answer = Answer(status=done.error.status, body={"error": error_body(done.error, request_id=None)})
        if answer is None:
            if run.claimed:
                await self._store.give_up(request.account_id, request.key)
            self._resolve(slot, done)
            return
        if not run.outcome.done():
            run.outcome.set_result(done)
        self._unwritten.append(_kept(request, answer))
        if self._writer is None or self._writer.done():
            self._writer = spawn(self._write_later(), name="write answers")

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.cancel()
        await self._write()

    async def _kept(self, request: KeyedRequest, key: str, *, claim: bool) -> KeptAnswer | None:
        now_s = self._clock.now_s()
        if claim:
            return await self._store.claim(_kept(request), now_s=now_s)
        return await self._store.find(request.account_id, key, now_s=now_s)

    def _resolve(self, slot: tuple[AccountId, str], done: Done) -> None:
        run = self._runs.pop(slot)
        if not run.outcome.done():
            run.outcome.set_result(done)

    async def _write_later(self) -> None:
        while self._unwritten:
            await self._clock.sleep(FLUSH_AFTER_S)
            await self._write()

    async def _write(self) -> None:
        answers = self._unwritten[:]
        if answers:
            await self._store.finish(answers, now_s=self._clock.now_s())
        del self._unwritten[: len(answers)]
        for kept in answers:
            self._runs.pop((kept.account_id, kept.key), None)


def _kept(request: KeyedRequest, answer: Answer | None = None) -> KeptAnswer:
    return KeptAnswer(
        account_id=request.account_id,
        key=request.key or "",
        request_hash=request.request_hash,
        sandbox_id=request.sandbox_id,
        status=answer.status if answer else None,
        body=answer.body if answer else {},
    )


def _same(request_hash: str, request: KeyedRequest) -> None:
    if request_hash != request.request_hash:
        raise IdempotencyKeyReused(
            "this Idempotency-Key belongs to another request",
            hint="use a new key for each request; only an exact repeat may have the same one",
        )
