"""Run code in machines of its own: the Python client of a Runtime service."""

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
from withruntime._version import VERSION

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
