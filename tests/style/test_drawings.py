"""Compares drawings in docstrings with the code that they draw: the error tree and the lifecycle."""

from __future__ import annotations

import re

from runtimed.core import errors, lifecycle
from runtimed.core.errors import RuntimedError, every_error
from runtimed.core.lifecycle import LIVE, TRANSITIONS, Fact, State

DRAWN_LINE = re.compile(r"^( *)[*+.-] (\w+) +(?:(\d{3}) (\w+))?")
DRAWN_ARROW = re.compile(r"([A-Z]+) --(\w+)--> (?=([A-Z]+))")


def drawn_errors() -> dict[str, tuple[str | None, str | None, str | None]]:
    """Class name to (name of its parent, status, code) as the docstring draws them."""
    drawn: dict[str, tuple[str | None, str | None, str | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if (found := DRAWN_LINE.match(line)) is None:
            continue
        indent, name = len(found[1]), found[2]
        above = [(depth, parent) for depth, parent in above if depth < indent]
        drawn[name] = (above[-1][1] if above else None, found[3], found[4])
        above.append((indent, name))
    return drawn


def real_errors() -> list[type[RuntimedError]]:
    found, left = list[type[RuntimedError]](), [RuntimedError]
    while left:
        kind = left.pop()
        found.append(kind)
        left.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_the_drawn_error_tree_is_the_one_in_the_code() -> None:
    drawn = drawn_errors()

    assert drawn.keys() == {kind.__name__ for kind in real_errors()}
    for kind in real_errors():
        parent, status, code = drawn[kind.__name__]
        assert parent == (None if kind is RuntimedError else kind.__bases__[0].__name__)
        if status is not None:
            assert (status, code) == (str(kind.status), kind.code), kind.__name__


def test_each_code_a_client_can_meet_belongs_to_one_class() -> None:
    leaves = [kind for kind in real_errors() if drawn_errors()[kind.__name__][2] is not None]

    assert len({kind.code for kind in leaves}) == len(leaves)
    assert {kind.code for kind in leaves} <= every_error().keys()


def test_every_drawn_arrow_of_the_lifecycle_is_in_the_table() -> None:
    arrows = DRAWN_ARROW.findall(lifecycle.__doc__ or "")

    assert len(arrows) >= 4
    for before, fact, after in arrows:
        assert TRANSITIONS[State[before], Fact[fact.upper()]] is State[after]


def test_only_a_restart_leaves_stopped() -> None:
    leaving = {fact for (before, fact), after in TRANSITIONS.items() if before is State.STOPPED is not after}

    assert leaving == {Fact.RESTART_ASKED}


def test_every_state_can_be_reached_and_can_be_stopped() -> None:
    reached, before = {State.STARTING}, set[State]()
    while reached != before:
        before = set(reached)
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in before}

    assert reached == set(State)
    assert all((state, Fact.STOP_ASKED) in TRANSITIONS for state in State)


def test_a_machine_that_is_gone_ends_every_state_that_had_one() -> None:
    assert all(TRANSITIONS[state, Fact.EXITED] is State.STOPPED for state in LIVE)


def test_asking_twice_to_stop_changes_nothing() -> None:
    for state in State:
        once = TRANSITIONS[state, Fact.STOP_ASKED]

        assert TRANSITIONS[once, Fact.STOP_ASKED] is once
