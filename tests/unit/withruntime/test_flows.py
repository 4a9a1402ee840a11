"""Operations of several steps, fed by hand: each test plays the service."""

import pytest

from withruntime import _calls, _flows
from withruntime._errors import ConnectionError, RuntimeError, error_from_envelope
from withruntime._flows import Attempt, Creation, Refusal, Sleep
from withruntime._retry import RetryPolicy, TransportFailure


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answered(info: dict) -> _calls.Answer:
    import json

    return _calls.Answer(status=200, headers={}, body=json.dumps(info).encode())


def refused(status: int, code: str) -> Refusal:
    return Refusal(error=error_from_envelope({"code": code, "message": "m"}, status=status))


def creation(**fields: object) -> Creation:
    call = _calls.create_sandbox(fields, key="k", wait=True, room_wait_s=60)
    return Creation(call=call, wait=True)


def returned(flow: _flows.Flow, outcome: object) -> object:
    with pytest.raises(StopIteration) as end:
        flow.send(outcome)
    return end.value.value


def asked(step: object) -> str:
    assert isinstance(step, Attempt)
    return f"{step.call.method} {step.call.path}"


def test_the_headers_of_an_answer_are_waited_for_two_minutes_at_most():
    step = next(_flows.deliver(_calls.get_sandbox("a"), RetryPolicy()))

    assert isinstance(step, Attempt)
    assert (step.headers_s, step.silence_s, step.total_s) == (125.0, 300.0, None)


def test_every_attempt_gets_only_what_is_left_of_the_deadline():
    clock = ManualClock()
    call = _calls.exec_buffered("a", _calls.CommandSpec(command="x", timeout_ms=1000), key="k")
    flow = _flows.deliver(call, RetryPolicy(clock=clock))
    step = next(flow)
    assert isinstance(step, Attempt)
    assert step.total_s == 61.0
    clock.now = 60.0
    assert isinstance(flow.throw(TransportFailure("not_connected", "")), Sleep)
    step = next(flow)

    assert isinstance(step, Attempt)
    assert step.total_s == pytest.approx(1.0)
    assert step.headers_s == pytest.approx(1.0)
    clock.now = 61.0
    with pytest.raises(ConnectionError):
        flow.throw(TransportFailure("timeout", ""))


def test_a_cancelled_create_whose_answer_was_never_read_asks_for_it_and_deletes():
    made = creation(name="mine")
    flow = _flows.create(made, RetryPolicy())
    first = next(flow)
    flow.close()
    undo = _flows.abandon(made, RetryPolicy())
    again = next(undo)
    assert isinstance(first, Attempt)
    assert isinstance(again, Attempt)
    assert again.call.body == first.call.body
    assert again.call.headers() == {**first.call.headers(), "Prefer": "wait=0"}

    assert asked(undo.send(answered({"id": "a"}))) == "DELETE /v1/sandboxes/a"
    assert returned(undo, answered({})) is None


def test_a_create_that_was_never_sent_needs_no_undoing():
    with pytest.raises(StopIteration):
        next(_flows.abandon(creation(), RetryPolicy()))


def test_a_create_that_was_refused_after_all_leaves_nothing_to_delete():
    made = creation()
    next(_flows.create(made, RetryPolicy()))
    undo = _flows.abandon(made, RetryPolicy())
    next(undo)

    assert returned(undo, refused(400, "invalid_request")) is None


def test_a_sandbox_that_was_there_before_is_not_deleted_by_a_cancel():
    made = creation(name="mine", get_or_create=True)
    next(_flows.create(made, RetryPolicy()))
    undo = _flows.abandon(made, RetryPolicy())
    next(undo)

    assert returned(undo, answered({"id": "a", "reused": True})) is None


def test_a_create_cancelled_while_it_starts_is_deleted_without_asking():
    made = creation()
    flow = _flows.create(made, RetryPolicy())
    next(flow)
    assert "waitFor=running" in asked(flow.send(answered({"id": "a", "state": "starting"})))
    flow.close()

    assert asked(next(_flows.abandon(made, RetryPolicy()))) == "DELETE /v1/sandboxes/a"


def test_keeping_alive_moves_only_an_end_that_is_near():
    near = {"id": "a", "state": "running", "endsAt": "1970-01-01T00:05:00.000Z"}
    flow = _flows.keep_alive_once("a", 600, 0.0, RetryPolicy())
    next(flow)
    step = flow.send(answered(near))
    assert isinstance(step, Attempt)
    assert step.call.body == {"seconds": 360}
    assert returned(flow, answered(near)) is True


@pytest.mark.parametrize("ends", [None, "1970-01-01T01:00:00.000Z"])
def test_keeping_alive_leaves_an_end_that_is_far_or_never(ends: str | None):
    flow = _flows.keep_alive_once("a", 600, 0.0, RetryPolicy())
    next(flow)

    assert returned(flow, answered({"id": "a", "state": "running", "endsAt": ends})) is True


@pytest.mark.parametrize(
    "outcome", [answered({"id": "a", "state": "stopped"}), refused(404, "not_found")], ids=["stopped", "gone"]
)
def test_keeping_alive_ends_with_the_sandbox(outcome: object):
    flow = _flows.keep_alive_once("a", 600, 0.0, RetryPolicy())
    next(flow)

    assert returned(flow, outcome) is False


def test_waking_with_a_new_end_does_not_pass_for_done_on_one_that_is_awake():
    call = _calls.change_sandbox("a", "wake", {"timeoutSeconds": 60})
    flow = _flows.wake(call, "a", RetryPolicy(), timed=True)
    next(flow)
    with pytest.raises(RuntimeError):
        flow.send(refused(409, "not_paused"))
