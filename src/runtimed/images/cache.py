"""Owns the cache folder: each artifact is made once, appears whole or not at all, and leaves no half-made rest.

    FOLDER/<kind>/<key>/...         finished; never changed
    FOLDER/.building-<random>/      being made: `result` becomes the artifact by one rename, `work` is scratch
    FOLDER/.locks/<kind>-<key>      held by the process that makes it; others wait for it
    FOLDER/.locks/use               shared while a use is noted, alone while something unused is taken away

A folder `.building-*` is locked by its maker. The kernel drops that lock with the process, however it ends, so
whoever comes next can tell a rest (removed) from work in progress (left alone) without trusting process ids.

The last use of an artifact is the modification time of its folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtimed.core import file_lock
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.run import HostRunner, Progress, contained

_BUILDING = ".building-"
_LOCKS = ".locks"
_USE = "use"
REMOVE_ATTEMPTS = 3
"""What still cannot be removed then is removed by the next build or start of the service."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where one artifact is made."""

    result: Path
    """Becomes the artifact."""
    work: Path
    """Scratch, removed afterwards."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What is to be made, and how."""

    kind: str
    key: str
    needs_mib: int
    """Free disk space that must be there before it starts."""
    make: Callable[[Workplace], None]


class Cache:
    """Threads and processes may share one folder; each artifact is still made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def find(self, kind: str, key: str) -> Path | None:
        path = self.path(kind, key)
        return path if path.is_dir() else None

    def keys(self, kind: str) -> list[str]:
        folder = self.folder / kind
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def ensure(self, artifact: Artifact, progress: Progress) -> Path:
        """The artifact's folder, made now if it is missing. If making fails, the cache is as it was before."""
        if found := self.use(artifact.kind, artifact.key):
            return found
        with self._lock(
            f"{artifact.kind}-{artifact.key}", lambda: progress("another process builds this: waiting", None)
        ):
            if found := self.use(artifact.kind, artifact.key):
                return found
            self.remove_leftovers()
            self._check_space(artifact)
            with self._workplace() as place:
                artifact.make(place)
                return self._publish(place.result, self.path(artifact.kind, artifact.key))

    def use(self, kind: str, key: str) -> Path | None:
        """The artifact's folder, noted as used now; None if there is none. No prune takes it from here on."""
        self._prepare()
        path = self.path(kind, key)
        with self._lock(_USE, shared=True):
            try:
                os.utime(path)
            except FileNotFoundError:
                return None
            except PermissionError:
                pass  # another user's cache, which only that user prunes
            return path

    def remove_unused(self, kind: str, key: str, *, before_s: float) -> bool:
        """Take an artifact away unless it was used at or after `before_s` (seconds since 1970)."""
        self._prepare()
        path = self.path(kind, key)
        with self._workplace() as place, self._lock(_USE):
            try:
                if path.stat().st_mtime >= before_s:
                    return False
                path.rename(place.work / "removed")
            except FileNotFoundError:
                return False
            return True

    def remove(self, kind: str, key: str) -> bool:
        """Take an artifact away, at once for every reader. False if there is none."""
        self._prepare()
        with self._lock(f"{kind}-{key}"), self._workplace() as place:
            try:
                self.path(kind, key).rename(place.work / "removed")
            except FileNotFoundError:
                return False
            return True

    def remove_leftovers(self) -> list[str]:
        """Remove what builders left that were killed; answers the names. Builds that run are not touched."""
        removed = []
        for path in sorted(self.folder.glob(f"{_BUILDING}*")):
            with self._lock("sweep"), _locked_folder(path) as free:
                if free:
                    _remove_tree(path)
                    removed.append(path.name)
        return removed

    def _prepare(self) -> None:
        try:
            (self.folder / _LOCKS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImageBuildFailed(
                f"The cache folder {self.folder} cannot be made ({error.strerror}); set RUNTIME_CACHE_DIR to another."
            ) from error

    def _check_space(self, artifact: Artifact) -> None:
        free_mib = shutil.disk_usage(self.folder).free >> 20
        if free_mib < artifact.needs_mib:
            raise ImageBuildFailed(
                f"Making {artifact.kind}/{artifact.key} needs {artifact.needs_mib} MiB of free disk space and"
                f" {self.folder} has {free_mib} MiB: free some, or set RUNTIME_CACHE_DIR to a larger disk."
            )

    def _lock(
        self, name: str, on_wait: Callable[[], None] = lambda: None, *, shared: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        # The lock files stay: to remove one safely would need a lock of its own.
        return file_lock.held(self.folder / _LOCKS / name, shared=shared, on_wait=on_wait)

    @contextlib.contextmanager
    def _workplace(self) -> Iterator[Workplace]:
        path = self.folder / f"{_BUILDING}{secrets.token_hex(6)}"
        with contextlib.ExitStack() as held:
            with self._lock("sweep"):  # so that no sweep comes between making the folder and locking it
                path.mkdir(mode=0o755)
                held.enter_context(_locked_folder(path))
            place = Workplace(result=path / "result", work=path / "work")
            try:
                place.result.mkdir()
                place.work.mkdir()
                yield place
            finally:
                _remove_tree(path)

    def _publish(self, result: Path, final: Path) -> Path:
        _open_to_readers(result)
        os.sync()  # else a power cut could leave the name without the data
        final.parent.mkdir(exist_ok=True)
        result.rename(final)
        return final


def _open_to_readers(result: Path) -> None:
    """Machines run as users of their own and must read this, whatever the umask of who made it."""
    result.chmod(0o755)
    for path in result.iterdir():
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[bool]:
    """Holds the folder's own lock; False if another process holds it or the folder is gone."""
    descriptor = file_lock.take(path) if path.is_dir() else None
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _remove_tree(path: Path) -> None:
    for _ in range(REMOVE_ATTEMPTS):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        # Built by an ordinary user: files of subordinate ids, which only a namespace of their own may remove. Or a
        # program that was killed a moment ago still wrote. A runner of its own, because the build's may be stopped.
        with contextlib.suppress(ImageBuildFailed):
            HostRunner().run(contained(["rm", "-rf", "--", str(path)]), within_s=600)
