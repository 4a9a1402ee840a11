"""Operations of more than one step, as generators: each yields what it needs and is sent what came of it. No I/O."""

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from withruntime import _calls
from withruntime._calls import Answer, Call, OnProgress
from withruntime._errors import ConflictError, NotFoundError, RuntimeError, error_from_body
from withruntime._retry import Attempts, RetryPolicy, TransportFailure
from withruntime._values import Json

T = TypeVar("T")

HEADERS_MAX_S = 125.0
"""An answer that has not begun by then is taken for lost, and the call is sent again with the same key."""
PROGRESS_S = 2
"""How often a start is asked how it goes, where somebody wants to know."""
AWAKE = frozenset({"running", "starting"})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Send a call once. Comes back as `Refusal | Answer`, or throws `TransportFailure`."""

    call: Call[Any]
    headers_s: float
    silence_s: float
    total_s: float | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An answer that is not 2xx."""

    error: RuntimeError


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """Wait so long."""

    seconds: float


Step = Attempt | Sleep
Flow = Generator[Step, Any, T]


def judged(call: Call[Any], status: int, headers: dict[str, str], body: bytes) -> Answer | Refusal:
    """Tell an answer from a refusal. Redirects are refusals: following one would send the key elsewhere."""
    if 200 <= status < 300:
        return Answer(status=status, headers=headers, body=body)
    key = call.idempotency_key
    return Refusal(error=error_from_body(status, body, retry_after=headers.get("retry-after"), key=key))


def deliver(call: Call[T], policy: RetryPolicy) -> Flow[T]:
    """Send a call until it is answered, refused for good, or out of time. The deadline is absolute."""
    started = policy.clock()
    deadline = None if call.deadline_s is None else started + call.deadline_s
    attempts = Attempts(policy=policy, deadline=deadline, may_retry=call.may_retry, room_wait_s=call.room_wait_s)
    silence_s = policy.timeout_s if call.silence_s is None else call.silence_s
    while True:
        left_s = None if deadline is None else max(0.001, deadline - policy.clock())
        failure: RuntimeError | TransportFailure
        try:
            outcome = yield Attempt(
                call=call,
                headers_s=_least(silence_s, HEADERS_MAX_S, left_s),
                silence_s=_least(silence_s, left_s),
                total_s=left_s,
            )
        except TransportFailure as error:
            failure = error
        else:
            if isinstance(outcome, Answer):
                return call.decode(outcome)
            failure = outcome.error
        pause = attempts.pause_after(failure)
        if pause is None:
            raise failure if isinstance(failure, RuntimeError) else failure.as_error(call.idempotency_key)
        yield Sleep(seconds=pause)


def _least(*seconds: float | None) -> float:
    return min(second for second in seconds if second is not None)


@dataclass(kw_only=True)
class Creation:
    """How far a create has come: what a cancel needs to know to leave nothing behind."""

    call: Call[Json]
    wait: bool
    on_progress: OnProgress | None = None
    """Told what happens while the sandbox starts, each time that it is something else."""
    on_wait: Callable[[str], None] | None = None
    """Told the sandbox's id when it has to be waited for."""
    asked: bool = False
    """Whether the request may have reached the service."""
    info: Json | None = None
    complete: bool = False


def create(creation: Creation, policy: RetryPolicy) -> Flow[Json]:
    """Create a sandbox and see it run.

    Raises:
        RuntimeError: it did not come to run (`start_failed`); nothing of it is left.
    """
    creation.asked = True
    info = yield from deliver(creation.call, policy)
    creation.info = info
    if creation.wait and info.get("state") != "running":
        yield from _until_running(creation, policy)
        info = creation.info
    creation.complete = True
    return info


def _until_running(creation: Creation, policy: RetryPolicy) -> Flow[None]:
    """Wait for a sandbox that was answered before it ran; with somebody to tell, in short steps."""
    info = creation.info
    assert info is not None
    tell, told = creation.on_progress, None
    if creation.on_wait is not None:
        creation.on_wait(info["id"])
    for _ in range(1 if tell is None else 2 * _calls.SETTLE_S // PROGRESS_S):
        if tell is not None and info.get("progress") not in (None, told):
            told = info["progress"]
            tell(told)
        step_s = _calls.SETTLE_S if tell is None else PROGRESS_S
        seen = yield from deliver(_calls.wait_for_state(info["id"], "running", step_s), policy)
        info = creation.info = {**info, **seen}
        if info.get("state") == "running":
            return
        if info.get("state") not in ("starting", "resuming"):
            break
    why = info.get("startError") or info.get("stopReason")
    raise RuntimeError(
        f"The sandbox {info['id']} did not start: it is {info.get('state')}" + (f" ({why})." if why else "."),
        code="start_failed",
        details={"sandboxId": info["id"], "state": info.get("state")},
    )


def abandon(creation: Creation, policy: RetryPolicy) -> Flow[None]:
    """Undo a create that nobody waits for any more.

    Where the answer was never read, the same call with the same key brings it: the service does nothing twice.

    Raises:
        RuntimeError: the sandbox could not be deleted, and its lease will have to end it.
    """
    info = creation.info
    if info is None and creation.asked:
        again = dataclasses.replace(creation.call, wait_s=0, room_wait_s=0.0, may_retry=True)
        try:
            info = yield from deliver(again, policy)
        except RuntimeError:
            return  # refused or unreachable: there is no sandbox that we could name
    if info is None or info.get("reused"):
        return
    yield from deliver(_calls.delete_sandbox(info["id"]), policy)


def wake(call: Call[Json], sandbox_id: str, policy: RetryPolicy, *, timed: bool) -> Flow[Json]:
    """Wake a sandbox; one that is awake already is what was asked for."""
    try:
        return (yield from deliver(call, policy))
    except ConflictError as error:
        if error.code != "not_paused" or timed:
            raise
        info = yield from deliver(_calls.get_sandbox(sandbox_id), policy)
        if info.get("state") in AWAKE:
            return info
        raise


def keep_alive_once(sandbox_id: str, margin_s: int, now_s: float, policy: RetryPolicy) -> Flow[bool]:
    """Move the end of a sandbox away if it is near. Returns whether there is more to keep alive."""
    try:
        info = yield from deliver(_calls.get_sandbox(sandbox_id), policy)
        if info.get("state") in ("stopped", "stopping"):
            return False
        left_s = seconds_to_end(info, now_s)
        if info.get("state") == "running" and left_s is not None and left_s < margin_s:
            body = {"seconds": max(1, min(3600, int(margin_s - left_s) + 60))}
            yield from deliver(_calls.change_sandbox(sandbox_id, "extend", body), policy)
    except NotFoundError:
        return False
    except RuntimeError:
        return True  # the next round tries again
    return True


def seconds_to_end(info: Json, now_s: float) -> float | None:
    """Seconds until a sandbox ends by itself; None when it does not."""
    ends = info["endsAt"] if "endsAt" in info else info.get("expiresAt")
    if ends is None:
        return None
    return datetime.fromisoformat(str(ends).replace("Z", "+00:00")).timestamp() - now_s


def all_sandboxes(query: Json, policy: RetryPolicy) -> Flow[list[Json]]:
    """Every sandbox that a list with this query names, over all its pages."""
    found: list[Json] = []
    cursor: str | None = None
    while True:
        page = yield from deliver(_calls.list_sandboxes({**query, "cursor": cursor}), policy)
        found += page.data
        cursor = page.next_cursor
        if cursor is None:
            return found
