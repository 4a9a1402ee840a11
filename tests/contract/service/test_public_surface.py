"""The names and signatures that programs written for the public client rely on: those of the published one."""

import inspect
import json
import subprocess

import pytest

import withruntime
from tests.published import python_with
from withruntime.tools import sandbox_tools

CLASSES = ["Runtime", "Sandbox", "Sandboxes", "Files", "Process", "Page", "CommandResult", "TracedFiles"]
ONE_FOR_BOTH = ("CommandResult", "TracedFiles")
"""Of these there is no asynchronous kind."""
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
    told = subprocess.run([python_with("client"), "-I", "-c", DUMP], capture_output=True, check=True, text=True)
    return json.loads(told.stdout)


def parameters(function: object) -> list[list[str]]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [[p.name, p.kind.name, repr(p.default)] for p in found]


@pytest.mark.parametrize("name", [*CLASSES, *(f"Async{name}" for name in CLASSES if name not in ONE_FOR_BOTH)])
def test_every_member_that_is_built_takes_what_the_public_one_takes(public: dict, name: str):
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
