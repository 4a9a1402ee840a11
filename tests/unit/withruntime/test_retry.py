"""When a call that failed is sent again, and after how long: values only, nobody sleeps."""

import random

import pytest

from withruntime._errors import RuntimeError, error_from_envelope
from withruntime._retry import Attempts, RetryPolicy, TransportFailure


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class EvenRandom(random.Random):
    """Every spread comes out in its middle."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def attempts(clock: ManualClock | None = None, **options: object) -> Attempts:
    policy = RetryPolicy(clock=clock or ManualClock(), rng=EvenRandom())
    return Attempts(policy=policy, **options)  # type: ignore[arg-type]


def refused(status: int, code: str = "x", **more: object) -> RuntimeError:
    return error_from_envelope({"code": code, "message": "m", **more}, status=status)


def pauses(state: Attempts, failure: Exception, clock: ManualClock | None = None, at_most: int = 50) -> list[float]:
    found: list[float] = []
    while len(found) < at_most and (pause := state.pause_after(failure)) is not None:  # type: ignore[arg-type]
        found.append(round(pause, 3))
        if clock is not None:
            clock.now += pause
    return found


def test_a_connection_that_never_opened_is_tried_again_at_once_and_then_with_patience():
    assert pauses(attempts(), TransportFailure("not_connected", "")) == [0.025, 0.25, 0.5, 1.0, 2.0]


@pytest.mark.parametrize("kind", ["broken", "timeout"])
def test_a_connection_that_broke_is_tried_again_four_times(kind: str):
    assert pauses(attempts(), TransportFailure(kind, "")) == [0.25, 0.5, 1.0, 2.0]  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_passing_refusal_is_tried_again(status: int):
    assert len(pauses(attempts(), refused(status))) == 4


@pytest.mark.parametrize("status", [307, 400, 401, 402, 403, 404, 409, 422, 500, 501])
def test_any_other_refusal_is_final(status: int):
    assert pauses(attempts(), refused(status)) == []


def test_the_service_has_the_last_word_on_trying_again():
    assert pauses(attempts(), refused(503, retryable=False)) == []
    assert len(pauses(attempts(), refused(409, retryable=True))) == 4


@pytest.mark.parametrize("code", ["unavailable", "fork_unavailable", "storage_unavailable"])
def test_what_is_switched_off_is_not_asked_for_again(code: str):
    assert pauses(attempts(), refused(503, code)) == []


def test_a_named_wait_is_kept_up_to_half_a_minute_and_left_to_the_caller_past_a_minute():
    assert pauses(attempts(), refused(503, retryAfterMs=45_000))[:2] == [30.0, 30.0]
    assert pauses(attempts(), refused(503, retryAfterMs=60_001)) == []


def test_where_nothing_ran_patience_lasts_five_minutes():
    clock = ManualClock()
    waited = pauses(attempts(clock), refused(503, "guest_busy", retryAfterMs=2000), clock)

    assert waited[:5] == [2.0, 4.0, 8.0, 16.0, 16.0]
    assert 280 < sum(waited) <= 300


def test_room_is_waited_for_as_long_as_was_asked():
    clock = ManualClock()
    waited = pauses(attempts(clock, room_wait_s=20), refused(409, "no_capacity"), clock)

    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_what_can_never_fit_is_not_waited_for():
    never = refused(409, "no_capacity", details={"field": "count"})

    assert pauses(attempts(room_wait_s=20), never) == []


def test_no_room_is_final_for_a_call_that_does_not_wait():
    assert pauses(attempts(), refused(409, "no_capacity")) == []


def test_nothing_is_sent_past_the_deadline():
    clock = ManualClock()
    state = attempts(clock, deadline=clock.now + 1.0)

    assert pauses(state, TransportFailure("broken", ""), clock) == [0.25, 0.5]


def test_a_call_that_must_not_be_repeated_is_not():
    assert pauses(attempts(may_retry=False), TransportFailure("not_connected", "")) == []
