"""Says for each operation on snapshots what to send and how to read the answer, and how to wait until one is made."""

from collections.abc import Mapping
from dataclasses import replace

from withruntime import _calls
from withruntime._calls import Call, PageAnswer
from withruntime._errors import RuntimeError
from withruntime._flows import Flow, Sleep, deliver
from withruntime._retry import RetryPolicy
from withruntime._values import Json

CAPTURE_MAX_S = 600.0
POLL_S = 0.2
HOLD_S = 10
"""How long the service holds its answer until the snapshot is made."""
_FIELDS = ("name", "labels", "retention_days", "mode")
_CHANGES = ("name", "labels", "if_labels")
_PATH = "/v1/snapshots"


def take(sandbox_id: str, fields: Mapping[str, object], *, key: str | None = None) -> Call[Json]:
    """Raises TypeError for a field that a snapshot does not have."""
    _check(fields, _FIELDS)
    call = _calls.post(
        _calls.sandbox_path(sandbox_id, ":snapshot"), _calls.as_identified, _calls.sent(fields.items()), key
    )
    return replace(call, wait_s=HOLD_S)


def get(snapshot_id: str) -> Call[Json]:
    return _calls.get(f"{_PATH}/{_calls.segment(snapshot_id)}", _calls.as_identified)


def page(query: Mapping[str, object]) -> Call[PageAnswer]:
    return _calls.get(_PATH, _calls.as_page, query)


def update(snapshot_id: str, fields: Mapping[str, object], *, key: str | None = None) -> Call[Json]:
    """None is sent as null, and clears a name. Raises TypeError for a field that cannot change."""
    _check(fields, _CHANGES)
    return _change(snapshot_id, "update", {_calls.camel(name): value for name, value in fields.items()}, key)


def extend(snapshot_id: str, retention_days: int) -> Call[Json]:
    return _change(snapshot_id, "extend", {"retentionDays": retention_days})


def delete(snapshot_id: str) -> Call[Json]:
    return _change(snapshot_id, "delete")


def made(call: Call[Json], policy: RetryPolicy, *, mode: object, within_s: float | None) -> Flow[Json]:
    """Take a snapshot and see it ready.

    Raises:
        RuntimeError: it could not be made (`snapshot_failed`), is of another mode (`snapshot_mode_mismatch`), or was
            still being made after `within_s` (`snapshot_timeout`).
    """
    deadline = policy.clock() + (CAPTURE_MAX_S if within_s is None else within_s)
    snapshot = yield from deliver(call, policy)
    while snapshot.get("state") == "capturing":
        if policy.clock() > deadline:
            raise RuntimeError(
                f"The snapshot {snapshot['id']} is still being made.",
                code="snapshot_timeout",
                details={"snapshotId": snapshot["id"]},
            )
        yield Sleep(seconds=POLL_S)
        snapshot = yield from deliver(get(snapshot["id"]), policy)
    if snapshot.get("state") != "ready":
        raise RuntimeError(
            f"The snapshot {snapshot['id']} could not be made: {snapshot.get('error') or snapshot.get('state')}.",
            code="snapshot_failed",
            details={"snapshotId": snapshot["id"]},
        )
    if mode is not None and snapshot.get("mode") != mode:
        raise RuntimeError(
            f"The snapshot {snapshot['id']} holds {snapshot.get('mode')}, not {mode}.", code="snapshot_mode_mismatch"
        )
    return snapshot


def _change(snapshot_id: str, verb: str, body: Json | None = None, key: str | None = None) -> Call[Json]:
    return _calls.post(f"{_PATH}/{_calls.segment(snapshot_id)}:{verb}", _calls.as_object, body, key)


def _check(fields: Mapping[str, object], known: tuple[str, ...]) -> None:
    if unknown := sorted(set(fields) - set(known)):
        raise TypeError(f"a snapshot has no {', '.join(unknown)}; it takes {', '.join(known)}")
