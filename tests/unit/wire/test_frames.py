"""The frame codec: what goes in comes out however it is cut, and a hostile peer ends its own channel and no more."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimed.wire import frames
from runtimed.wire.frames import Connection, ProtocolViolation

ROOT = Path(__file__).resolve().parents[3]
NONCE = bytes(range(16))


def greeted() -> tuple[Connection, Connection]:
    """A host and a guest that have greeted each other."""
    host, guest = Connection(host=True), Connection(host=False)
    host.hello(NONCE, {"version": 1})
    (hello,) = guest.receive(sent(host))
    assert isinstance(hello, frames.HelloReceived)
    guest.hello(hello.nonce, {"version": 1})
    host.receive(sent(guest))
    return host, guest


def sent(connection: Connection) -> bytes:
    return b"".join(connection.take())


def frame(
    kind: int, stream: int, payload: bytes, *, flags: int = 0, reserved: int = 0, length: int | None = None
) -> bytes:
    size = len(payload) if length is None else length
    return frames.HEADER.pack(kind, flags, reserved, stream, size) + payload


OPEN = frames.encode_json({"method": "m", "params": {}})


def test_both_sides_greet_and_talk() -> None:
    host, guest = greeted()

    stream = host.open("echo", {"n": 1}, last=True)
    opened, ended = guest.receive(sent(host))
    guest.message(stream, frames.encode_json({"ok": True}))
    guest.data(stream, b"bytes", last=True)
    answer = host.receive(sent(guest))

    assert opened == frames.Opened(1, "echo", {"n": 1})
    assert ended == frames.EndReceived(1, over=False)
    assert answer == [
        frames.MessageReceived(1, {"ok": True}, 11),
        frames.DataReceived(1, b"bytes"),
        frames.EndReceived(1, over=True),
    ]
    assert not host.knows(stream)
    assert not guest.knows(stream)


def test_the_guest_opens_even_streams_and_the_host_odd_ones() -> None:
    host, guest = greeted()

    assert (host.open("a", {}), host.open("b", {}), guest.open("c", {}), guest.open("d", {})) == (1, 3, 2, 4)
    assert [e.stream for e in host.receive(sent(guest))] == [2, 4]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[str, object]]:
    """What a host may do on its streams, as steps."""
    steps: list[tuple[str, object]] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["open", "message", "data", "end", "reset", "ping", "grant"]))
        value = draw({"data": st.binary(max_size=3000), "ping": st.binary(max_size=64)}.get(kind, objects))
        steps.append((kind, value))
    return steps


@given(conversations(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_what_is_sent_arrives_in_order_however_the_bytes_are_cut(
    steps: list[tuple[str, object]], chance: random.Random
) -> None:
    host, guest = greeted()
    expected: list[frames.Event] = []
    live: list[int] = []
    for kind, value in steps:
        stream = chance.choice(live) if live else 0
        if kind == "open":
            live.append(host.open("m", value))  # type: ignore[arg-type]
            expected.append(frames.Opened(live[-1], "m", value))  # type: ignore[arg-type]
        elif kind == "ping":
            host.ping(value)  # type: ignore[arg-type]
            expected.append(frames.PingReceived(0))
        elif not stream:
            continue
        elif kind == "message":
            payload = frames.encode_json(value)  # type: ignore[arg-type]
            host.message(stream, payload)
            expected.append(frames.MessageReceived(stream, value, len(payload)))  # type: ignore[arg-type]
        elif kind == "data":
            host.data(stream, value)  # type: ignore[arg-type]
            expected.append(frames.DataReceived(stream, value))  # type: ignore[arg-type]
        elif kind == "grant":
            host.grant(stream, 7)
            expected.append(frames.CreditReceived(stream))
        elif kind == "end":
            host.end(stream)
            live.remove(stream)
            expected.append(frames.EndReceived(stream, over=False))
        elif kind == "reset":
            host.reset(stream, "code", "message", value)  # type: ignore[arg-type]
            live.remove(stream)
            expected.append(frames.ResetReceived(stream, "code", "message", value))  # type: ignore[arg-type]

    found: list[frames.Event] = []
    data = sent(host)
    while data:
        size = chance.choice([1, 2, 11, 12, 13, 100, len(data)])
        found += guest.receive(data[:size])
        data = data[size:]

    assert found == expected


@given(st.binary(max_size=400), st.integers(0, 400), st.binary(max_size=200), st.booleans())
@settings(max_examples=400, deadline=None)
def test_hostile_bytes_end_the_channel_or_mean_nothing(noise: bytes, at: int, more: bytes, host_side: bool) -> None:
    """Bytes mixed into, and put behind, a conversation that was right up to there."""
    host, guest = greeted()
    stream = host.open("m", {"a": [1, {"b": "c"}]})
    guest.receive(sent(host))
    guest.open("g", {})
    guest.message(stream, frames.encode_json({"k": "v"}))
    guest.data(stream, b"0123456789" * 5)
    guest.reset(stream, "code", "message", {"d": 1})
    valid = sent(guest)
    victim = host if host_side else greeted()[1]
    cut = min(at, len(valid))

    try:
        victim.receive(valid[:cut] + noise + valid[cut:] + more)
    except ProtocolViolation:
        victim.restart()

    assert len(victim._in) <= len(valid) + len(noise) + len(more)
    assert victim.pending_bytes < 10_000


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12), st.integers(0, 3), st.integers(0, 9),
            st.one_of(st.binary(max_size=40), st.just(OPEN), objects.map(frames.encode_json)),
        ),
        max_size=30,
    )
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_frames_in_any_order_end_the_channel_or_mean_something(sequence: list[tuple[int, int, int, bytes]]) -> None:
    host, _ = greeted()
    host.open("m", {})
    host.take()

    try:
        for kind, flags, stream, payload in sequence:
            host.receive(frame(kind, stream, payload, flags=flags))
    except ProtocolViolation:
        return

    assert len(host._flows) <= 1 + len(sequence)


FORBIDDEN = {
    "unknown kind": frame(10, 1, b""),
    "kind zero": frame(0, 0, b""),
    "reserved bits": frame(frames.PING, 0, b"", reserved=1),
    "unknown flag": frame(frames.DATA, 1, b"", flags=2),
    "end flag on a ping": frame(frames.PING, 0, b"", flags=1),
    "too long": frame(frames.DATA, 1, b"", length=frames.MAX_FRAME + 1),
    "a long message": frame(frames.MESSAGE, 1, b"", length=frames.MAX_MESSAGE + 1),
    "a long OPEN of a guest": frame(frames.OPEN, 2, b"", length=frames.MAX_CONTROL + 1),
    "a long ping": frame(frames.PING, 0, b"", length=65),
    "a ping on a stream": frame(frames.PING, 1, b""),
    "data on stream 0": frame(frames.DATA, 0, b"x"),
    "the host's number": frame(frames.OPEN, 5, OPEN),
    "a number twice": frame(frames.OPEN, 2, OPEN) + frame(frames.OPEN, 2, OPEN),
    "a number backwards": frame(frames.OPEN, 4, OPEN) + frame(frames.OPEN, 2, OPEN),
    "a stream never opened": frame(frames.DATA, 7, b"x"),
    "a guest's stream never opened": frame(frames.WINDOW, 8, b"\0\0\0\1"),
    "data after the end": frame(frames.END, 1, b"") + frame(frames.DATA, 1, b"x"),
    "two ends": frame(frames.END, 1, b"") + frame(frames.END, 1, b""),
    "a window of three bytes": frame(frames.WINDOW, 1, b"abc"),
    "too much credit": frame(frames.WINDOW, 1, b"\xff\xff\xff\xff"),
    "more than the window": frame(frames.DATA, 1, b"x" * frames.HOST_WINDOW) + frame(frames.DATA, 1, b"x"),
    "no JSON": frame(frames.MESSAGE, 1, b"{"),
    "a list": frame(frames.MESSAGE, 1, b"[]"),
    "no number": frame(frames.MESSAGE, 1, b'{"a":NaN}'),
    "a number too long": frame(frames.MESSAGE, 1, b'{"a":' + b"9" * 5000 + b"}"),
    "very deep": frame(frames.MESSAGE, 1, b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "deep": frame(frames.MESSAGE, 1, b'{"a":' + b"[" * 40 + b"]" * 40 + b"}"),
    "an OPEN of nothing": frame(frames.OPEN, 2, b"{}"),
    "a RESET of nothing": frame(frames.RESET, 1, b"{}"),
    "a HELLO for another": frame(frames.HELLO, 0, frames.MAGIC + bytes(16) + b"{}"),
    "a HELLO without magic": frame(frames.HELLO, 0, b"{}"),
    "guest streams without end": b"".join(frame(frames.OPEN, 2 * n, OPEN) for n in range(1, 514)),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_guest_that_breaks_a_rule_is_found_out(what: str) -> None:
    host, _ = greeted()
    host.open("m", {})

    with pytest.raises(ProtocolViolation):
        host.receive(FORBIDDEN[what])


def test_the_last_allowed_stream_and_byte_are_allowed() -> None:
    host, _ = greeted()
    host.open("m", {})

    host.receive(frame(frames.DATA, 1, b"x" * frames.HOST_WINDOW))
    events = host.receive(b"".join(frame(frames.OPEN, 2 * n, OPEN) for n in range(1, 513)))

    assert len(events) == 512


def test_what_was_on_its_way_to_a_stream_given_up_is_no_fault() -> None:
    host, guest = greeted()
    stream = host.open("m", {})
    guest.receive(sent(host))
    guest.data(stream, b"late")
    guest.end(stream)

    host.reset(stream, "cancelled", "not needed")

    assert host.receive(sent(guest)) == []


def test_credit_is_spent_and_granted_each_way() -> None:
    host, guest = greeted()
    stream = host.open("m", {})
    guest.receive(sent(host))
    guest.data(stream, bytes(frames.HOST_WINDOW))
    host.receive(sent(guest))

    assert guest.credit(stream) == 0
    with pytest.raises(ValueError, match="no room"):
        guest.data(stream, b"x")
    host.grant(stream, 100)
    assert guest.receive(sent(host)) == [frames.CreditReceived(stream)]
    guest.data(stream, bytes(100))
    assert host.receive(sent(guest)) == [frames.DataReceived(stream, bytes(100))]


def test_a_hosts_new_hello_makes_the_guest_forget_its_streams() -> None:
    host, guest = greeted()
    host.open("old", {})
    guest.receive(sent(host))
    guest.open("old too", {})

    anew = Connection(host=True)
    anew.hello(bytes(16), {})
    (hello,) = guest.receive(sent(anew))

    assert isinstance(hello, frames.HelloReceived)
    assert hello.fresh
    assert guest.take() == []
    assert guest.credit(1) == 0
    assert guest.open("new", {}) == 2


def test_a_hello_repeated_keeps_the_streams() -> None:
    host, guest = greeted()
    host.open("kept", {})
    host.hello(NONCE, {})
    _, hello = guest.receive(sent(host))

    assert isinstance(hello, frames.HelloReceived)
    assert not hello.fresh
    assert guest.credit(1) == frames.HOST_WINDOW


@given(st.binary(max_size=300), st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_stale_bytes_before_the_answer_are_thrown_away(stale: bytes, size: int) -> None:
    host, guest = Connection(host=True), Connection(host=False)
    host.hello(NONCE, {})
    guest.receive(sent(host))
    guest.hello(NONCE, {"me": 1})
    guest.hello(NONCE, {"me": 1})
    old = frame(frames.HELLO, 0, frames.MAGIC + b"another nonce..." + b"{}") + frame(frames.DATA, 9, b"half", length=99)
    data = old + stale + sent(guest)

    events = [event for at in range(0, len(data), size) for event in host.receive(data[at : at + size])]

    assert [type(event) for event in events] == [frames.HelloReceived] * 2
    assert [getattr(event, "fresh", None) for event in events] == [True, False]


def test_noise_without_a_hello_is_not_kept() -> None:
    host = Connection(host=True)
    host.hello(NONCE, {})

    for _ in range(100):
        host.receive(bytes(10_000))

    assert len(host._in) < 100


def test_a_guest_in_a_half_read_frame_finds_the_next_hello_after_a_restart() -> None:
    host, guest = greeted()
    stream = host.open("m", {})
    guest.receive(sent(host))
    host.data(stream, bytes(1000))
    guest.receive(sent(host)[:500])

    guest.restart()
    anew = Connection(host=True)
    anew.hello(bytes(16), {})
    (hello,) = guest.receive(bytes(200) + sent(anew))

    assert isinstance(hello, frames.HelloReceived)


def test_parameters_that_fit_no_frame_are_refused_before_they_are_sent() -> None:
    host, guest = greeted()

    with pytest.raises(ValueError, match="too long"):
        host.open("m", {"a": "x" * frames.MAX_FRAME})
    with pytest.raises(ValueError, match="too long"):
        guest.open("m", {"a": "x" * frames.MAX_CONTROL})
    assert host.take() == []


def test_a_reset_never_outgrows_its_frame() -> None:
    host, guest = greeted()
    stream = host.open("m", {})
    guest.receive(sent(host))

    guest.reset(stream, "code", "m" * 200_000, {"d": "x" * 200_000})

    (reset,) = host.receive(sent(guest))
    assert isinstance(reset, frames.ResetReceived)
    assert len(reset.message) == 1024


def test_the_guests_copies_are_fresh() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "tools" / "copy_frames.py"), "--check"], capture_output=True)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "runtime_guest").glob("*.py")), ids=lambda path: path.name)
def test_the_guest_needs_the_standard_library_of_python_3_9_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom)
            else []
        )
    }  # fmt: skip

    assert imported <= sys.stdlib_module_names | {"runtime_guest"}
