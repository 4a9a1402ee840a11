"""The event stream of a command, fed by hand: no socket, no clock."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from withruntime import _calls
from withruntime._errors import OutcomeUnknownError, RuntimeError
from withruntime._retry import RetryPolicy, TransportFailure
from withruntime._stream import KEPT_MAX_BYTES, Follower, LineDecoder, Open, Pause, ResultCollector

START = {"type": "start", "processId": "p"}


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def line(event: dict) -> bytes:
    return json.dumps(event).encode() + b"\n"


def out(data: str, offset: int, **more: object) -> dict:
    return {"type": "stdout", "data": data, "offset": offset, **more}


def following(clock: ManualClock | None = None, **options: object) -> Follower:
    policy = RetryPolicy(clock=clock or ManualClock())
    return Follower(sandbox_id="a", policy=policy, process_id="p", **options)  # type: ignore[arg-type]


def starting(clock: ManualClock | None = None, **options: object) -> Follower:
    call = _calls.exec_streamed("a", _calls.CommandSpec(command="x"), key="k")
    policy = RetryPolicy(clock=clock or ManualClock())
    return Follower(sandbox_id="a", policy=policy, first=call, **options)  # type: ignore[arg-type]


def path_of(step: object) -> str:
    assert isinstance(step, Open)
    return step.call.path


@given(st.lists(st.text()), st.data())
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], data: st.DataObject):
    events = [{"type": "stdout", "data": text} for text in texts]
    stream = b"\n".join(line(event) for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    decoder = LineDecoder()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert [event for piece in pieces for event in decoder.feed(piece)] == events


@pytest.mark.parametrize("junk", [b"{\n", b"[]\n", b"{}\n", b'{"type": 1}\n', b"\xff\n"])
def test_a_line_that_is_no_event_is_an_error(junk: bytes):
    with pytest.raises(RuntimeError) as refused:
        LineDecoder().feed(junk)

    assert refused.value.code == "invalid_answer"


def test_a_line_without_an_end_is_an_error():
    decoder = LineDecoder()
    with pytest.raises(RuntimeError, match="without an end"):
        for _ in range(18):
            decoder.feed(b"x" * (1 << 20))


def test_bytes_count_as_they_were_and_not_as_they_read():
    follower = following()
    follower.feed(line(out("é", 0)))
    follower.feed(line(out("\ufffd", 2, base64=base64.b64encode(b"\xff").decode())))

    assert follower.cursor == 3


def test_what_comes_twice_is_told_once():
    follower = following(cursor=4)

    assert follower.feed(line(out("abcd", 0))) == []
    (told,) = follower.feed(line(out("cdef", 2)))
    assert (told["data"], told["offset"], base64.b64decode(told["base64"])) == ("ef", 4, b"ef")


def test_a_gap_is_told_with_its_size():
    assert following().feed(line(out("z", 7)))[0] == {"type": "truncated", "droppedBytes": 7, "resumeAt": 7}


def test_nothing_after_the_exit_is_told():
    follower = following()
    told = follower.feed(line({"type": "exit", "exitCode": None}) + line(out("late", 0)))

    assert [event["type"] for event in told] == ["exit"]
    assert follower.next_step() is None


def test_a_command_that_was_never_said_to_start_is_asked_for_under_the_same_key():
    follower = starting()
    first = follower.next_step()
    follower.closed(TransportFailure("not_connected", ""))

    assert isinstance(follower.next_step(), Pause)
    assert follower.next_step() == first


def test_a_command_that_never_starts_is_given_up():
    follower = starting()
    with pytest.raises(RuntimeError, match="before the command started") as failed:
        for _ in range(9):
            follower.closed(None)

    assert failed.value.code == "connection_error"
    assert failed.value.idempotency_key == "k"


def test_after_the_start_only_the_output_is_asked_for():
    follower = starting()
    follower.next_step()
    follower.feed(line(START) + line(out("ab", 0)))
    follower.closed(TransportFailure("broken", ""))

    assert isinstance(follower.next_step(), Pause)
    assert path_of(follower.next_step()) == "/v1/sandboxes/a/processes/p/output?cursor=2&follow=true"


def test_a_service_that_keeps_ending_the_stream_politely_is_given_up_with_the_way_back():
    follower = following(cursor=5)
    with pytest.raises(OutcomeUnknownError) as lost:
        for _ in range(4):
            follower.next_step()
            follower.closed(None)

    assert lost.value.details == {"processId": "p", "cursor": 5}


def test_every_sign_of_life_renews_the_patience():
    follower = following()
    for number in range(20):
        while isinstance(follower.next_step(), Pause):
            pass
        if number % 2:
            follower.feed(line({"type": "continue", "processId": "p", "cursor": 0}))
        follower.closed(None)


def test_a_service_that_is_away_is_waited_for_five_minutes():
    clock = ManualClock()
    follower = following(clock)
    with pytest.raises(OutcomeUnknownError):
        while True:
            step = follower.next_step()
            if isinstance(step, Pause):
                clock.now += step.seconds
            else:
                follower.closed(TransportFailure("not_connected", ""))

    assert 300 < clock.now < 320


def test_no_connection_is_opened_past_the_deadline():
    clock = ManualClock()
    follower = following(clock, deadline_s=10)
    follower.next_step()
    clock.now = 9.9
    follower.closed(TransportFailure("broken", ""))
    pause = follower.next_step()
    assert isinstance(pause, Pause)
    assert pause.seconds <= 0.1
    clock.now = 10
    with pytest.raises(OutcomeUnknownError):
        follower.next_step()


def test_a_result_keeps_the_beginning_and_the_newest_and_says_how_much_there_was():
    collector = ResultCollector()
    text = "é" * KEPT_MAX_BYTES
    for start in range(0, len(text), 65_537):
        collector.add(out(text[start : start + 65_537], start))
    collector.add(out("END", 0))
    result = collector.result({"type": "exit", "exitCode": 0})

    assert result.stdout_truncated
    assert not result.stderr_truncated
    assert result.stdout_total_bytes == 2 * KEPT_MAX_BYTES + 3
    assert result.stdout.startswith("éé")
    assert result.stdout.endswith("éEND")
    assert "\ufffd" not in result.stdout
    assert KEPT_MAX_BYTES - 8 <= len(result.stdout.encode()) <= KEPT_MAX_BYTES


@pytest.mark.parametrize("size", [0, 65_535, 65_536, 65_537, KEPT_MAX_BYTES])
def test_ex_31_what_fits_is_whole(size: int):
    collector = ResultCollector()
    collector.add(out("x" * size, 0))
    result = collector.result({"type": "exit", "exitCode": 0, "state": "exited"})

    assert (len(result.stdout), result.stdout_truncated, result.timed_out) == (size, False, False)


def test_ex_33_nothing_is_framed_by_lines():
    collector = ResultCollector()
    collector.add(out("a\n\n", 0))
    collector.add(out("\nb", 3))

    assert collector.result({"type": "exit"}).stdout == "a\n\n\nb"


def test_ex_29_a_character_cut_in_two_is_whole_in_the_result():
    collector = ResultCollector()
    for offset, half in enumerate((b"\xc3", b"\xa9")):
        collector.add(out("\ufffd", offset, base64=base64.b64encode(half).decode()))

    assert collector.result({"type": "exit"}).stdout == "é"


def test_a_time_limit_is_a_result():
    assert ResultCollector().result({"type": "exit", "exitCode": -9, "state": "timed_out"}).timed_out
