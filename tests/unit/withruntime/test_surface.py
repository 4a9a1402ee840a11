"""Both clients have the same members, and the drawing of the errors is what they are."""

import re

import withruntime
from withruntime import _errors

CLASSES = ["Runtime", "Sandbox", "Sandboxes", "Files", "Process", "Page"]


def test_both_clients_have_the_same_members():
    for name in CLASSES:
        sync, twin = getattr(withruntime, name), getattr(withruntime, f"Async{name}")

        assert {m for m in dir(sync) if m[0] != "_"} == {m for m in dir(twin) if m[0] != "_"}


def test_the_drawing_of_errors_is_the_tree():
    drawn = re.findall(r"^\s*[*+-] (\w+)", _errors.__doc__ or "", re.MULTILINE)
    there = [n for n, v in vars(_errors).items() if isinstance(v, type) and issubclass(v, _errors.RuntimeError)]

    assert sorted(drawn) == sorted(set(there) - {"RuntimeAPIError", "RuntimeConnectionError"})
