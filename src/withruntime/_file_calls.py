"""Says for each file operation what to send and how to read the answer: values only, no I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from withruntime._calls import (
    Answer,
    Call,
    Decode,
    T,
    as_bytes,
    as_data,
    as_nothing,
    as_object,
    get,
    new_key,
    post,
    sandbox_path,
    segment,
    sent,
    with_query,
)
from withruntime._errors import InvalidRequestError, NotFoundError, RuntimeError
from withruntime._values import Json

SINGLE_SHOT_MAX_BYTES = 1 << 20
"""A file or an archive up to this size travels in one request."""
CHUNK_MAX_BYTES = 1 << 20
CHUNKS_AT_ONCE = 4
READ_MAX_BYTES = 256 << 20
"""More than this does not belong in memory."""
READ_TRIES = 3
"""A file that comes broken is asked for this often in all."""

_RAW = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The length and digest announced for a file; None where nothing was."""

    length: int | None
    sha256: str | None

    def kept(self, length: int, digest: Callable[[], str]) -> bool:
        if self.length is not None and self.length != length:
            return False
        return self.sha256 is None or self.sha256.lower() == digest()


@dataclass(frozen=True, kw_only=True)
class Upload:
    """An upload that was begun, and where its parts go."""

    path: str
    chunk_bytes: int
    mode_kept: bool


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What an upload announces about the file."""

    path: str
    size: int
    sha256: str
    mode: int | None


def promise_of(headers: Mapping[str, str]) -> Promise:
    length = headers.get("x-content-length", "")
    return Promise(length=int(length) if length.isdigit() else None, sha256=headers.get("x-content-sha256"))


def incomplete(path: str) -> RuntimeError:
    return RuntimeError(
        f"{path} did not arrive whole: its length or digest is not what the service announced.",
        code="download_incomplete",
        hint="It may be changing while it is read; try again.",
    )


def too_large(path: str, size: int, max_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path} is too large to be read at once: {size} bytes or more, where {max_bytes} are the limit.",
        code="too_large",
        status=413,
        hint="Use files.read_stream() or files.download().",
    )


def files_path(sandbox_id: str, rest: str) -> str:
    return sandbox_path(sandbox_id, f"/files{rest}")


def octal(mode: int) -> str:
    """The nine permission bits in the spelling of the wire."""
    return f"{mode & 0o777:03o}"


def read(sandbox_id: str, path: str) -> Call[bytes]:
    return replace(get(files_path(sandbox_id, "/content"), as_bytes, {"path": path}), accept=_RAW)


def write(sandbox_id: str, path: str, data: bytes, mode: int | None) -> Call[Json]:
    query = {"path": path, "mode": None if mode is None else octal(mode)}
    return _put(with_query(files_path(sandbox_id, "/content"), query), data, as_object)


def begin_upload(sandbox_id: str, facts: FileFacts) -> Call[Upload]:
    uploads = sandbox_path(sandbox_id, "/uploads")
    asked_mode = None if facts.mode is None else octal(facts.mode)

    def decode(answer: Answer) -> Upload:
        kept = asked_mode is None or as_object(answer).get("mode") == asked_mode
        return _as_upload(answer, uploads, mode_kept=kept)

    fields = [("path", facts.path), ("size", facts.size), ("sha256", facts.sha256), ("mode", asked_mode)]
    return post(uploads, decode, sent(fields))


def begin_archive(sandbox_id: str, path: str, *, gzip: bool, user: str, key: str | None) -> Call[Upload]:
    uploads = files_path(sandbox_id, "/archive/uploads")
    body: Json = {"path": path, "gzip": gzip, "user": user}
    return post(uploads, lambda answer: _as_upload(answer, uploads, mode_kept=True), body, key)


def put_chunk(upload: Upload, offset: int, data: bytes) -> Call[None]:
    return _put(with_query(upload.path, {"offset": offset}), data, as_nothing)


def commit(upload: Upload) -> Call[Json]:
    return post(f"{upload.path}:commit", as_object)


def abort(upload: Upload) -> Call[None]:
    return replace(post(f"{upload.path}:abort", as_nothing), may_retry=False, deadline_s=10.0)


def chmod(sandbox_id: str, path: str, mode: int) -> Call[None]:
    return post(files_path(sandbox_id, ":chmod"), as_nothing, {"path": path, "mode": octal(mode)})


def list_files(sandbox_id: str, query: Mapping[str, object]) -> Call[list[Json]]:
    return get(files_path(sandbox_id, "/list"), as_data, query)


def stat(sandbox_id: str, path: str) -> Call[Json]:
    """A path where nothing is answers `{"exists": false}`."""
    return get(files_path(sandbox_id, "/stat"), as_object, {"path": path})


def found(path: str, entry: Json) -> Json:
    """The entry of a stat, if there is one.

    Raises:
        NotFoundError: nothing is there (`file_not_found`).
    """
    if entry.get("exists") is False:
        raise NotFoundError(f"There is no {path} in the sandbox.", code="file_not_found", status=404)
    return entry


def mkdir(sandbox_id: str, path: str, *, parents: bool) -> Call[None]:
    return post(files_path(sandbox_id, ":mkdir"), as_nothing, {"path": path, "parents": parents})


def remove(sandbox_id: str, path: str, *, recursive: bool) -> Call[bool]:
    body = {"path": path, "recursive": recursive}
    return post(files_path(sandbox_id, ":remove"), lambda answer: bool(as_object(answer)["removed"]), body)


def rename(sandbox_id: str, source: str, target: str, *, overwrite: bool) -> Call[None]:
    body = {"from": source, "to": target, "overwrite": overwrite}
    return post(files_path(sandbox_id, ":rename"), as_nothing, body)


def archive(sandbox_id: str, path: str, *, gzip: bool, user: str, exclude: Sequence[str] | None) -> Call[bytes]:
    query = {"path": path, "gzip": gzip, "user": user, "exclude": list(exclude or ())}
    return replace(get(files_path(sandbox_id, "/archive"), as_bytes, query), accept=_RAW)


def unarchive(sandbox_id: str, path: str, data: bytes, *, user: str, key: str | None) -> Call[None]:
    target = with_query(files_path(sandbox_id, "/archive"), {"path": path, "user": user})
    return _put(target, data, as_nothing, key)


def _put(path: str, data: bytes, decode: Decode[T], key: str | None = None) -> Call[T]:
    return Call(method="PUT", path=path, decode=decode, content=data, idempotency_key=key or new_key())


def _as_upload(answer: Answer, uploads: str, *, mode_kept: bool) -> Upload:
    told = as_object(answer)
    chunk_bytes = int(told["chunkBytes"])
    if not 1 <= chunk_bytes <= CHUNK_MAX_BYTES:
        raise RuntimeError(f"The service asked for chunks of {chunk_bytes} bytes.", code="invalid_answer")
    return Upload(path=f"{uploads}/{segment(str(told['uploadId']))}", chunk_bytes=chunk_bytes, mode_kept=mode_kept)
