"""Each change that the API knows has a name in the audit log that people can read and filter by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtimed.api.auditing import _action

DOCUMENT = json.loads((Path(__file__).resolve().parents[3] / "docs" / "openapi.json").read_text())
CHANGES = [
    (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods if method != "get"
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_change_has_a_name_of_a_thing_and_a_verb(method: str, path: str) -> None:
    name = _action({"method": method, "route": SimpleNamespace(path=path)})

    assert re.fullmatch(r"[a-z]+\.[a-z]+", name), name


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v1/sandboxes/{sandbox_id}:wake", "sandbox.wake"),
        ("POST", "/v1/snapshots/{snapshot_id}:delete", "snapshot.delete"),
        ("POST", "/v1/sandboxes/{sandbox_id}/processes/{process_id}:signal", "process.signal"),
        ("POST", "/v1/sandboxes/{sandbox_id}/files/archive/uploads/{upload_id}:commit", "upload.commit"),
        ("POST", "/v1/sandboxes/{sandbox_id}/files:rename", "file.rename"),
        ("PUT", "/v1/new/{name}", "PUT new/{name}"),
    ],
)
def test_names_are_made_of_the_route(method: str, path: str, name: str) -> None:
    assert _action({"method": method, "route": SimpleNamespace(path=path)}) == name
