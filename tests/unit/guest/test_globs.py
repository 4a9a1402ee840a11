"""Patterns of listings and archives."""

from __future__ import annotations

import pytest

from runtime_guest.globs import Exclusions, Glob


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a/b.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("a/**", "a/b/c", True),
        ("a/**", "b/a", False),
        ("a/**/d", "a/d", True),
        ("a/**/d", "a/b/c/d", True),
        ("a/**/**/d", "a/d", True),
        ("**", "anything/at/all", True),
        ("[ab]?", "a1", True),
        ("[!ab]?", "a1", False),
        ("a.b", "axb", False),
        ("./a/", "a", True),
        ("new*", "new\nline", True),
        ("x*y", "x/y", False),
    ],
)
def test_patterns_match_names_and_double_stars_match_folders(pattern: str, path: str, matches: bool) -> None:
    assert Glob(pattern).matches(tuple(path.split("/"))) is matches


def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    assert not Glob("/".join(["**", "a"] * 40)).matches(("a",) * 39 + ("b",))


def test_exclusions_without_a_slash_are_for_any_folder_and_with_one_from_the_top() -> None:
    exclusions = Exclusions([".git", "build/x", "/only-top"])

    assert exclusions.excludes(("deep", ".git"))
    assert exclusions.excludes(("build", "x"))
    assert not exclusions.excludes(("deep", "build", "x"))
    assert exclusions.excludes(("only-top",))
    assert not exclusions.excludes(("deep", "only-top"))
