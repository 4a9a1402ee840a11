"""Names every error that a caller can see, with its code, HTTP status and whether asking again can help.

* RuntimedError                        500 internal_error
  + CallerError                        the caller can fix it
    - InvalidRequest                   400 invalid_request (every wrong field at once)
    - Unauthorized                     401 unauthorized
    - PaymentRequired                  402 payment_required
      . InsufficientFunds              402 insufficient_funds
      . SpendingLimitReached           402 spending_limit_reached (the key's limit over 24 hours)
      . TrialExhausted                 402 trial_exhausted
    - Forbidden                        403 forbidden
    - PermissionDenied                 403 permission_denied
    - NotFound                         404 not_found
      . RouteNotFound                  404 route_not_found
      . FileMissing                    404 file_not_found
      . ImageNotFound                  404 image_not_found
      . ProcessNotFound                404 process_not_found
      . UploadNotFound                 404 upload_not_found
      . SnapshotNotFound               404 snapshot_not_found
    - MethodNotAllowed                 405 method_not_allowed
    - Conflict                         409 conflict
      . NameTaken                      409 name_taken
      . SandboxStopped                 409 sandbox_stopped
      . SandboxPaused                  409 sandbox_paused
      . NotRunning                     409 not_running
      . NotPaused                      409 not_paused
      . NotStopped                     409 not_stopped
      . SnapshotFailed                 409 snapshot_failed
      . SnapshotChanged                409 snapshot_metadata_changed
      . CwdNotFound                    409 cwd_not_found
      . IsADirectory                   409 is_a_directory
      . NotADirectory                  409 not_a_directory
      . DirectoryNotEmpty              409 directory_not_empty
      . AlreadyExists                  409 already_exists
      . UploadIncomplete               409 upload_incomplete
      . StdinClosed                    409 stdin_closed
      . ProcessEnded                   409 process_ended
      . ProcessLimit                   409 process_limit
      . UnsafeArchive                  409 unsafe_archive
      . DiskFull                       409 disk_full
      . BudgetExceeded                 409 budget_exceeded (what the caller itself set as the most it may cost)
    - TooLarge                         413 too_large
    - IdempotencyKeyReused             422 idempotency_key_reused
    - RateLimited                      429 rate_limited
    - QuotaExceeded                    429 quota_exceeded (sandboxes at once)
  + ServiceError                       the caller should ask again, or call the operator
    - Unavailable                      501 unavailable (not built or switched off; asking again does not help)
    - StartFailed                      502 start_failed
    - MachineGone                      502 host_lost
    - OutcomeUnknown                   502 outcome_unknown (a command may have run; its process id is in the details)
    - Interrupted                      502 interrupted (a stream ended; its cursor is in the details)
    - NoCapacity                       503 no_capacity
    - GuestBusy                        503 guest_busy
    - HostUnavailable                  503 host_unavailable (no QEMU, no image, no jail, no disk space ...)
    - GuestUnresponsive                504 guest_unresponsive
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class RuntimedError(Exception):
    """`code` is API: clients match on it. `message` is prose: it may change. `hint` says what to do."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool | None] = None
    """None leaves the decision to the client's own table."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, object] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})
        self.retry_after_ms = retry_after_ms


class CallerError(RuntimedError):
    """The caller can fix it."""

    code, status = "bad_request", 400


class InvalidRequest(CallerError):
    """Names every wrong field: `issues` is a list of {"field", "message"}."""

    code, status = "invalid_request", 400

    def __init__(self, issues: list[dict[str, str]], *, hint: str | None = None) -> None:
        text = "; ".join(f"{i['field']}: {i['message']}" for i in issues)
        super().__init__(text, hint=hint, details={"issues": issues})


class Unauthorized(CallerError):
    code, status = "unauthorized", 401


class PaymentRequired(CallerError):
    code, status = "payment_required", 402


class InsufficientFunds(PaymentRequired):
    code = "insufficient_funds"


class SpendingLimitReached(PaymentRequired):
    code = "spending_limit_reached"


class TrialExhausted(PaymentRequired):
    code = "trial_exhausted"


class Forbidden(CallerError):
    code, status = "forbidden", 403


class PermissionDenied(CallerError):
    code, status = "permission_denied", 403


class NotFound(CallerError):
    code, status = "not_found", 404


class RouteNotFound(NotFound):
    code = "route_not_found"


class FileMissing(NotFound):
    code = "file_not_found"


class ImageNotFound(NotFound):
    code = "image_not_found"


class ProcessNotFound(NotFound):
    code = "process_not_found"


class UploadNotFound(NotFound):
    code = "upload_not_found"


class SnapshotNotFound(NotFound):
    code = "snapshot_not_found"


class MethodNotAllowed(CallerError):
    code, status = "method_not_allowed", 405


class Conflict(CallerError):
    code, status = "conflict", 409


class NameTaken(Conflict):
    code = "name_taken"


class SandboxStopped(Conflict):
    code = "sandbox_stopped"


class SandboxPaused(Conflict):
    code = "sandbox_paused"


class NotRunning(Conflict):
    code = "not_running"


class NotPaused(Conflict):
    code = "not_paused"


class NotStopped(Conflict):
    code = "not_stopped"


class SnapshotFailed(Conflict):
    code = "snapshot_failed"


class SnapshotChanged(Conflict):
    code = "snapshot_metadata_changed"


class CwdNotFound(Conflict):
    code = "cwd_not_found"


class IsADirectory(Conflict):
    code = "is_a_directory"


class NotADirectory(Conflict):
    code = "not_a_directory"


class DirectoryNotEmpty(Conflict):
    code = "directory_not_empty"


class AlreadyExists(Conflict):
    code = "already_exists"


class UploadIncomplete(Conflict):
    code = "upload_incomplete"


class StdinClosed(Conflict):
    code = "stdin_closed"


class ProcessEnded(Conflict):
    code = "process_ended"


class ProcessLimit(Conflict):
    code = "process_limit"


class UnsafeArchive(Conflict):
    code = "unsafe_archive"


class DiskFull(Conflict):
    code = "disk_full"


class BudgetExceeded(Conflict):
    code = "budget_exceeded"


class TooLarge(CallerError):
    code, status = "too_large", 413


class IdempotencyKeyReused(CallerError):
    code, status = "idempotency_key_reused", 422


class RateLimited(CallerError):
    code, status = "rate_limited", 429
    retryable = True


class QuotaExceeded(CallerError):
    code, status = "quota_exceeded", 429


class ServiceError(RuntimedError):
    """The caller should ask again, or call the operator."""


class Unavailable(ServiceError):
    code, status = "unavailable", 501
    retryable = False


class StartFailed(ServiceError):
    code, status = "start_failed", 502
    retryable = False


class MachineGone(ServiceError):
    code, status = "host_lost", 502
    retryable = False


class OutcomeUnknown(ServiceError):
    code, status = "outcome_unknown", 502
    retryable = False


class Interrupted(ServiceError):
    code, status = "interrupted", 502
    retryable = False


class NoCapacity(ServiceError):
    code, status = "no_capacity", 503


class GuestBusy(ServiceError):
    code, status = "guest_busy", 503
    retryable = True


class HostUnavailable(ServiceError):
    code, status = "host_unavailable", 503
    retryable = False


class GuestUnresponsive(ServiceError):
    code, status = "guest_unresponsive", 504
    retryable = False


def every_error() -> dict[str, type[RuntimedError]]:
    """All classes by code, for mapping a code from the guest and for the API's documents."""
    found: dict[str, type[RuntimedError]] = {}
    left: list[type[RuntimedError]] = [RuntimedError]
    while left:
        kind = left.pop()
        found.setdefault(kind.code, kind)  # the parent stands for a room's own subclass with the same code
        left.extend(kind.__subclasses__())
    return found


def from_code(code: str, message: str, details: Mapping[str, object] | None = None) -> RuntimedError:
    """The error that a code of the guest stands for; an unknown code is a fault of ours."""
    kind = every_error().get(code, ServiceError)
    if kind is InvalidRequest:
        about = details or {}
        field = str(about.get("field") or ("path" if "path" in about else "request"))
        return InvalidRequest([{"field": field, "message": message}])
    return kind(message, details=details)
