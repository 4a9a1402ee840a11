"""What an image's /etc/environment sets is what commands get."""

from __future__ import annotations

import pytest

from runtime_guest.network import variables


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('MPLBACKEND="Agg"', {"MPLBACKEND": "Agg"}),
        ("A='b c'", {"A": "b c"}),
        ("A=b=c", {"A": "b=c"}),
        ("export A=1", {"A": "1"}),
        ('A="', {"A": '"'}),
        ("A=", {"A": ""}),
        ("# A=1", {}),
        ("1A=1", {}),
        ("nothing", {}),
        ("", {}),
    ],
)
def test_a_line_sets_what_it_names(line: str, found: dict[str, str]) -> None:
    assert variables([line]) == found
