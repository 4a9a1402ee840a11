"""Run code in machines of its own: the Python client of a Runtime service."""

from importlib import import_module
from typing import TYPE_CHECKING

from withruntime._version import VERSION

if TYPE_CHECKING:
    from withruntime._async.client import AsyncRuntime
    from withruntime._async.files import AsyncFiles
    from withruntime._async.page import AsyncPage
    from withruntime._async.process import AsyncProcess
    from withruntime._async.sandbox import AsyncSandbox
    from withruntime._async.sandboxes import AsyncSandboxes
    from withruntime._errors import (
        AccountBlockedError,
        AuthenticationError,
        CommandError,
        ConflictError,
        ConnectionError,
        InvalidRequestError,
        NotFoundError,
        OutcomeUnknownError,
        PermissionDeniedError,
        RateLimitError,
        RuntimeAPIError,
        RuntimeConnectionError,
        RuntimeError,
        SecretPartlyStoredError,
        ServiceUnavailableError,
    )
    from withruntime._sync.client import Runtime
    from withruntime._sync.files import Files
    from withruntime._sync.page import Page
    from withruntime._sync.process import Process
    from withruntime._sync.sandbox import Sandbox
    from withruntime._sync.sandboxes import Sandboxes
    from withruntime._values import CommandResult, TracedFiles

__version__ = VERSION

__all__ = [
    "VERSION",
    "AccountBlockedError",
    "AsyncFiles",
    "AsyncPage",
    "AsyncProcess",
    "AsyncRuntime",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AuthenticationError",
    "CommandError",
    "CommandResult",
    "ConflictError",
    "ConnectionError",
    "Files",
    "InvalidRequestError",
    "NotFoundError",
    "OutcomeUnknownError",
    "Page",
    "PermissionDeniedError",
    "Process",
    "RateLimitError",
    "Runtime",
    "RuntimeAPIError",
    "RuntimeConnectionError",
    "RuntimeError",
    "Sandbox",
    "Sandboxes",
    "SecretPartlyStoredError",
    "ServiceUnavailableError",
    "TracedFiles",
    "__version__",
]

# Loaded on first use: HTTP and TLS take a quarter of a second, in which the command line should already obey Ctrl-C.
_HOMES = {
    "AccountBlockedError": "withruntime._errors",
    "AsyncFiles": "withruntime._async.files",
    "AsyncPage": "withruntime._async.page",
    "AsyncProcess": "withruntime._async.process",
    "AsyncRuntime": "withruntime._async.client",
    "AsyncSandbox": "withruntime._async.sandbox",
    "AsyncSandboxes": "withruntime._async.sandboxes",
    "AuthenticationError": "withruntime._errors",
    "CommandError": "withruntime._errors",
    "CommandResult": "withruntime._values",
    "ConflictError": "withruntime._errors",
    "ConnectionError": "withruntime._errors",
    "Files": "withruntime._sync.files",
    "InvalidRequestError": "withruntime._errors",
    "NotFoundError": "withruntime._errors",
    "OutcomeUnknownError": "withruntime._errors",
    "Page": "withruntime._sync.page",
    "PermissionDeniedError": "withruntime._errors",
    "Process": "withruntime._sync.process",
    "RateLimitError": "withruntime._errors",
    "Runtime": "withruntime._sync.client",
    "RuntimeAPIError": "withruntime._errors",
    "RuntimeConnectionError": "withruntime._errors",
    "RuntimeError": "withruntime._errors",
    "Sandbox": "withruntime._sync.sandbox",
    "Sandboxes": "withruntime._sync.sandboxes",
    "SecretPartlyStoredError": "withruntime._errors",
    "ServiceUnavailableError": "withruntime._errors",
    "TracedFiles": "withruntime._values",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
