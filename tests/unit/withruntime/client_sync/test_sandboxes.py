# Generated from tests/unit/withruntime/client_async/test_sandboxes.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Making, finding and ending sandboxes, against a scripted service."""

import logging

import pytest
from scripted_server import RESET, ScriptedServer, answer, refusal

from withruntime import (
    ConflictError,
    ConnectionError,
    NotFoundError,
    Runtime,
    RuntimeError,
    Sandbox,
    ServiceUnavailableError,
)


def test_a_create_without_options_sends_an_empty_body_and_waits_for_the_machine(service: ScriptedServer):
    with Sandbox.create() as sandbox:
        assert sandbox.state == "running"

    (sent,) = service.sent("POST", "/v1/sandboxes")
    assert sent.json == {}
    assert sent.headers["prefer"] == "wait=60"
    assert sent.headers["authorization"] == "Bearer rtcloud_key"
    assert sent.headers["x-runtime-client"].startswith("sdk-python/")


def test_options_travel_under_the_names_of_the_wire(service: ScriptedServer):
    volumes = [{"volume_id": "v", "path": "/data"}]
    with Sandbox.create(memory_mib=512, snapshot_id="s", on_lease_end="stop", volumes=volumes):
        pass

    (sent,) = service.sent("POST", "/v1/sandboxes")
    assert sent.json == {
        "memoryMiB": 512,
        "snapshot": "s",
        "onLeaseEnd": "stop",
        "volumes": [{"volumeId": "v", "path": "/data"}],
    }


def test_an_option_that_does_not_exist_is_refused_before_anything_is_sent(service: ScriptedServer):
    with pytest.raises(TypeError, match="has no memory_mb; it takes"):
        Sandbox.create(memory_mb=512)  # type: ignore[call-arg]

    assert service.requests == []


def test_leaving_the_block_deletes_what_was_created_also_after_an_error(service: ScriptedServer):
    with pytest.raises(ZeroDivisionError):
        with Sandbox.create():
            raise ZeroDivisionError

    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


def test_leaving_the_block_only_stops_what_was_fetched(service: ScriptedServer):
    with Sandbox.connect("a"):
        pass

    assert len(service.sent("POST", "/v1/sandboxes/a:stop")) == 1
    assert service.sent("DELETE", ".*") == []


def test_leaving_the_block_only_stops_what_is_to_be_kept(service: ScriptedServer):
    with Sandbox.create(keep=True):
        pass

    assert len(service.sent("POST", "/v1/sandboxes/a:stop")) == 1
    assert service.sent("DELETE", ".*") == []


def test_leaving_the_block_only_stops_what_get_or_create_found(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", answer({"id": "a", "state": "running", "reused": True}))
    with Sandbox.get_or_create("mine"):
        pass

    (sent,) = service.sent("POST", "/v1/sandboxes")
    assert sent.json == {"name": "mine", "getOrCreate": True}
    assert service.sent("DELETE", ".*") == []


def test_a_block_whose_sandbox_was_deleted_in_it_does_not_delete_again(service: ScriptedServer):
    with Sandbox.create() as sandbox:
        sandbox.delete()

    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


def test_a_sandbox_that_still_starts_is_waited_for(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", answer({"id": "a", "state": "starting", "start": {"state": "ready"}}))
    with Sandbox.create() as sandbox:
        assert sandbox.state == "running"
        assert sandbox.info["start"] == {"state": "ready"}

    assert service.sent("GET", "/v1/sandboxes/a")[0].query == {"waitFor": ["running"], "timeoutSeconds": ["60"]}


def test_a_sandbox_that_does_not_come_to_run_is_an_error_and_is_not_left_behind(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", answer({"id": "a", "state": "starting"}))
    service.on("GET", "/v1/sandboxes/a", answer({"id": "a", "state": "stopped", "stopReason": "startup_failed"}))

    with pytest.raises(RuntimeError, match="startup_failed") as refused:
        Sandbox.create()

    assert refused.value.code == "start_failed"
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


def test_a_start_that_takes_long_says_what_it_does_each_time_that_it_is_something_else(service: ScriptedServer):
    booting = {"id": "a", "state": "starting", "progress": "booting the first machine"}
    service.on("POST", "/v1/sandboxes", answer(booting))
    later = [booting, booting | {"progress": "growing its disk"}, {"id": "a", "state": "running", "progress": None}]
    service.on("GET", "/v1/sandboxes/a", *map(answer, later))
    told: list[str] = []
    with Runtime() as runtime, runtime.sandboxes.create_telling(told.append, memory_mib=512) as box:
        assert box.state == "running"

    assert told == ["booting the first machine", "growing its disk"]
    (sent,) = service.sent("POST", "/v1/sandboxes")
    assert (sent.json, sent.headers["prefer"]) == ({"memoryMiB": 512}, "wait=2")
    assert len(service.sent("GET", "/v1/sandboxes/a")) == 3


def test_a_start_that_takes_long_is_logged_for_who_listens_and_no_other(
    service: ScriptedServer, caplog: pytest.LogCaptureFixture
):
    booting = {"id": "a", "state": "starting", "progress": "booting the first machine"}
    running = {"id": "a", "state": "running", "progress": None}
    service.on("POST", "/v1/sandboxes", answer(booting))
    service.on("GET", "/v1/sandboxes/a", *map(answer, [booting, booting | {"progress": "growing its disk"}, running]))

    with caplog.at_level(logging.INFO, logger="withruntime"):
        with Sandbox.create():
            pass
    with caplog.at_level(logging.WARNING, logger="withruntime"):
        with Sandbox.create():
            pass

    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the sandbox a to start",
        "the sandbox is starting: booting the first machine",
        "the sandbox is starting: growing its disk",
    ]
    assert [sent.headers["prefer"] for sent in service.sent("POST", "/v1/sandboxes")] == ["wait=2", "wait=60"]


def test_a_start_that_failed_says_why(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", answer({"id": "a", "state": "starting"}))
    failed = {"id": "a", "state": "stopped", "stopReason": "startup_failed", "startError": "its agent never answered"}
    service.on("GET", "/v1/sandboxes/a", answer(failed))

    with pytest.raises(RuntimeError, match="its agent never answered"):
        with Runtime() as runtime:
            runtime.sandboxes.create_telling(print)

    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


def test_a_lost_answer_is_asked_for_again_under_the_same_key(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", RESET, answer({"id": "a", "state": "running"}))
    with Sandbox.create():
        pass

    first, second = service.sent("POST", "/v1/sandboxes")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


def test_no_room_is_waited_for_and_told(service: ScriptedServer):
    full = refusal(503, "no_capacity", retryAfterMs=10)
    service.on("POST", "/v1/sandboxes", full, full, answer({"id": "a", "state": "running"}))
    told: list[str] = []
    with Sandbox.create(on_capacity_wait=lambda error, _wait_s: told.append(error.code)):
        pass

    assert told == ["no_capacity", "no_capacity"]


def test_who_does_not_want_to_wait_for_room_hears_of_it_at_once(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes", refusal(503, "no_capacity", retryAfterMs=10))
    with pytest.raises(ServiceUnavailableError):
        with Runtime(max_retries=0) as client:
            client.sandboxes.create(wait_for_capacity=0)

    assert len(service.requests) == 1


def test_a_refusal_carries_all_that_the_service_said(service: ScriptedServer):
    details = {"sandboxId": "b", "state": "running"}
    service.on("POST", "/v1/sandboxes", refusal(409, "name_taken", hint="Take another.", details=details))
    with pytest.raises(ConflictError) as refused:
        Sandbox.create(name="mine")

    error = refused.value
    assert (error.code, error.status, error.request_id, error.details) == ("name_taken", 409, "req_1", details)
    assert str(error) == "[name_taken 409] name_taken it is\nHint: Take another.\nRequest: req_1"


def test_a_list_walks_all_its_pages_with_the_same_filters(service: ScriptedServer):
    first = answer({"data": [{"id": "a", "state": "running"}], "nextCursor": "n"})
    second = answer({"data": [{"id": "b", "state": "paused"}], "nextCursor": None})
    service.on("GET", "/v1/sandboxes", first, second)
    with Runtime() as client:
        page = client.sandboxes.list(labels={"job": "1"}, state=["running", "paused"], include_stopped=True)
        found = [sandbox.id for sandbox in page]

    assert found == ["a", "b"]
    filters = {"label": ["job:1"], "state": ["running", "paused"], "includeStopped": ["true"]}
    asked = [request.query for request in service.sent("GET", "/v1/sandboxes")]
    assert asked == [filters, {**filters, "cursor": ["n"]}]


def test_ending_all_of_a_label_says_which_could_not_be_ended(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes", answer({"data": [{"id": "a"}, {"id": "b"}], "nextCursor": None}))
    service.on("DELETE", "/v1/sandboxes/b", refusal(404, "not_found"))
    with Runtime() as client:
        outcome = client.sandboxes.delete_all(labels={"job": "1"})

    assert outcome == {"deleted": ["a"], "failed": ["b"]}


def test_ending_everything_at_once_is_refused(service: ScriptedServer):
    with Runtime() as client:
        with pytest.raises(RuntimeError, match="Name a label"):
            client.sandboxes.stop_all(labels={})


def test_waking_one_that_is_awake_is_success(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:wake", refusal(409, "not_paused"))
    with Sandbox.create() as sandbox:
        assert (sandbox.wake()).state == "running"


def test_what_this_service_does_not_do_is_said_once(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:fork", refusal(501, "unavailable"))
    with Sandbox.create() as sandbox:
        with pytest.raises(ServiceUnavailableError) as refused:
            sandbox.fork()

    assert not refused.value.retryable
    assert len(service.sent("POST", "/v1/sandboxes/a:fork")) == 1


def test_clearing_a_setting_sends_null(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:update", answer({"id": "a", "state": "running", "name": None}))
    with Sandbox.create() as sandbox:
        sandbox.update(name=None, auto_wake=False)

    (sent,) = service.sent("POST", "/v1/sandboxes/a:update")
    assert sent.json == {"name": None, "autoWake": False}


def test_an_answer_that_comes_late_may_still_be_a_refusal(service: ScriptedServer):
    late = answer({"error": {"code": "not_found", "message": "gone", "status": 404}}, Runtime_Late_Answer="true")
    service.on("GET", "/v1/sandboxes/a", late)
    with pytest.raises(NotFoundError, match="gone"):
        Sandbox.connect("a")


def test_a_service_that_answers_with_something_else_is_named_as_such(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a", answer(["no", "object"]))
    with pytest.raises(RuntimeError) as refused:
        Sandbox.connect("a")

    assert refused.value.code == "invalid_answer"


def test_a_redirect_is_not_followed(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a", answer({}, status=307, Location=f"{service.url}/elsewhere"))
    with pytest.raises(RuntimeError) as refused:
        Sandbox.connect("a")

    assert refused.value.status == 307
    assert len(service.requests) == 1


def test_a_service_that_is_not_there_says_so_with_a_way_out():
    client = Runtime(base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(ConnectionError) as refused:
        client.me()

    assert refused.value.code == "connection_error"
    assert "RUNTIME_API_URL" in (refused.value.hint or "")


def test_a_client_that_was_closed_opens_new_connections(service: ScriptedServer):
    service.on("GET", "/v1/me", answer({"orgId": "o"}))
    client = Runtime()
    client.me()
    client.close()

    assert client.request("GET", "/v1/me", query={"a": [1, 2], "b": None}) == {"orgId": "o"}
    assert service.requests[-1].query == {"a": ["1", "2"]}
    client.close()
