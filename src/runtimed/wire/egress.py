"""Network rules, egress records and secrets on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runtimed.core.clock import iso
from runtimed.core.egress import EgressRecord
from runtimed.core.errors import InvalidRequest
from runtimed.core.network import EgressRules, WrittenRules, read_rules
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.secrets import RequestRule, SecretPlan, SecretRecord
from runtimed.wire.strict import Shown, Strict, Text

RECORDS_LIMIT = 1000


class NetworkRules(Strict):
    """Rules as somebody wrote them."""

    internet: bool = True
    allow: list[Text] | None = None
    deny: list[Text] | None = None
    connect: list[Text] | None = None

    def read(self, *, field_name: str = "") -> EgressRules:
        """Raises InvalidRequest naming every rule that is wrong."""
        written = WrittenRules(internet=self.internet, allow=self.allow, deny=self.deny, connect=self.connect)
        rules, wrong = read_rules(written, field_name=field_name)
        if wrong:
            raise InvalidRequest(
                wrong, hint="a rule is a name, *.name, an address, a CIDR range, or one of them with :port"
            )
        return rules


class NetworkShown(Shown):
    """The rules of a sandbox in an answer."""

    sandboxId: str
    internet: bool
    version: int
    enforced: bool


class SecretRuleBody(Strict):
    methods: list[Text] = Field(default_factory=list)
    paths: list[Text]


class PutSecret(Strict):
    """A secret to store or to replace. What is not built is refused by name."""

    value: Annotated[Text, Field(repr=False)]
    hosts: list[Text]
    header: Text | None = None
    format: Text | None = None
    rules: list[SecretRuleBody] | None = None
    env: Text | None = None
    only: dict[str, object] | None = None
    github_app: dict[str, object] | None = Field(None, alias="githubApp")
    git: dict[str, object] | None = None
    api: dict[str, object] | None = None

    def not_built(self) -> list[str]:
        asked = {"only": self.only, "githubApp": self.github_app, "git": self.git, "api": self.api}
        return [name for name, value in asked.items() if value]

    def plan(self, name: str) -> SecretPlan:
        rules = self.rules
        return SecretPlan(
            name=name,
            hosts=tuple(self.hosts),
            header=self.header,
            format=self.format,
            rules=None
            if rules is None
            else tuple(RequestRule(methods=tuple(rule.methods), paths=tuple(rule.paths)) for rule in rules),
            env=self.env,
        )


class SecretShown(Shown):
    """A secret in an answer: never its value."""

    name: str
    hosts: list[str]
    placeholder: str
    updatedAt: str


class SecretPage(Shown):
    secrets: list[SecretShown]
    next: str | None


class EgressPage(Shown):
    data: list[dict[str, object]]
    nextAfter: int


def network_body(record: SandboxRecord, *, enforced: bool, forbidden_ports: list[int]) -> dict[str, object]:
    """What `GET /v1/sandboxes/{id}/network` answers. `ports` null is every port that is not forbidden."""
    network = record.network
    return {
        "sandboxId": record.id,
        **network.rules.as_json(),
        "version": network.version,
        "enforced": enforced,
        "enforcedVersion": network.version if enforced else None,
        "ports": None,
        "openPorts": [],
        "forbiddenPorts": forbidden_ports,
        "connectAllowed": True,
        "connectReason": None,
        "updatedAt": iso(network.updated_at_s or record.created_at_s),
    }


def record_body(record: EgressRecord) -> dict[str, object]:
    return {"at": iso(record.at_s), **record.as_json()}


def secret_body(record: SecretRecord) -> dict[str, object]:
    plan = record.plan
    rules = plan.rules
    return {
        "name": plan.name,
        "hosts": list(plan.hosts),
        "header": plan.header,
        "format": plan.format,
        "rules": None
        if rules is None
        else [{**({"methods": list(r.methods)} if r.methods else {}), "paths": list(r.paths)} for r in rules],
        "env": plan.variable,
        "placeholder": record.placeholder,
        "enforced": True,
        "createdAt": iso(record.created_at_s),
        "updatedAt": iso(record.updated_at_s),
    }
