"""Everything an operator can set: one frozen value, from a TOML file and command-line flags, checked as a whole."""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from runtimed.spare_list import read_spares

Bounded = int | float


class CommandError(Exception):
    """What the operator asked for cannot be done; one sentence says why, and what to do."""


class SettingsError(CommandError):
    """The settings cannot be used; the message names every wrong one."""


@dataclass(frozen=True)
class About:
    """Why a setting has its default, its unit, and the values it may have."""

    reason: str
    unit: str = ""
    low: Bounded | None = None
    high: Bounded | None = None
    check: Callable[[str], object] | None = None
    """Reads a text that has a syntax; raises ValueError saying what is wrong with it."""


def default_state_dir() -> Path:
    if asked := os.environ.get("RUNTIME_STATE_DIR"):
        return Path(asked)
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "withruntime"


def default_cache_dir() -> Path:
    if asked := os.environ.get("RUNTIME_CACHE_DIR"):
        return Path(asked)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "withruntime"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One service. Every field is a key of the TOML file; `docs/operations.md` lists them."""

    state_dir: Annotated[Path, About("database, key and machines: what must outlive a restart", "path")] = field(
        default_factory=default_state_dir
    )
    cache_dir: Annotated[Path, About("images and templates: what can be made again", "path")] = field(
        default_factory=default_cache_dir
    )
    cache_keep_days: Annotated[
        int, About("what nothing needs any more goes so long after its last use; 0 keeps it", "days", 0, 3650)
    ] = 14
    host: Annotated[str, About("only this machine; put a TLS proxy in front before opening it", "address")] = (
        "127.0.0.1"
    )
    port: Annotated[int, About("0 takes a free one; clients read it from service.json", "port", 0, 65535)] = 0
    database_url: Annotated[str, About("empty is SQLite in the state folder", "SQLAlchemy async URL")] = ""
    region: Annotated[str, About("the only region that a create may name")] = "local"

    vmm: Annotated[
        Literal["qemu", "fake"], About("fake runs the agent as a plain process, without isolation: tests only")
    ] = "qemu"
    accel: Annotated[
        Literal["auto", "kvm", "tcg"], About("auto takes KVM where a real boot proves that it works, else TCG")
    ] = "auto"
    jail: Annotated[bool, About("QEMU sees only its own files and no network; off only to look for a fault")] = True
    image: Annotated[str, About("what a create without an image gets")] = "default"
    spares: Annotated[
        int, About("machines of the default image and shape kept ready; ended when memory is short", "machines", 0, 64)
    ] = 2
    spare_shapes: Annotated[
        str,
        About(
            "the same for other shapes and images, such as `1x1024x3072=2, tools:2x4096x4096=1`",
            "[IMAGE:]VCPUxMEMORYxDISK=COUNT (MiB), by comma",
            check=read_spares,
        ),
    ] = ""
    max_sandboxes: Annotated[int, About("more were never tried on one host", "sandboxes", 1, 10_000)] = 200
    memory_keep_free_mib: Annotated[
        int, About("no start while the host has less available, whatever was promised", "MiB", 0, 1 << 20)
    ] = 1024
    memory_overcommit: Annotated[
        float, About("clones share their template's pages, and most agents touch little", "times", 1, 64)
    ] = 6.0
    vcpu_overcommit: Annotated[float, About("an agent's machine mostly waits for a model", "times", 1, 256)] = 32.0

    end_sandboxes: Annotated[
        bool, About("sandboxes go on when the service stops, so that it can be upgraded; true ends them with it")
    ] = False

    exec_per_sandbox: Annotated[int, About("commands and file calls at once in one sandbox", "calls", 1, 4096)] = 64
    exec_total: Annotated[int, About("the same in all; beyond it answers 503 guest_busy", "calls", 1, 65536)] = 512
    egress_open_ranges: Annotated[
        str,
        About("reached although refused by default, such as a private mirror's", "addresses and CIDR ranges, by comma"),
    ] = ""
    egress_open_ports: Annotated[str, About("the same for ports, such as 587 for mail", "ports, by comma")] = ""
    egress_nameservers: Annotated[
        str, About("empty is the host's own resolver", "address or address#port, by comma")
    ] = ""
    egress_upstream_proxy: Annotated[
        str, About("every connection goes through it, and never around; empty is none", "host:port")
    ] = ""
    egress_extra_roots: Annotated[str, About("certificates trusted beside the host's own", "PEM file")] = ""
    egress_connections: Annotated[int, About("of one sandbox at once", "connections", 1, 500)] = 480
    egress_new_a_second: Annotated[int, About("connections that one sandbox begins", "a second", 1, 10_000)] = 100
    egress_gib_max: Annotated[int, About("what one sandbox may move in its life; 0 is no limit", "GiB", 0, 1 << 20)] = 0
    egress_response_s: Annotated[int, About("models think for minutes", "seconds", 1, 86_400)] = 900
    price_book: Annotated[str, About("empty is the book that comes with the package", "path of a TOML file")] = ""
    usage_detail_days: Annotated[
        int, About("use by the minute; older is kept by the hour, with the same sums", "days", 1, 3650)
    ] = 35
    log_level: Annotated[Literal["debug", "info", "warning", "error"], About("debug also shows each host command")] = (
        "info"
    )


HINTS: Mapping[str, type] = typing.get_type_hints(Settings)
ABOUT: Mapping[str, About] = {
    name: hint.__metadata__[0] for name, hint in typing.get_type_hints(Settings, include_extras=True).items()
}


def load(*, config: Path | None = None, flags: Mapping[str, object] | None = None) -> Settings:
    """Flags over the file over the defaults.

    The file is `config`, else `$RUNTIME_CONFIG`, else `config.toml` in the state folder where there is one.

    Raises:
        SettingsError: the file cannot be read, a name is unknown, or a value has the wrong type or size.
    """
    asked = {k: v for k, v in (flags or {}).items() if v is not None}
    values: dict[str, object] = {**_read(_config_path(config, asked)), **asked}
    wrong = [f"{name}: there is no such setting" for name in values if name not in HINTS]
    for name in values.keys() & HINTS.keys():
        values[name], problem = _fit(name, values[name])
        if problem:
            wrong.append(f"{name}: {problem}")
    if wrong:
        raise SettingsError("; ".join(sorted(wrong)))
    return Settings(**values)  # type: ignore[arg-type]  # each value was fitted to its hint above


def _config_path(config: Path | None, flags: Mapping[str, object]) -> Path | None:
    if config is not None:
        return config
    if named := os.environ.get("RUNTIME_CONFIG"):
        return Path(named)
    state = Path(str(flags.get("state_dir") or default_state_dir()))
    return found if (found := state / "config.toml").exists() else None


def _read(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error


def _fit(name: str, value: object) -> tuple[object, str | None]:
    """The value as its field wants it, and what is wrong with it."""
    hint = HINTS[name]
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        return value, None if value in options else f"must be one of {', '.join(options)}"
    if hint is Path:
        if not isinstance(value, str | Path):
            return value, "must be a path"
        return Path(value).expanduser().absolute(), None
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:  # exactly: a bool is no number here
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        return value, f"must be {words[hint]}"
    about = ABOUT[name]
    if about.low is not None and about.high is not None and not about.low <= value <= about.high:  # type: ignore[operator]
        return value, f"{value} is not within {about.low} to {about.high}"
    try:
        if about.check is not None:
            about.check(str(value))
    except ValueError as wrong:
        return value, str(wrong)
    return value, None
