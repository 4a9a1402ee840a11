"""Says how HTTP is spoken: options for httpx, and what its failures mean to us. Opens nothing itself."""

import ssl
from functools import lru_cache
from typing import Any

import httpx

from withruntime._retry import TransportFailure
from withruntime._settings import Endpoint
from withruntime._version import VERSION

IDLE_CONNECTIONS_MAX = 8
CONNECT_MAX_S = 30.0


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=1)
def _no_tls() -> ssl.SSLContext:
    # Loading the CA bundle costs tens of milliseconds, and a plain address never uses it. This one trusts nobody.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_options(endpoint: Endpoint, *, max_connections: int) -> dict[str, Any]:
    """Options that are the same for httpx.Client and httpx.AsyncClient."""
    return {
        "base_url": endpoint.origin,
        "headers": {
            "Authorization": f"Bearer {endpoint.api_key}",
            "User-Agent": f"runtime-sdk-python/{VERSION}",
            "X-Runtime-Client": f"sdk-python/{VERSION}",
            "Accept-Encoding": "identity",
        },
        "verify": _tls() if endpoint.origin.startswith("https:") else _no_tls(),
        "trust_env": not endpoint.loopback,
        "follow_redirects": False,
        "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=IDLE_CONNECTIONS_MAX),
    }


def timeouts(*, headers_s: float, silence_s: float) -> dict[str, float | None]:
    """The timeouts of one request, in the form that `extensions` takes; `read` is that of the headers."""
    return {"connect": min(CONNECT_MAX_S, headers_s), "read": headers_s, "write": silence_s, "pool": None}


def failure_of(error: httpx.TransportError) -> TransportFailure:
    """What a failure of httpx means: whether the call may have reached the service."""
    text = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError):
        return TransportFailure("not_connected", f"The service could not be reached: {text}")
    if isinstance(error, httpx.TimeoutException):
        return TransportFailure("timeout", f"The service did not answer in time: {text}")
    return TransportFailure("broken", f"The connection to the service broke: {text}")
