"""Whatever is done to a chain of audit lines is found: an edit, a line removed, added, moved or cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtimed.core.audit import PROBLEMS_MAX, AuditEvent, AuditLine, ChainHead, follow, head_of, verify
from runtimed.core.ids import AccountId

events = st.builds(
    AuditEvent,
    at_ms=st.integers(0, 10**13),
    account_id=st.just(AccountId("acc")),
    action=st.sampled_from(["sandbox.create", "sandbox.stop", "key.revoke"]),
    target=st.text(max_size=8),
    actor=st.text(max_size=8),
    address=st.text(max_size=8),
    request_id=st.text(max_size=8),
    details=st.dictionaries(st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.text(max_size=4)),
)
chains = st.lists(events, min_size=1, max_size=8).map(lambda told: chain(told))


def chain(told: list[AuditEvent]) -> list[AuditLine]:
    head, lines = ChainHead(), list[AuditLine]()
    for event in told:
        lines.append(follow(head, event))
        head = head_of(lines[-1])
    return lines


def some(count: int) -> list[AuditLine]:
    event = AuditEvent(
        at_ms=1, account_id=AccountId("acc"), action="sandbox.create", target="sbx", actor="key:1", details={"vcpu": 2}
    )
    return chain([replace(event, target=f"sbx {n}") for n in range(count)])


@given(chains)
def test_an_untouched_chain_is_clean(lines: list[AuditLine]) -> None:
    assert verify(lines, head=head_of(lines[-1])) == []
    assert verify([]) == []


@given(chains, st.data())
def test_an_edited_line_is_found(lines: list[AuditLine], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lines) - 1))
    edited = data.draw(events)
    assume(edited != lines[place].event)
    lines[place] = replace(lines[place], event=edited)

    assert lines[place].number in {p.number for p in verify(lines)}


@given(chains, st.data())
def test_an_edited_line_with_a_fresh_hash_is_found_as_well(lines: list[AuditLine], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lines) - 1))
    edited = data.draw(events)
    assume(edited != lines[place].event)
    head = head_of(lines[-1])
    forged = replace(lines[place], event=edited)
    lines[place] = replace(forged, hash=forged.digest())

    assert verify(lines, head=head)


@given(chains, st.data())
def test_a_removed_line_is_found_wherever_it_was(lines: list[AuditLine], data: st.DataObject) -> None:
    head = head_of(lines[-1])
    del lines[data.draw(st.integers(0, len(lines) - 1))]

    assert verify(lines, head=head)


@given(chains, st.data())
def test_lines_that_changed_places_are_found(lines: list[AuditLine], data: st.DataObject) -> None:
    moved = data.draw(st.permutations(lines))
    assume(moved != lines)

    assert verify(moved, head=head_of(lines[-1]))


@given(chains, events)
def test_a_line_that_nobody_wrote_is_found(lines: list[AuditLine], event: AuditEvent) -> None:
    head = head_of(lines[-1])

    assert verify([*lines, follow(head, event)], head=head)


@given(chains, st.data())
def test_the_end_of_a_chain_can_be_checked_alone(lines: list[AuditLine], data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(lines)))

    assert verify(lines[at:], after=head_of(lines[at - 1]), head=head_of(lines[-1])) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda lines: lines[:1] + lines[2:], (3, "1 line is missing before it")),
        (lambda lines: [lines[1], lines[0], *lines[2:]], (1, "is out of order: it comes after line 2")),
        (lambda lines: lines[:-2], (2, "2 lines are missing at the end")),
        (
            lambda lines: [replace(lines[0], hash="1" * 64), *lines[1:]],
            (1, "was edited: its hash does not fit its content"),
        ),
    ],
)
def test_a_problem_says_where_and_what(harm: Any, said: tuple[int, str]) -> None:
    lines = some(4)
    found = verify(harm(lines), head=head_of(lines[-1]))

    assert said in {(p.number, p.message) for p in found}


def test_a_chain_beyond_repair_is_not_named_line_by_line() -> None:
    lines = [replace(line, hash="") for line in some(PROBLEMS_MAX * 2)]

    assert len(verify(lines)) <= PROBLEMS_MAX + 1
