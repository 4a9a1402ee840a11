"""Whatever is sent to any route of the API, the answer is never a fault of ours, and never in Python's own words.

`HYPOTHESIS_EXAMPLES=3000` looks longer than the few seconds of a usual run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimed.api.app import routes
from runtimed.api.document import openapi_document

from .conftest import Api

DOCUMENT: dict[str, Any] = openapi_document(routes())
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "200"))
PATIENCE_S = 0.3
"""What waits for a state that never comes, or follows, is left after so long, as by a client that hangs up."""
PYTHON = re.compile(
    r"codec can't|Traceback|Error\(|object has no|NoneType|<class|Input should|\bdict\b|validation error"
)

Strategy = st.SearchStrategy[Any]

ANY_CHARACTER = st.characters(categories=("L", "N", "P", "Z", "S", "Cc", "Cs"))
TEXTS: Strategy = st.one_of(
    st.sampled_from(
        ["", "a", "/workspace/a", "/", "..", "/workspace/../etc", "a/b", "a%2Fb", "\0", "\ud800", "é", "name"]
    ),
    st.text(ANY_CHARACTER, max_size=12),
    st.sampled_from(["x" * 5000, "/" + "x" * 300, "/x" * 3000]),
)
NUMBERS: Strategy = st.one_of(
    st.integers(-2, 100), st.sampled_from([2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308])
)
JUNK: Strategy = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def fitting(schema: dict[str, Any]) -> Strategy:
    """Values of a schema, as far as it goes without its patterns, and now and then something else."""
    if "$ref" in schema:
        return st.deferred(lambda: fitting(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of(*(fitting(one) for one in choices))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    low, high = schema.get("minimum", -2), schema.get("maximum", 10**6)
    kinds: dict[str, Strategy] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(int(low), int(max(low, high))),
        "number": st.floats(float(low), float(max(low, high))),
        "string": TEXTS,
    }
    kind = schema.get("type")
    if kind == "array":
        return st.lists(usually(schema.get("items", {})), max_size=3)
    if kind == "object":
        named = {name: usually(inner) for name, inner in schema.get("properties", {}).items()}
        required = {name: named.pop(name) for name in schema.get("required", []) if name in named}
        more = schema.get("additionalProperties")
        rest = st.dictionaries(TEXTS, usually(more) if isinstance(more, dict) else JUNK, max_size=2)
        whole = st.fixed_dictionaries(required, optional=named)
        return st.builds(lambda known, extra: {**extra, **known}, whole, rest) if more else whole
    return kinds.get(str(kind), JUNK)


def usually(schema: dict[str, Any]) -> Strategy:
    return st.integers(0, 9).flatmap(lambda dice: JUNK if dice == 0 else fitting(schema))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Some request to some route; `{sandbox_id}` still stands in its path where it is to be a sandbox that runs."""
    method, path, operation = draw(st.sampled_from(OPERATIONS))
    query: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    for parameter in operation.get("parameters", []):
        name, place = parameter["name"], parameter["in"]
        if place == "query" and (parameter.get("required") or draw(st.booleans())):
            query.append((name, str(draw(usually(parameter["schema"])))))
        if place == "path" and (name != "sandbox_id" or draw(st.integers(0, 5)) == 0):
            path = path.replace(f"{{{name}}}", quote(draw(TEXTS).encode("utf-8", "replace"), safe="") or "_")
    if draw(st.integers(0, 4)) == 0:
        headers["Idempotency-Key"] = draw(st.sampled_from(["one", "two", "three", "", "ü", "x" * 300, "a b"]))
    if draw(st.integers(0, 9)) == 0:
        headers["Prefer"] = draw(
            st.sampled_from(["wait=0", "wait=x", "wait=-1", "wait=\u00b2", ",;=", "respond-async"])
        )
    return {
        "method": method,
        "path": path,
        "params": [(name, value.encode("utf-8", "replace").decode()) for name, value in query],
        "headers": headers,
        "content": draw(bodies(operation)),
    }


def bodies(operation: dict[str, Any]) -> Strategy:
    broken = st.sampled_from(
        [b"", b"{", b"[]", b"null", b'"', b"\xff\xfe", b"[" * 20_000, b'{"a":' * 900 + b"1" + b"}" * 900]
    )
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return st.one_of(st.just(b""), st.binary(max_size=64))
    schema = content["application/json"]["schema"]
    fine = usually(schema).map(lambda value: json.dumps(value).encode())
    return st.integers(0, 11).flatmap(lambda dice: broken if dice == 0 else fine)


def judge(request: dict[str, Any], reply: httpx.Response) -> None:
    said = f"{request['method']} {request['path']} {request['params']} {request['content'][:300]!r}: {reply.text[:600]}"
    assert reply.status_code not in (500, 502), said
    if reply.status_code < 400:
        return
    error = reply.json()["error"]
    assert error["status"] == reply.status_code, said
    assert error["code"], said
    assert error["message"], said
    assert PYTHON.search(error["message"]) is None, said
    if error["code"] == "invalid_request":
        assert all(issue["field"] and issue["message"] for issue in error["details"]["issues"]), said


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(request=requests())
async def test_whatever_is_sent_is_answered_or_refused_in_our_own_words(api: Api, request: dict[str, Any]) -> None:
    if not api.created or (await api.http.get(f"/v1/sandboxes/{api.created[-1]}")).json().get("state") != "running":
        api.created.append((await api.create())["id"])
    path = request["path"].replace("{sandbox_id}", api.created[-1])
    headers = {"Content-Type": "application/json", **{k: v.encode() for k, v in request["headers"].items()}}
    asking = api.http.request(
        request["method"], path, params=request["params"], content=request["content"], headers=headers
    )
    try:
        reply = await asyncio.wait_for(asking, PATIENCE_S)
    except TimeoutError:
        return

    judge(request, reply)


@pytest.mark.parametrize("path", ["a%2Fprocesses", "a%2fprocesses", "a%2F..%2Fb", "..%2Fsandboxes", "%2F"])
async def test_an_encoded_slash_belongs_to_the_id_and_reaches_no_other_route(api: Api, path: str) -> None:
    reply = await api.http.get(f"/v1/sandboxes/{path}")

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert "there is no sandbox" in reply.json()["error"]["message"]


async def test_a_secret_s_name_with_a_slash_is_refused_by_its_field(api: Api) -> None:
    reply = await api.http.put("/v1/egress-secrets/a%2Fb", json={"value": "v", "hosts": ["a.example"]})

    assert reply.status_code in (400, 404)
    assert "/v1" not in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"{", "body", "is not JSON (character 2): send one object"),
        (b"[]", "body", "must be one JSON object, with Content-Type: application/json"),
        (b"", "body", "must be one JSON object, with Content-Type: application/json"),
        (b'{"name":"\xff"}', "body", "is not JSON in UTF-8: send one object"),
        (b'{"labels":{"a":"\\ud800"}}', "labels.a", "is not UTF-8 text: it holds a lone surrogate"),
        (b'{"labels":{"\\ud800":"a"}}', "labels", "is not UTF-8 text: it holds a lone surrogate"),
        (b'{"env":{"A":"\\udc00"}}', "env.A", "is not UTF-8 text: it holds a lone surrogate"),
        (b'{"vcpu":"2"}', "vcpu", "must be a whole number"),
        (b'{"vcpus":2}', "vcpus", "there is no such field"),
        (b'{"labels":["a"]}', "labels", "must be an object of names and values"),
    ],
)
async def test_a_wrong_body_is_told_by_its_field_and_what_to_send(
    api: Api, body: bytes, field: str, message: str
) -> None:
    reply = await api.http.post("/v1/sandboxes", content=body, headers={"Content-Type": "application/json"})

    assert reply.status_code == 400
    assert reply.json()["error"]["details"]["issues"] == [{"field": field, "message": message}]
