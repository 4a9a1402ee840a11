"""The names and signatures that programs written for the public client rely on."""

import inspect
import json
import subprocess
from pathlib import Path

import pytest

import withruntime
from withruntime.tools import sandbox_tools

PUBLIC_CLIENT = Path("/tmp/pubclient/bin/python")
"""An environment with the public package in it; where there is none, there is nothing to compare with."""

CLASSES = ["Runtime", "Sandbox", "Sandboxes", "Files", "Process", "Page", "CommandResult", "TracedFiles"]
NOT_BUILT = {
    "Sandbox": {"forward_port", "from_session", "identity_token", "switch_image", "terminal"},
    "Files": {"download_url", "revoke_links", "upload_url", "watch", "watches"},
}
DUMP = (
    f"CLASSES = {CLASSES!r}"
    + """
import inspect, json, withruntime
from withruntime.tools import sandbox_tools
def parameters(function):
    return [(p.name, p.kind.name, repr(p.default)) for p in inspect.signature(function).parameters.values()]
found = {}
for name in CLASSES:
    for prefix in ("", "Async"):
        kind = getattr(withruntime, prefix + name, None)
        if kind is None:
            continue
        members = {}
        for member, value in inspect.getmembers(kind):
            if not member.startswith("_"):
                members[member] = parameters(value) if callable(value) else "property"
        found[prefix + name] = members
errors = {name: [base.__name__ for base in value.__mro__] for name, value in vars(withruntime).items()
          if isinstance(value, type) and issubclass(value, BaseException)}
tools = [[f.__name__, parameters(f)] for f in sandbox_tools(withruntime.Sandbox(None, {"id": "a"}))]
print(json.dumps({"classes": found, "errors": errors, "tools": tools}))
"""
)


@pytest.fixture(scope="module")
def public() -> dict:
    if not PUBLIC_CLIENT.exists():
        pytest.skip("there is no environment with the public client to compare with")
    told = subprocess.run([PUBLIC_CLIENT, "-c", DUMP], capture_output=True, check=True, text=True, cwd="/")
    return json.loads(told.stdout)


def parameters(function: object) -> list[list[str]]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [[p.name, p.kind.name, repr(p.default)] for p in found]


@pytest.mark.parametrize("name", [f"{prefix}{name}" for name in CLASSES for prefix in ("", "Async")])
def test_every_member_that_is_built_takes_what_the_public_one_takes(public: dict, name: str):
    if name not in public["classes"]:
        pytest.skip(f"the public client has no {name}")
    ours = getattr(withruntime, name)
    missing = NOT_BUILT.get(name.removeprefix("Async"), set())
    differing = {}
    for member, wanted in public["classes"][name].items():
        if member in missing:
            continue
        have = getattr(ours, member, None)
        got = parameters(have) if callable(have) else "property"
        if have is None or (callable(have) and got[: len(wanted)] != wanted):
            differing[member] = (wanted, got)

    assert differing == {}


def test_the_exceptions_are_the_same_tree(public: dict):
    ours = {
        name: [base.__name__ for base in getattr(withruntime, name).__mro__]
        for name in public["errors"]
        if name != "WebhookVerificationError"
    }

    assert ours == {name: bases for name, bases in public["errors"].items() if name != "WebhookVerificationError"}


def test_the_tools_have_the_same_names_and_parameters(public: dict):
    ours = [[tool.__name__, parameters(tool)] for tool in sandbox_tools(withruntime.Sandbox(None, {"id": "a"}))]

    assert ours == public["tools"]


def test_both_clients_have_the_same_members():
    for name in CLASSES[:-2]:
        sync, twin = getattr(withruntime, name), getattr(withruntime, f"Async{name}")

        assert {m for m in dir(sync) if m[0] != "_"} == {m for m in dir(twin) if m[0] != "_"}


def test_the_drawing_of_errors_is_the_tree():
    import re

    from withruntime import _errors

    drawn = re.findall(r"^\s*[*+-] (\w+)", _errors.__doc__ or "", re.MULTILINE)
    there = [n for n, v in vars(_errors).items() if isinstance(v, type) and issubclass(v, _errors.RuntimeError)]

    assert sorted(drawn) == sorted(set(there) - {"RuntimeAPIError", "RuntimeConnectionError"})
