"""Decides which exception a refusal becomes; it neither sends nor retries anything.

    * RuntimeError                      whatever the service refused (alias RuntimeAPIError)
      + AuthenticationError             401
      + PermissionDeniedError           403
      + NotFoundError                   404
      + ConflictError                   409
      + InvalidRequestError             400, 413, 422
      + RateLimitError                  429
      + ServiceUnavailableError         500 and above
      + AccountBlockedError             any status with code `account_blocked`
      + CommandError                    a command failed and `check=True` was asked for
      + SecretPartlyStoredError         a secret was stored on some hosts only
      + ConnectionError                 no answer came (alias RuntimeConnectionError)
        - OutcomeUnknownError           the command started, and how it ended cannot be known

`code` is API: programs match on it. `message` is prose and may change.
"""

import json
from typing import Any

SWITCHED_OFF = frozenset(
    {
        "unavailable",
        "unsupported",
        "fork_unavailable",
        "previews_unavailable",
        "file_links_unavailable",
        "network_unavailable",
        "network_rules_unavailable",
        "secrets_unavailable",
        "identity_unavailable",
        "env_unavailable",
        "resize_unavailable",
        "feature_unavailable",
        "delete_unavailable",
        "switch_image_unavailable",
        "switching_paused",
        "schema_migration_required",
        "storage_unavailable",
    }
)
"""Codes that mean a feature is not there: asking again changes nothing."""

RETRIED_STATUSES = frozenset({429, 502, 503, 504})

_PROSE_MAX_BYTES = 500
"""How much of a body that is not our envelope is worth showing."""


class RuntimeError(Exception):
    """The service refused a call, or its answer made no sense."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "request_failed",
        status: int = 0,
        request_id: str | None = None,
        hint: str | None = None,
        details: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        retry_after_ms: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.hint = hint
        self.details = details
        self.idempotency_key = idempotency_key
        self.retry_after_ms = retry_after_ms
        self.sent_retryable = retryable

    @property
    def retryable(self) -> bool:
        """Whether sending the same call again can help; the service's own word wins."""
        if self.sent_retryable is not None:
            return self.sent_retryable
        return self.status in RETRIED_STATUSES and self.code not in SWITCHED_OFF

    def __str__(self) -> str:
        label = f"{self.code} {self.status}" if self.status else self.code
        lines = [f"[{label}] {self.message}"]
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        if self.request_id:
            lines.append(f"Request: {self.request_id}")
        return "\n".join(lines)


class AuthenticationError(RuntimeError):
    """The key is missing, unknown or revoked."""


class PermissionDeniedError(RuntimeError):
    """The key is good and may not do this."""


class NotFoundError(RuntimeError):
    """Nothing by that id, name or path is visible to this key."""


class ConflictError(RuntimeError):
    """The thing exists and is in a state that rules this out."""


class InvalidRequestError(RuntimeError):
    """The request itself is wrong; `details` names the fields."""


class RateLimitError(RuntimeError):
    """Too much at once; `retry_after_ms` says when to come back."""


class ServiceUnavailableError(RuntimeError):
    """The service could not do it now, or does not do it at all."""


class AccountBlockedError(RuntimeError):
    """The account may not use the service."""


class SecretPartlyStoredError(RuntimeError):
    """A secret reached only a part of where it belongs."""


class ConnectionError(RuntimeError):
    """No answer came: the service was unreachable, or the connection broke every time."""

    @property
    def retryable(self) -> bool:
        return self.sent_retryable is not False


class OutcomeUnknownError(ConnectionError):
    """A command started and its end cannot be known; `details["processId"]` is there to ask again."""


class CommandError(RuntimeError):
    """A command that was to be checked did not succeed."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.exit_code: int | None = result.get("exitCode")
        self.stdout: str = result.get("stdout", "")
        self.stderr: str = result.get("stderr", "")
        memory = result.get("outOfMemory")
        if memory:
            code, text = "out_of_memory", str(memory.get("message") or "The command ran out of memory.")
        elif result.get("timedOut"):
            code, text = "command_timeout", "The command ran into its time limit."
        else:
            code, text = "command_failed", f"The command ended with exit code {self.exit_code}."
        tail = self.stderr.strip()[-_PROSE_MAX_BYTES:]
        super().__init__(f"{text} {tail}".strip(), code=code, hint=memory.get("hint") if memory else None)


RuntimeAPIError = RuntimeError
RuntimeConnectionError = ConnectionError

_BY_STATUS: dict[int, type[RuntimeError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitError,
}


def error_class(status: int, code: str) -> type[RuntimeError]:
    """The exception class for a status and a code."""
    if code == "account_blocked":
        return AccountBlockedError
    if code == "outcome_unknown":
        return OutcomeUnknownError
    if status >= 500:
        return ServiceUnavailableError
    return _BY_STATUS.get(status, RuntimeError)


def error_from_envelope(envelope: dict[str, Any], *, status: int, key: str | None = None) -> RuntimeError:
    """Build the exception for one `error` object of an answer, a late answer or a stream event."""
    code = str(envelope.get("code") or "request_failed")
    details = envelope.get("details")
    wait_ms = envelope.get("retryAfterMs")
    retryable = envelope.get("retryable")
    return error_class(status, code)(
        str(envelope.get("message") or f"The service answered with status {status}."),
        code=code,
        status=status,
        request_id=envelope.get("requestId"),
        hint=envelope.get("hint"),
        details=details if isinstance(details, dict) else None,
        idempotency_key=key,
        retry_after_ms=wait_ms if isinstance(wait_ms, int) else None,
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def error_from_body(status: int, body: bytes, *, retry_after: str | None, key: str | None) -> RuntimeError:
    """Build the exception for an answer that is not 2xx, envelope or not."""
    error = error_from_envelope(_envelope(body), status=status, key=key)
    if error.retry_after_ms is None and retry_after is not None:
        try:
            error.retry_after_ms = max(0, int(float(retry_after) * 1000))
        except ValueError:
            pass  # an HTTP date: nobody here sends one
    return error


def _envelope(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"message": body[:_PROSE_MAX_BYTES].decode("utf-8", "replace").strip()}
    found = parsed.get("error") if isinstance(parsed, dict) else None
    return found if isinstance(found, dict) else {}
