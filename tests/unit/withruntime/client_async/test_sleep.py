"""Forks, snapshots and receipts, against a scripted service."""

import pytest
from scripted_server import ScriptedServer, answer, ndjson, refusal

from withruntime import AsyncRuntime, AsyncSandbox, ConflictError, RuntimeError

READY = {"id": "s", "state": "ready", "mode": "memory"}


async def test_a_fork_without_a_count_is_one_sandbox_and_with_one_a_list(service: ScriptedServer):
    copies = [{"id": "b", "state": "running"}, {"id": "c", "state": "running"}]
    service.on("POST", "/v1/sandboxes/a:fork", answer({"sandboxes": copies[:1]}), answer({"sandboxes": copies}))
    sandbox = await AsyncSandbox.connect("a")

    one = await sandbox.fork()
    two = await sandbox.fork(2, name="kid", secrets=["TOKEN"])

    assert isinstance(one, AsyncSandbox) and one.id == "b"
    assert [copy.id for copy in two] == ["b", "c"]
    assert [sent.json for sent in service.sent("POST", "/v1/sandboxes/a:fork")] == [
        {},
        {"count": 2, "name": "kid", "secrets": ["TOKEN"]},
    ]


async def test_leaving_the_block_of_a_copy_deletes_it(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:fork", answer({"sandboxes": [{"id": "b", "state": "running"}]}))
    service.on("DELETE", "/v1/sandboxes/b", answer({"id": "b", "status": "deleted", "state": "stopped"}))

    async with await (await AsyncSandbox.connect("a")).fork():
        pass

    assert len(service.sent("DELETE", "/v1/sandboxes/b")) == 1


async def test_a_snapshot_is_waited_for_until_it_is_ready(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:snapshot", answer({"id": "s", "state": "capturing"}))
    service.on("GET", "/v1/snapshots/s", answer({"id": "s", "state": "capturing"}), answer(READY))

    kept = await (await AsyncSandbox.connect("a")).snapshot(name="ready", retention_days=7)

    (sent,) = service.sent("POST", "/v1/sandboxes/a:snapshot")
    assert kept == READY
    assert (sent.json, sent.headers["prefer"]) == ({"name": "ready", "retentionDays": 7}, "wait=10")
    assert len(service.sent("GET", "/v1/snapshots/s")) == 2


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"id": "s", "state": "failed", "error": "no room"}, "snapshot_failed"),
        ({"id": "s", "state": "ready", "mode": "memory"}, "snapshot_mode_mismatch"),
    ],
)
async def test_a_snapshot_that_is_not_what_was_asked_for_is_an_error(service: ScriptedServer, made: dict, code: str):
    service.on("POST", "/v1/sandboxes/a:snapshot", answer(made))

    with pytest.raises(RuntimeError) as told:
        await (await AsyncSandbox.connect("a")).snapshot(mode="disk")

    assert told.value.code == code


async def test_a_snapshot_that_takes_too_long_is_not_waited_for(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:snapshot", answer({"id": "s", "state": "capturing"}))
    service.on("GET", "/v1/snapshots/s", answer({"id": "s", "state": "capturing"}))

    with pytest.raises(RuntimeError) as told:
        await (await AsyncSandbox.connect("a")).snapshot(timeout_seconds=0.1)

    assert (told.value.code, told.value.details) == ("snapshot_timeout", {"snapshotId": "s"})


async def test_snapshots_are_made_listed_changed_and_deleted(service: ScriptedServer):
    service.on("POST", "/v1/sandboxes/a:snapshot", answer({**READY, "mode": "disk"}))
    service.on("GET", "/v1/snapshots", answer({"data": [READY], "nextCursor": None}))
    for verb in ("update", "extend", "delete"):
        service.on("POST", f"/v1/snapshots/s:{verb}", answer(READY))
    async with AsyncRuntime() as runtime:
        await runtime.snapshots.create("a", mode="disk", labels={"a": "1"})
        listed = [snapshot async for snapshot in await runtime.snapshots.list(sandbox_id="a")]
        await runtime.snapshots.update("s", name=None, if_labels={"a": "1"})
        await runtime.snapshots.extend("s", 90)
        nothing = await runtime.snapshots.delete("s")

    assert (listed, nothing) == ([READY], None)
    assert service.sent("GET", "/v1/snapshots")[0].query == {"sandboxId": ["a"]}
    assert service.sent("POST", "/v1/snapshots/s:update")[0].json == {"name": None, "ifLabels": {"a": "1"}}
    assert service.sent("POST", "/v1/snapshots/s:extend")[0].json == {"retentionDays": 90}


async def test_labels_that_changed_meanwhile_are_a_conflict(service: ScriptedServer):
    service.on("POST", "/v1/snapshots/s:update", refusal(409, "snapshot_metadata_changed"))
    async with AsyncRuntime() as runtime:
        with pytest.raises(ConflictError):
            await runtime.snapshots.update("s", labels={}, if_labels={"a": "1"})


async def test_a_field_that_a_snapshot_does_not_have_is_refused_before_anything_is_sent(service: ScriptedServer):
    async with AsyncRuntime() as runtime:
        with pytest.raises(TypeError, match="has no days"):
            await runtime.snapshots.create("a", days=7)

    assert service.requests == []


async def test_starts_are_receipts(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a/starts", answer({"data": [{"number": 1, "how": "spare"}]}))

    assert await (await AsyncSandbox.connect("a")).starts() == [{"number": 1, "how": "spare"}]


async def test_a_command_near_the_end_of_its_lease_says_so_in_its_result(service: ScriptedServer):
    done = {"exitCode": 0, "stdout": "", "stderr": "", "leaseEndsInSeconds": 30.0}
    streamed = ndjson(
        {"type": "start", "processId": "p", "leaseEndsInSeconds": 20.0},
        {"type": "exit", "exitCode": 0, "state": "exited"},
    )
    service.on("POST", "/v1/sandboxes/a:exec", answer(done), streamed)
    sandbox = await AsyncSandbox.connect("a")

    buffered = await sandbox.exec("true")
    followed = await sandbox.exec("true", on_stdout=lambda text: None)

    assert (buffered.lease_ends_in_seconds, followed.lease_ends_in_seconds) == (30.0, 20.0)


async def test_a_stream_that_a_pause_interrupts_ends_with_its_cursor(service: ScriptedServer):
    interrupted = {"code": "interrupted", "message": "the sandbox was paused", "status": 502, "retryable": False}
    service.on(
        "POST",
        "/v1/sandboxes/a:exec",
        ndjson(
            {"type": "start", "processId": "p"},
            {"type": "stdout", "offset": 0, "data": "up"},
            {"type": "error", "error": interrupted, "cursor": 2},
        ),
    )
    sandbox = await AsyncSandbox.connect("a")

    with pytest.raises(RuntimeError) as told:
        async for _ in sandbox.exec_stream("server"):
            pass

    assert (told.value.code, told.value.details) == ("interrupted", {"cursor": 2, "processId": "p"})
