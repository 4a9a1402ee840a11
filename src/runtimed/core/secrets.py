"""A secret that sandboxes use and never see: what is known of it without its value, and what may be asked for it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtimed.core.network import Target, read_target

VALUE_MAX_BYTES = 8 * 1024
HOSTS_MAX, RULES_MAX, PATHS_MAX = 16, 16, 32
PLACEHOLDER_PREFIX = "rtsec_"
HTTPS_PORT = 443

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VALUE = re.compile(r"[\x20-\x7e]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
_METHOD = re.compile(r"[A-Z]{1,32}")


OPEN_TO_ALL = frozenset(
    {
        *("ac.uk", "co.uk", "gov.uk", "org.uk", "com.au", "net.au", "org.au", "co.nz", "co.za", "com.br", "com.cn"),
        *("com.mx", "com.sg", "com.tr", "com.tw", "co.il", "co.in", "co.jp", "ne.jp", "or.jp", "co.kr", "eu.org"),
        *("github.io", "gitlab.io", "pages.dev", "workers.dev", "vercel.app", "netlify.app", "web.app", "fly.dev"),
        *("herokuapp.com", "onrender.com", "azurewebsites.net", "cloudfront.net", "amazonaws.com", "s3.amazonaws.com"),
        *("appspot.com", "run.app", "r2.dev", "ngrok.io", "ngrok.app", "blogspot.com", "firebaseapp.com"),
    }
)
"""Names under which anybody can have a host: the best known ones, not all that there are."""


@dataclass(frozen=True, kw_only=True)
class RequestRule:
    """Requests that carry the value: no methods is every method; a path is exact, or ends in `/*`."""

    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SecretPlan:
    """Everything about a secret but its value."""

    name: str
    hosts: tuple[str, ...]
    header: str | None = None
    format: str | None = None
    rules: tuple[RequestRule, ...] | None = None
    env: str | None = None
    """The variable it is seen in, when not its name."""

    @property
    def variable(self) -> str:
        return self.env or self.name


@dataclass(frozen=True, kw_only=True)
class SecretRecord:
    """A secret as it is kept: sealed. The value is opened in the gateway only."""

    id: str
    account_id: str
    plan: SecretPlan
    placeholder: str
    sealed: bytes
    created_at_s: float
    updated_at_s: float


@dataclass
class _Problems:
    found: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, where: str, message: str) -> None:
        self.found.append({"field": where, "message": message})


_OWNED_PREFIXES = ("LD_", "BASH_", "PYTHON")
_OWNED_VARIABLES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "IFS", "ENV", "TERM", "LANG", "TMPDIR",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "NODE_OPTIONS", "GIT_SSL_CAINFO",
    }
)  # fmt: skip
"""A placeholder in one of these would break every program of every sandbox that may use the secret."""


def check_secret(plan: SecretPlan, value: str) -> list[dict[str, str]]:
    """Every part that is wrong, as {"field", "message"}. The value itself is never quoted."""
    wrong = _Problems()
    if not _NAME.fullmatch(plan.name):
        wrong("name", "must be a letter or underscore and then letters, digits and underscores")
    if plan.env is not None and not _NAME.fullmatch(plan.env):
        wrong("env", "must be the name of an environment variable")
    seen_as = plan.env or plan.name
    if seen_as in _OWNED_VARIABLES or seen_as.startswith(_OWNED_PREFIXES):
        wrong("env" if plan.env else "name", f"{seen_as} belongs to the shell, the loader or the gateway")
    if not value or not _VALUE.fullmatch(value):
        wrong("value", "must be visible ASCII characters and spaces")
    if len(value.encode()) > VALUE_MAX_BYTES:
        wrong("value", f"must have at most {VALUE_MAX_BYTES} bytes")
    _check_hosts(plan.hosts, wrong)
    if plan.header is not None and (not _HEADER.fullmatch(plan.header) or plan.header.lower() in _FRAMING):
        wrong("header", "must be the name of a header that does not frame the message")
    if plan.format is not None:
        if plan.header is None:
            wrong("format", "needs a header")
        if plan.format.count("{value}") != 1 or not _VALUE.fullmatch(plan.format):
            wrong("format", "must hold {value} once, and visible ASCII characters")
    _check_rules(plan.rules, wrong)
    return wrong.found


def host_targets(hosts: Sequence[str]) -> tuple[Target, ...]:
    """Where a secret may go. Raises ValueError."""
    return tuple(_host_target(host) for host in hosts)


def covers(targets: Sequence[Target], name: str, port: int) -> bool:
    """Whether a secret with these hosts goes to this one: on port 443 unless the host says another."""
    return any((t.port is not None or port == HTTPS_PORT) and t.covers_name(name, port) for t in targets)


def _host_target(text: str) -> Target:
    target = read_target(text)
    if target.name is None:
        raise ValueError(f"{text[:80]!r} is an address; a certificate names a host")
    return target


def _check_hosts(hosts: Sequence[str], wrong: _Problems) -> None:
    if not 1 <= len(hosts) <= HOSTS_MAX:
        wrong("hosts", f"must name 1 to {HOSTS_MAX} hosts")
    for index, host in enumerate(hosts):
        try:
            target = _host_target(host)
        except ValueError as problem:
            wrong(f"hosts.{index}", str(problem))
            continue
        if target.subdomains and target.name and ("." not in target.name or target.name in OPEN_TO_ALL):
            message = (
                f"anybody can have a host under {target.name!r}, and would be given the value: name a domain of yours"
            )
            wrong(f"hosts.{index}", message)


def _check_rules(rules: Sequence[RequestRule] | None, wrong: _Problems) -> None:
    if rules is None:
        return
    if not 1 <= len(rules) <= RULES_MAX:
        wrong("rules", f"must hold 1 to {RULES_MAX} rules")
    for index, rule in enumerate(rules):
        if any(not _METHOD.fullmatch(method) for method in rule.methods):
            wrong(f"rules.{index}.methods", "must be methods in capitals")
        if not 1 <= len(rule.paths) <= PATHS_MAX:
            wrong(f"rules.{index}.paths", f"must hold 1 to {PATHS_MAX} paths")
        for number, path in enumerate(rule.paths):
            plain = path[:-1] if path.endswith("/*") else path
            if canonical_path(plain) != plain:
                wrong(f"rules.{index}.paths.{number}", "must be a path as it is written canonically, or end in /*")


def canonical_path(path: str) -> str | None:
    """The path decoded once; None when it could be read in two ways."""
    if not path.startswith("/") or not path.isascii() or any(c in path for c in ";\\*#\0"):
        return None
    decoded = bytearray()
    at = 0
    while at < len(path):
        if path[at] == "%":
            digits = path[at + 1 : at + 3]
            if not re.fullmatch(r"[0-9A-Fa-f]{2}", digits):
                return None
            decoded.append(int(digits, 16))
            if decoded[-1] in b"/\\;%*.?#" or decoded[-1] < 0x20 or decoded[-1] == 0x7F:
                return None
            at += 3
        else:
            decoded.append(ord(path[at]))
            at += 1
    try:
        text = decoded.decode("utf-8")
    except UnicodeDecodeError:
        return None
    segments = text.split("/")[1:]
    if any(segment and not segment.strip(". ") for segment in segments) or "" in segments[:-1]:
        return None  # Some servers take blanks and dots at the end of a name away.
    plain = unicodedata.normalize("NFKC", text)
    return text if all(plain.count(sign) == text.count(sign) for sign in "./\\;%?#*") else None
