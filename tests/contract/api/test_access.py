"""Who may do what, and the one shape of every refusal."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from .conftest import Api


async def test_no_key_and_a_wrong_key_are_told_what_to_do(api: Api) -> None:
    for header in ("", "Bearer nonsense", "Basic x", "Bearer rtcloud_6cc1954f-1965-4f85-86a9-eaa6d0364713_" + "a" * 43):
        reply = await api.http.get("/v1/sandboxes", headers={"Authorization": header})

        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (401, "unauthorized")
        assert error["hint"] and error["requestId"] == reply.headers["x-request-id"]


async def test_who_has_no_key_is_refused_before_the_body_is_read(api: Api) -> None:
    reply = await api.http.post("/v1/sandboxes", content=b"{", headers={"Authorization": ""})

    assert reply.status_code == 401


async def test_st_15_a_revoked_key_is_refused_within_a_second(api: Api) -> None:
    key_id, headers = await api.new_key()
    before = await api.http.get("/v1/sandboxes", headers=headers)

    await api.accounts.revoke_key(key_id)
    await api.clock.advance(1)
    after = await api.http.get("/v1/sandboxes", headers=headers)

    assert (before.status_code, after.status_code) == (200, 401)


async def test_a_read_only_key_sees_what_is_outside_and_changes_nothing(api: Api) -> None:
    made = await api.create()
    _, headers = await api.new_key(kind="read_only")
    path = f"/v1/sandboxes/{made['id']}"

    async def status(method: str, path: str) -> int:
        return (await api.http.request(method, path, headers=headers)).status_code

    assert await status("GET", path) == 200
    assert await status("GET", "/v1/sandboxes") == 200
    assert await status("GET", "/v1/me") == 200
    assert await status("GET", f"{path}/files/content?path=/etc/passwd") == 403
    assert await status("GET", f"{path}/processes") == 403
    assert await status("DELETE", path) == 403
    assert await status("POST", f"{path}:exec") == 403
    assert await status("PUT", f"{path}/files/content?path=/x") == 403
    assert len(api.node.running()) == 1


async def test_a_key_that_is_not_account_wide_does_not_find_what_others_made(api: Api) -> None:
    made = await api.create()
    _, headers = await api.new_key(account_wide=False)

    listed = await api.http.get("/v1/sandboxes", headers=headers)
    found = await api.http.get(f"/v1/sandboxes/{made['id']}", headers=headers)

    assert listed.json()["data"] == []
    assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found")


async def test_me_and_limits_answer_what_is_true(api: Api) -> None:
    me = (await api.http.get("/v1/me")).json()
    limits = (await api.http.get("/v1/limits")).json()

    assert me.keys() >= {"orgId", "orgName", "principalId", "credentialId", "role"}
    assert limits["daily"]["limitMicros"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/", 404, "route_not_found"),
        ("GET", "/v1/sandboxes/", 404, "route_not_found"),
        ("PATCH", "/v1/sandboxes", 405, "method_not_allowed"),
        ("GET", "/v1/sandboxes/x:exec", 405, "method_not_allowed"),
        ("POST", "/v1/sandboxes/x:nonsense", 404, "route_not_found"),
        ("GET", "/v1/sandboxes/not-an-id", 404, "not_found"),
        ("GET", "/v1/sandboxes/6cc1954f-1965-4f85-86a9-eaa6d0364713", 404, "not_found"),
        ("GET", "/v1/volumes", 501, "unavailable"),
        ("POST", "/v1/images", 501, "unavailable"),
        ("GET", "/v1/sandboxes/x/previews", 501, "unavailable"),
        ("POST", "/v1/sandboxes/x/interpreter:run", 501, "unavailable"),
    ],
)
async def test_every_refusal_has_the_same_shape(api: Api, method: str, path: str, status: int, code: str) -> None:
    reply = await api.http.request(method, path)

    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["status"]) == (status, code, status)
    assert error["message"] and error["requestId"] == reply.headers["x-request-id"]
    assert int(reply.headers["content-length"]) == len(reply.content)


@pytest.mark.parametrize(
    ("method", "path", "words", "nearest"),
    [
        ("POST", "/interpreter:run", "the code interpreter (interpreter:run)", "exec(['python3', '-c', code])"),
        ("GET", "/interpreter/contexts", "the code interpreter (interpreter/contexts)", "exec("),
        ("POST", "/previews", "sharing a port (previews)", "curl"),
        ("GET", "/terminal", "terminals over WebSocket (terminal)", "pty"),
        ("POST", ":resize", "changing the size (resize)", "snapshot"),
        ("POST", "/desktop:start", "POST desktop:start", "README.md"),
    ],
)
async def test_what_a_sandbox_does_not_have_is_named_with_what_does_nearly_the_same(
    api: Api, method: str, path: str, words: str, nearest: str
) -> None:
    error = (await api.http.request(method, f"/v1/sandboxes/x{path}")).json()["error"]

    assert (error["code"], error["retryable"]) == ("unavailable", False)
    assert error["message"] == f"{words}: not available in this version"
    assert nearest in error["hint"]


@pytest.mark.parametrize("name", ["terminal", "tunnel"])
async def test_a_socket_that_is_not_built_says_so_in_its_first_frame(api: Api, port: int, name: str) -> None:
    _, headers = await api.new_key()

    async with connect(f"ws://127.0.0.1:{port}/v1/sandboxes/x/{name}", additional_headers=headers) as socket:
        first = json.loads(await socket.recv())
        await socket.wait_closed()

    assert (first["type"], first["error"]["code"], first["error"]["status"]) == ("error", "unavailable", 501)
    assert name in first["error"]["message"] and first["error"]["hint"] and first["error"]["requestId"]


async def test_a_socket_without_a_good_key_and_one_of_no_route_are_not_opened(api: Api, port: int) -> None:
    _, reader = await api.new_key(kind="read_only")
    _, full = await api.new_key()
    statuses = []
    for path, headers in (("terminal", {}), ("terminal", reader), ("exec", full), ("terminal%2Fx", full)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port}/v1/sandboxes/x/{path}", additional_headers=headers)
        statuses.append(refused.value.response.status_code)

    assert statuses == [401, 403, 403, 403]


async def test_a_body_that_is_too_large_is_413(api: Api) -> None:
    made = await api.create()

    told = await api.http.post(
        f"/v1/sandboxes/{made['id']}:exec", content=b" " * (5 << 20), headers={"Content-Type": "application/json"}
    )

    async def endless() -> object:
        for _ in range(100):
            yield b" " * (1 << 20)

    untold = await api.http.post(
        f"/v1/sandboxes/{made['id']}:exec", content=endless(), headers={"Content-Type": "application/json"}
    )

    for reply in (told, untold):
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("key", ["", "-a", "a b", "a" * 129, "é"])
async def test_a_wrong_idempotency_key_is_a_bad_request(api: Api, key: str) -> None:
    reply = await api.http.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key.encode()})

    assert (reply.status_code, reply.json()["error"]["details"]["issues"][0]["field"]) == (400, "Idempotency-Key")


async def test_health_and_the_openapi_document_need_no_key(api: Api) -> None:
    health = await api.http.get("/healthz", headers={"Authorization": ""})
    document = await api.http.get("/v1/openapi.json", headers={"Authorization": ""})

    assert health.json()["status"] == "ok"
    assert "/v1/sandboxes/{sandbox_id}:exec" in document.json()["paths"]


async def test_metrics_need_a_key_from_afar_and_none_from_here(api: Api) -> None:
    await api.create()
    local = await api.http.get("/metrics", headers={"Authorization": ""})
    forwarded = await api.http.get("/metrics", headers={"Authorization": "", "X-Forwarded-For": "203.0.113.1"})

    assert 'runtime_sandboxes{state="running"} 1.0' in local.text
    assert 'runtime_machines_started_total{how="spare"} 1.0' in local.text
    assert 'route="/v1/sandboxes"' in local.text
    assert forwarded.status_code == 401


async def test_the_access_log_holds_no_argument_no_variable_and_no_path_of_a_file(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    made = await api.create(env={"TOKEN": "sesame-env"})
    await api.exec(made["id"], command="echo sesame-command", env={"X": "sesame-exec"})
    await api.http.put(f"/v1/sandboxes/{made['id']}/files/content?path=/sesame-path", content=b"sesame-content")

    assert "/v1/sandboxes/{sandbox_id}:exec" in caplog.text
    assert "sesame" not in "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("runtimed"))


async def test_a_service_that_stops_begins_nothing_new(api: Api) -> None:
    api.service.services.closing.set()

    reply = await api.call("POST", "/v1/sandboxes", {})

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "host_unavailable")
