"""Decides which service a client talks to and with which key; reads the environment and files, opens no socket."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from withruntime import _local
from withruntime._errors import AuthenticationError

AUTH_ORIGIN = "https://withruntime.com"
PLAIN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "runtime.internal"})
"""The only hosts that may be reached without TLS: what is sent there does not leave the machine."""
LOOPBACK_HOSTS = PLAIN_HOSTS - {"runtime.internal"}

_COPY = "Copy it again into RUNTIME_API_KEY (or api_key= in Python): letters, digits, '_' and '-' only."
_LOGIN_FILE_MAX_BYTES = 4096
_LOGIN_KEY = re.compile(r"rtcloud_[a-f0-9-]{36}_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where to send calls, and the key that goes with them."""

    origin: str
    api_key: str
    local: bool
    """Whether this is the service of this user on this machine, which the client may start."""

    @property
    def loopback(self) -> bool:
        """On loopback no proxy of the environment is asked: it would be the wrong machine's loopback."""
        return urlsplit(self.origin).hostname in LOOPBACK_HOSTS


def check_origin(url: str) -> str:
    """Return the origin of a base URL without a trailing slash.

    Raises:
        ValueError: it is not a bare origin, or it is plain HTTP to another machine.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a service address: give one such as https://runtime.example.org")
    if parts.scheme == "http" and parts.hostname not in PLAIN_HOSTS:
        raise ValueError(f"{url!r} would send the key in the clear: use https, or http on localhost or 127.0.0.1")
    if parts.hostname == "runtime.internal" and (parts.scheme != "http" or parts.port not in (None, 80)):
        raise ValueError("runtime.internal is plain http on port 80")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username or parts.password:
        raise ValueError(f"{url!r} must be an origin only: no path, query, fragment or user in it")
    return f"{parts.scheme}://{parts.netloc}"


def configured_origin(base_url: str | None, env: Mapping[str, str]) -> str | None:
    """The service that was named by argument or environment; None means the local one."""
    named = base_url or env.get("RUNTIME_API_URL")
    return check_origin(named) if named else None


def remote_endpoint(origin: str, api_key: str | None, env: Mapping[str, str]) -> Endpoint:
    """Find the key for a service that was named.

    Raises:
        AuthenticationError: there is no key anywhere (`missing_api_key`).
    """
    key = api_key or env.get("RUNTIME_API_KEY") or _local.key_for(origin, env) or _saved_login(origin, env)
    return Endpoint(origin=origin, api_key=_checked_key(key, origin), local=False)


def local_endpoint(service: _local.Service, api_key: str | None, env: Mapping[str, str]) -> Endpoint:
    """Find the key for the local service.

    Raises:
        AuthenticationError: its key file cannot be read (`missing_api_key`).
    """
    key = api_key or env.get("RUNTIME_API_KEY") or _local.read_key(service.state)
    return Endpoint(origin=check_origin(service.url), api_key=_checked_key(key, service.url), local=True)


def _checked_key(key: str | None, origin: str) -> str:
    if not key:
        raise AuthenticationError(
            f"There is no API key for {origin}.",
            code="missing_api_key",
            hint="Set RUNTIME_API_KEY, or in Python pass api_key=.",
        )
    if any(character.isspace() for character in key):
        raise AuthenticationError("The API key has white space in it.", code="missing_api_key", hint=_COPY)
    if not (key.isascii() and key.isprintable()):
        raise AuthenticationError("The API key holds a character that no key has.", code="missing_api_key", hint=_COPY)
    return key


def _saved_login(origin: str, env: Mapping[str, str]) -> str | None:
    auth_origin = (env.get("RUNTIME_AUTH_URL") or AUTH_ORIGIN).rstrip("/")
    config = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    name = hashlib.sha256(f"{auth_origin}\n{origin}".encode()).hexdigest()
    path = config / "runtime-cloud" / f"{name}.json"
    try:
        about = path.stat()
        if about.st_uid != os.getuid() or about.st_mode & 0o077 or about.st_size > _LOGIN_FILE_MAX_BYTES:
            return None
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(saved, dict) or saved.get("apiOrigin") != origin:
        return None
    key = saved.get("key")
    return key if isinstance(key, str) and _LOGIN_KEY.fullmatch(key) else None
