"""Sandboxes on the wire: what create and update take, and what a sandbox looks like in an answer."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from runtimed.core.accounting import SandboxMoney
from runtimed.core.clock import iso
from runtimed.core.egress import NetworkPolicy
from runtimed.core.ids import is_id
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.limits import (
    DISK_DEFAULT_MIB,
    DISK_MAX_MIB,
    DISK_MIN_MIB,
    ENV_MAX_BYTES,
    ENV_VARS_MAX,
    FORKS_MAX,
    IDLE_PAUSE_DEFAULT_S,
    IDLE_PAUSE_MAX_S,
    IDLE_PAUSE_MIN_S,
    LABEL_KEY_MAX_CHARS,
    LABEL_VALUE_MAX_CHARS,
    LABELS_MAX,
    LABELS_MAX_BYTES,
    LEASE_DEFAULT_S,
    LEASE_MAX_S,
    LEASE_MIN_S,
    MEMORY_DEFAULT_MIB,
    MEMORY_MAX_MIB,
    MEMORY_MIN_MIB,
    NAME_MAX_CHARS,
    VCPU_DEFAULT,
    VCPU_MAX,
    VCPU_MIN,
)
from runtimed.core.money import MICROS_MAX, Micros, Spending
from runtimed.core.network import OPEN
from runtimed.core.sandbox import ForkSpec, SandboxChange, SandboxFilter, SandboxRecord, SandboxSpec, StartRecord
from runtimed.core.specs import Shape
from runtimed.wire.egress import NetworkRules
from runtimed.wire.strict import Shown, Strict, Text, check_env

CPU_FLOOR_DEFAULT_MILLIS = 50
"""What the wire protocol shows of a sandbox that asked for no floor: a share like everybody's, at no price."""


def _name(text: str) -> str:
    if len(text) > NAME_MAX_CHARS or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) is None:
        raise ValueError(
            f"must be 1 to {NAME_MAX_CHARS} letters, digits, dots, dashes or underscores, the first a letter or digit"
        )
    if is_id(text):
        raise ValueError("must not look like an id")
    return text


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > LABELS_MAX:
        raise ValueError(f"must hold at most {LABELS_MAX} labels")
    for key, value in labels.items():
        if not 0 < len(key) <= LABEL_KEY_MAX_CHARS or ":" in key:
            raise ValueError(f"{key[:80]!r}: a label's key has 1 to {LABEL_KEY_MAX_CHARS} characters and no colon")
        if len(value) > LABEL_VALUE_MAX_CHARS:
            raise ValueError(f"{key!r}: a label's value has at most {LABEL_VALUE_MAX_CHARS} characters")
    if sum(len(k.encode()) + len(v.encode()) for k, v in labels.items()) > LABELS_MAX_BYTES:
        raise ValueError(f"must hold at most {LABELS_MAX_BYTES} bytes in all")
    return labels


def _env(env: dict[str, Any]) -> dict[str, Any]:
    check_env(env, names_max=ENV_VARS_MAX, bytes_max=ENV_MAX_BYTES)
    return env


Name = Annotated[str, AfterValidator(_name)]
Labels = Annotated[dict[Text, Text], AfterValidator(_labels)]
Env = Annotated[dict[str, Text], AfterValidator(_env)]
EnvChange = Annotated[dict[str, Text | None], AfterValidator(_env)]
Lease = Annotated[int, Field(ge=LEASE_MIN_S, le=LEASE_MAX_S)]
Money = Annotated[Micros, Field(ge=0, le=MICROS_MAX)]
"""Whole microdollars."""


_SIZES = {"vcpu": "vcpu", "memory_mib": "memoryMiB", "disk_mib": "diskMiB"}


def _idle_s(asked: int | None, default_s: int) -> int:
    """0 is never; what is shorter than the shortest is that."""
    if asked is None:
        return default_s
    return max(asked, IDLE_PAUSE_MIN_S) if asked else 0


class CreateSandbox(Strict):
    """Everything that `POST /v1/sandboxes` knows. What is not built yet is checked, and then refused by name."""

    name: Name | None = None
    labels: Labels = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)
    region: Text | None = None
    vcpu: int = Field(VCPU_DEFAULT, ge=VCPU_MIN, le=VCPU_MAX)
    memory_mib: int = Field(MEMORY_DEFAULT_MIB, ge=MEMORY_MIN_MIB, le=MEMORY_MAX_MIB, alias="memoryMiB")
    disk_mib: int = Field(DISK_DEFAULT_MIB, ge=DISK_MIN_MIB, le=DISK_MAX_MIB, alias="diskMiB")
    cpu: Literal["shared", "reserved"] = "shared"
    cpu_floor_millis: int | None = Field(None, ge=0, alias="cpuFloorMillis")
    timeout_s: Lease = Field(LEASE_DEFAULT_S, alias="timeoutSeconds")
    on_lease_end: Literal["pause", "stop", "delete"] = Field("pause", alias="onLeaseEnd")
    idle_pause_s: int | None = Field(None, ge=0, le=IDLE_PAUSE_MAX_S, alias="idlePauseSeconds")
    auto_wake: bool = Field(True, alias="autoWake")
    user: Literal["sandbox", "root"] = "sandbox"
    persistent: bool = False
    pausable: bool = True
    max_total_cost_micros: Money | None = Field(None, alias="maxTotalCostMicros")
    max_cost_micros: Money | None = Field(None, alias="maxCostMicros")
    funding: Literal["trial", "paid"] | None = None
    get_or_create: bool = Field(False, alias="getOrCreate")
    network: NetworkRules | None = None
    image: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    snapshot: Text | None = None
    spread_from: list[Text] | None = Field(None, alias="spreadFrom", max_length=16)
    volumes: list[dict[str, Any]] | None = Field(None, max_length=4)
    secrets: list[Text] | None = None
    tailscale: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _go_together(self) -> CreateSandbox:
        if self.get_or_create and self.name is None:
            raise ValueError("name: getOrCreate needs one")
        if self.image is not None and self.snapshot is not None:
            raise ValueError("snapshot: image and snapshot exclude each other")
        floor, whole = self.cpu_floor_millis, self.vcpu * 1000
        if floor is None or (self.snapshot is not None and "vcpu" not in self.model_fields_set):
            return self  # nothing asked, or the snapshot says how many vCPUs there are
        if floor > whole:
            raise ValueError(f"cpuFloorMillis: must be at most {whole}, that of all vCPUs")
        if self.cpu == "reserved" and floor != whole:
            raise ValueError(
                f"cpuFloorMillis: reserved is a floor of {whole}, that of all vCPUs; leave one of them out"
            )
        return self

    def not_built(self) -> list[str]:
        """Fields that ask for something that this version cannot do. Saying what is so anyway is fine."""
        asked = {
            "spreadFrom": bool(self.spread_from),
            "volumes": bool(self.volumes),
            "tailscale": self.tailscale is not None,
        }
        return [name for name, wanted in asked.items() if wanted]

    def spec(self, *, default_image: str) -> SandboxSpec:
        """Raises InvalidRequest naming every network rule that is wrong."""
        return SandboxSpec(
            image=self.image or default_image,
            shape=Shape(vcpu=self.vcpu, memory_mib=self.memory_mib, disk_mib=self.disk_mib),
            lease_s=self.timeout_s,
            name=self.name,
            labels=self.labels,
            env=self.env,
            on_lease_end=self.on_lease_end,
            idle_pause_s=_idle_s(self.idle_pause_s, 0 if self.persistent else IDLE_PAUSE_DEFAULT_S),
            auto_wake=self.auto_wake,
            persistent=self.persistent,
            snapshot_id=self.snapshot,
            shape_asked=frozenset(_SIZES[name] for name in self.model_fields_set & _SIZES.keys()),
            network_asked=self.network is not None,
            user=self.user,
            network=NetworkPolicy(
                rules=self.network.read(field_name="network") if self.network else OPEN,
                secrets=None if self.secrets is None else tuple(self.secrets),
            ),
            spending=Spending(
                max_cost_micros=self.max_cost_micros,
                max_total_micros=self.max_total_cost_micros,
                funding=self.funding,
            ),
            cpu_floor_millis=self.cpu_floor_millis,
            cpu_reserved=self.cpu == "reserved",
            get_or_create=self.get_or_create,
        )


class UpdateSandbox(Strict):
    """Omitted fields stay as they are; `labels` replaces all, `env` sets values and removes the null ones."""

    name: Name | None = None
    labels: Labels | None = None
    env: EnvChange = Field(default_factory=dict)
    auto_wake: bool | None = Field(None, alias="autoWake")
    user: Literal["sandbox", "root"] | None = None
    idle_pause_s: int | None = Field(None, ge=0, le=IDLE_PAUSE_MAX_S, alias="idlePauseSeconds")
    persistent: bool | None = None
    max_total_cost_micros: Money | None = Field(None, alias="maxTotalCostMicros")
    timeout_s: Lease | None = Field(None, alias="timeoutSeconds")
    on_timeout: Literal["pause", "stop", "delete"] | None = Field(None, alias="onTimeout")
    on_lease_end: Literal["pause", "stop", "delete"] | None = Field(None, alias="onLeaseEnd")
    """The older name of onTimeout."""

    def change(self) -> SandboxChange:
        return SandboxChange(
            name=self.name,
            clear_name="name" in self.model_fields_set and self.name is None,
            labels=self.labels,
            env=self.env,
            user=self.user,
            auto_wake=self.auto_wake,
            lease_s=self.timeout_s,
            on_lease_end=self.on_timeout or self.on_lease_end,
            idle_pause_s=None if self.idle_pause_s is None else _idle_s(self.idle_pause_s, 0),
            persistent=self.persistent,
            max_total_micros=self.max_total_cost_micros,
            clear_max_total="max_total_cost_micros" in self.model_fields_set and self.max_total_cost_micros is None,
        )


class ListQuery(BaseModel):
    """The query of a list. Values come as text, so that they are read leniently; names are not."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    state: list[State] = Field(default_factory=list)
    include_stopped: bool = Field(False, alias="includeStopped")
    label: list[str] = Field(default_factory=list)
    name: str | None = None
    limit: int = Field(50, ge=1, le=100)
    cursor: str | None = None

    @field_validator("label")
    @classmethod
    def _pairs(cls, labels: list[str]) -> list[str]:
        if wrong := [label for label in labels if ":" not in label]:
            raise ValueError(f"{wrong[0]!r} is not KEY:VALUE")
        return labels

    def wanted(self) -> SandboxFilter:
        return SandboxFilter(
            states=frozenset(self.state),
            include_stopped=self.include_stopped,
            labels=dict(label.split(":", 1) for label in self.label),
            name=self.name,
        )


class Wake(Strict):
    timeout_s: Lease | None = Field(None, alias="timeoutSeconds")
    """The new lease; without it the sandbox's own."""


class Fork(Strict):
    count: int = Field(1, ge=1, le=FORKS_MAX)
    name: Name | None = None
    labels: Labels | None = None
    keep_snapshot: bool = Field(False, alias="keepSnapshot")
    funding: Literal["trial", "paid"] | None = None
    """Taken and of no effect: copies are paid as their source is."""
    secrets: list[Text] | None = None
    """Names of the secrets that the copies may use; without it none."""

    def spec(self) -> ForkSpec:
        return ForkSpec(
            count=self.count,
            name=self.name,
            labels=self.labels,
            secrets=tuple(self.secrets or ()),
            keep_snapshot=self.keep_snapshot,
        )


class Extend(Strict):
    seconds: int = Field(ge=1, le=LEASE_MAX_S)


class Retention(Strict):
    days: int = Field(ge=1, le=365)


class Sandbox(Shown):
    """A sandbox in an answer."""

    id: str
    kind: Literal["sandbox"]
    name: str | None
    labels: dict[str, str]
    state: Literal["starting", "running", "pausing", "paused", "resuming", "stopping", "stopped"]
    stopReason: str | None
    vcpu: int
    memoryMiB: int
    diskMiB: int
    timeoutSeconds: int
    createdAt: str
    readyAt: str | None
    endsAt: str | None
    endedAt: str | None
    progress: str | None = None
    """What a start that takes long does now; in the answer to one who asks for this sandbox alone."""
    startError: str | None = None
    """Why it did not start."""


class Forked(Shown):
    sandboxes: list[Sandbox]
    snapshot: dict[str, Any] | None = None
    """What the copies began as, with `keepSnapshot`."""


class StartReceipt(Shown):
    """How one machine of a sandbox came up."""

    number: int
    cause: Literal["create", "wake", "restart", "fork"]
    how: str
    askedAt: str
    stepsMs: dict[str, float]
    firstCommandMs: float | None
    checks: dict[str, float | bool | int]


class StartList(Shown):
    data: list[StartReceipt]


class SandboxPage(Shown):
    data: list[Sandbox]
    nextCursor: str | None


class Deleted(Shown):
    id: str
    kind: Literal["sandbox"]
    name: str | None
    status: Literal["deleted"]
    deletedAt: str


_STATUS = {"starting": "pending", "running": "active", "pausing": "active", "paused": "paused", "resuming": "active"}


def sandbox_body(record: SandboxRecord, *, region: str, money: SandboxMoney | None = None) -> dict[str, object]:
    """The sandbox object of wire protocol section 2.4."""
    ended = record.state is State.STOPPED
    started = record.started
    endless = record.persistent or record.state is State.PAUSED
    return {
        "id": record.id,
        "kind": "sandbox",
        "accountId": record.account_id,
        "name": record.name,
        "labels": dict(record.labels),
        "state": record.state.value,
        "status": _STATUS.get(record.state.value, record.state.value),
        "stopReason": record.stop_reason.value if record.stop_reason else None,
        "region": region,
        "image": record.image,
        "imageId": started.image_id if started else None,
        "snapshot": record.snapshot_id,
        "sourceId": record.source_id,
        "vcpu": record.shape.vcpu,
        "memoryMiB": record.shape.memory_mib,
        "diskMiB": record.shape.disk_mib,
        "cpu": "reserved" if record.cpu_floor_millis == record.shape.vcpu * 1000 else "shared",
        "cpuFloorMillis": CPU_FLOOR_DEFAULT_MILLIS if record.cpu_floor_millis is None else record.cpu_floor_millis,
        "funding": "paid",
        "timeoutSeconds": record.lease_s,
        "onLeaseEnd": record.on_lease_end,
        "onTimeout": record.on_lease_end,
        "idlePauseSeconds": record.idle_pause_s,
        "autoWake": record.auto_wake,
        "persistent": record.persistent,
        "pausable": True,
        "user": record.user,
        "envNames": list(record.env_names),
        "secrets": None if record.network.secrets is None else list(record.network.secrets),
        "network": record.network.rules.as_json(),
        "volumes": [],
        "createdAt": iso(record.created_at_s),
        "readyAt": iso(record.ready_at_s),
        "pausedAt": iso(record.paused_at_s),
        "endedAt": iso(record.ended_at_s),
        "updatedAt": iso(record.updated_at_s),
        "lastActiveAt": iso(record.last_active_at_s),
        "expiresAt": iso(record.ends_at_s),
        "endsAt": None if ended or endless else iso(record.ends_at_s),
        "pausedExpiresAt": iso(record.kept_until_s),
        "retentionDays": record.retention_days,
        "diskKept": record.disk_kept,
        "storedBytes": record.stored_bytes,
        "pauseError": None if record.stop_reason is StopReason.STARTUP_FAILED else record.note,
        "startError": record.note if record.stop_reason is StopReason.STARTUP_FAILED else None,
        "chargedMicros": money.charged_micros if money else 0,
        "heldMicros": money.held_micros if money else 0,
        "trial": money.trial if money else False,
        "startup": None
        if started is None
        else {
            "how": started.how,
            "stepsMs": dict(started.steps_ms),
            "clockSkewMs": started.clock_skew_ms,
            "entropyReseeded": started.entropy_reseeded,
        },
    }


def start_body(start: StartRecord) -> dict[str, object]:
    """A receipt: how a machine was brought up, when each step was done, and what was checked."""
    started = start.started
    return {
        "number": start.number,
        "cause": start.cause,
        "how": started.how,
        "imageId": started.image_id,
        "askedAt": iso(start.asked_at_s),
        "stepsMs": {"policyBound": start.policy_bound_ms, **started.steps_ms},
        "firstCommandMs": start.first_command_ms,
        "checks": {
            "clockSkewMs": started.clock_skew_ms,
            "entropyReseeded": started.entropy_reseeded,
            "policyVersion": start.policy_version,
        },
    }


def deleted_body(record: SandboxRecord) -> dict[str, object]:
    """What a deleted sandbox leaves."""
    return {
        "id": record.id,
        "kind": "sandbox",
        "name": record.name,
        "labels": dict(record.labels),
        "status": "deleted",
        "state": record.state.value,
        "deletedAt": iso(record.deleted_at_s),
        "endedAt": iso(record.ended_at_s),
    }
