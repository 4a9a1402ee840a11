"""What the agent keeps of a command's output, against a plain list of bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_guest.output import HeadTail, Ring

writes = st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40)), max_size=60)


@given(writes, st.integers(1, 200), st.integers(0, 3000), st.integers(1, 50))
@settings(max_examples=300, deadline=None)
def test_the_newest_bytes_are_read_with_their_stream_and_position(
    written: list[tuple[int, bytes]], kept: int, cursor: int, most: int
) -> None:
    ring = Ring(kept)
    for stream, data in written:
        ring.append(stream, data)
    all_bytes = [(stream, byte) for stream, data in written for byte in data]

    found, at = [], cursor
    while (piece := ring.read(at, most)) is not None:
        assert 0 < len(piece.data) <= most
        assert piece.offset == max(at, ring.first)
        found += [(piece.stream, byte) for byte in piece.data]
        at = piece.offset + len(piece.data)

    assert ring.end == len(all_bytes)
    assert ring.first == max(0, len(all_bytes) - kept)
    assert found == all_bytes[max(cursor, ring.first) :]


def test_a_program_that_alternates_byte_by_byte_costs_little() -> None:
    ring = Ring(1000)
    for at in range(20_000):
        ring.append(at % 2, b"x")

    assert ring.end - ring.first == 1000
    assert len(ring._runs) < 2500


@given(st.lists(st.binary(max_size=50), max_size=60), st.integers(0, 300))
@settings(max_examples=300, deadline=None)
def test_head_and_tail_are_kept_and_all_is_counted(written: list[bytes], keep: int) -> None:
    part = HeadTail(keep)
    for data in written:
        part.append(data)
    whole = b"".join(written)

    kept = part.kept()

    assert part.total == len(whole)
    if len(whole) <= keep:
        assert kept == whole
    else:
        assert kept == whole[: keep // 2] + whole[len(whole) - (keep - keep // 2) :]


def test_a_ring_that_may_keep_less_forgets_at_the_next_write() -> None:
    ring = Ring(100)
    ring.append(0, bytes(100))
    ring.kept_bytes = 10
    ring.append(1, b"x")

    assert (ring.first, ring.end) == (91, 101)
