"""Decides what of the cache nothing needs any more, and takes it away while other services go on using the rest.

What stays, however old it is:

    what the next start may ask for      today's recipes, and of each image's name the newest
    what a sandbox stands on             the records of machines, paused sandboxes and snapshots of every state folder
    what a template stands on            as long as the template itself stays
    what a running service has used      everything since the oldest of them began

Every service registers its state folder in the cache (`.users/`) before it uses anything of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtimed.core import file_lock
from runtimed.images import qemu
from runtimed.images.cache import Cache
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.store import KINDS, ImageStore
from runtimed.node import unused
from runtimed.node.guard import SERVICE_LOCK
from runtimed.settings import CommandError, Settings

_log = logging.getLogger(__name__)

JUST_USED_S = 3600.0
"""Whoever noted a use has this long to write down what it made of it: the longest build takes less."""
TEMPLATES = "templates"
_USERS = ".users"
_LOCK = ".lock"
_RECORDS = ("machine.json", "kept.json")
_SHELVES = ("machines", "kept", "snapshots", "machines")
"""Machines twice: one that is paused or woken while we look is in one of the three at every moment."""

Place = tuple[str, str]
"""Kind and key: the two folders below the cache."""


@dataclass(frozen=True, kw_only=True)
class PrunedFolder:
    """One folder of the cache that went, or would go."""

    kind: str
    key: str
    bytes: int
    """What it takes on the disk."""
    unused_days: float

    @property
    def place(self) -> str:
        return f"{self.kind}/{self.key}"

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "key": self.key, "bytes": self.bytes, "unusedDays": round(self.unused_days, 2)}


@dataclass(frozen=True, kw_only=True)
class Pruned:
    removed: list[PrunedFolder]


def register(settings: Settings) -> None:
    """Let every prune of this cache know this state folder. To be called before anything of the cache is used."""
    state = settings.state_dir.absolute()
    users = settings.cache_dir / _USERS
    try:
        users.mkdir(parents=True, exist_ok=True)
        with file_lock.held(users / _LOCK, shared=True):
            # Writing it again also notes when this service began.
            (users / hashlib.sha256(str(state).encode()).hexdigest()[:32]).write_text(str(state))
    except OSError as error:
        raise CommandError(
            f"the cache folder {settings.cache_dir} cannot be written ({error.strerror}); set RUNTIME_CACHE_DIR"
        ) from error


def prune_in_background(settings: Settings, now_s: float) -> None:
    """What the service does at its start; a prune that cannot be done is a line in the log."""
    if not settings.cache_keep_days:
        return
    try:
        pruned = prune(settings, now_s=now_s, keep_days=settings.cache_keep_days, dry_run=False)
    except CommandError as error:
        _log.warning("the cache is not pruned: %s", error)
        return
    for one in pruned.removed:
        _log.info("removed %s from the cache, unused for %.1f days", one.place, one.unused_days)


def prune(settings: Settings, *, now_s: float, keep_days: float, dry_run: bool) -> Pruned:
    """Remove what nothing needs and what was not used for `keep_days`. Blocks; safe beside other services.

    `now_s` is the wall clock, in seconds since 1970.

    Raises:
        CommandError: what is needed cannot be found out; nothing was removed.
    """
    try:
        states = _state_folders(settings)
        began_s = [_began_s(*one) for one in states.items()]
        sweep = _Sweep(
            cache_dir=settings.cache_dir,
            now_s=now_s,
            before_s=min([now_s - max(keep_days * 86_400, JUST_USED_S), *began_s]),
            dry_run=dry_run,
        )
        needed = _needed_by_records(settings.cache_dir, list(states)) | _current(settings)
        templates = list(sweep.templates(needed))
        needed |= _needed_by_templates(settings.cache_dir, {one.key for one in templates})
        return Pruned(removed=[*templates, *sweep.artifacts(needed)])
    except (OSError, ImageBuildFailed) as error:
        raise CommandError(f"what is still needed cannot be found out: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Sweep:
    """Goes through the cache once."""

    cache_dir: Path
    now_s: float
    before_s: float
    """What was used at or after this moment stays."""
    dry_run: bool

    def templates(self, needed: set[Place]) -> Iterator[PrunedFolder]:
        root = self.cache_dir / TEMPLATES
        for key in unused.keys(root):
            found = self._unneeded(TEMPLATES, key, needed)
            if found is None or unused.holders(root, key):
                continue
            if self.dry_run or unused.remove_unused(root, key, before_s=self.before_s):
                yield found

    def artifacts(self, needed: set[Place]) -> Iterator[PrunedFolder]:
        cache = Cache(self.cache_dir)
        for kind in (*KINDS, qemu.KIND):
            for key in cache.keys(kind):
                found = self._unneeded(kind, key, needed)
                if found is not None and (self.dry_run or cache.remove_unused(kind, key, before_s=self.before_s)):
                    yield found

    def _unneeded(self, kind: str, key: str, needed: set[Place]) -> PrunedFolder | None:
        folder, size = self.cache_dir / kind / key, 0
        try:
            used_s = folder.stat().st_mtime
            if (kind, key) in needed or used_s >= self.before_s:
                return None
            for directory, _, names in os.walk(folder):
                size += sum(os.lstat(os.path.join(directory, name)).st_blocks * 512 for name in names)
        except FileNotFoundError:
            return None  # somebody else was faster
        return PrunedFolder(kind=kind, key=key, bytes=size, unused_days=max(0.0, self.now_s - used_s) / 86_400)


def _current(settings: Settings) -> set[Place]:
    return ImageStore(settings.cache_dir).current() | {(qemu.KIND, qemu.current_key())}


def _state_folders(settings: Settings) -> dict[Path, Path | None]:
    """Every state folder that is there, with the file that registers it; those that are gone are forgotten."""
    users = settings.cache_dir / _USERS
    found: dict[Path, Path | None] = {settings.state_dir.absolute(): None}
    if not users.is_dir():
        return found
    with file_lock.held(users / _LOCK):
        for entry in sorted(users.glob("[0-9a-f]*")):
            state = Path(entry.read_text())
            if state.is_dir():
                found[state] = entry
            else:
                entry.unlink(missing_ok=True)
    return found


def _began_s(state: Path, entry: Path | None) -> float:
    """When the service that runs on a state folder began (seconds since 1970); never, where none runs."""
    if entry is None or not file_lock.is_held(state / SERVICE_LOCK):
        return float("inf")
    return entry.stat().st_mtime


def _needed_by_records(cache_dir: Path, states: list[Path]) -> set[Place]:
    """What machines, paused sandboxes and snapshots stand on; also those whose state folder is not registered."""
    folders = [holder for key in _held(cache_dir) for holder in unused.holders(cache_dir / TEMPLATES, key)]
    for state in states:
        for shelf in _SHELVES:
            if (state / shelf).is_dir():
                folders += (state / shelf).iterdir()
    needed = set[Place]()
    for folder in folders:
        for name in _RECORDS:
            needed |= _named_in(folder / name, cache_dir)
    return needed


def _needed_by_templates(cache_dir: Path, gone: set[str]) -> set[Place]:
    """What the templates stand on that stay: saved memory fits these very files and no later build of them."""
    root = cache_dir / TEMPLATES
    return {
        place
        for key in unused.keys(root)
        if key not in gone
        for place in _named_in(root / key / unused.NEEDS, cache_dir)
    }


def _held(cache_dir: Path) -> list[str]:
    folder = cache_dir / TEMPLATES / ".holders"
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _named_in(record: Path, cache_dir: Path) -> set[Place]:
    """Every place of the cache that a record names, wherever it does: other versions write other records."""
    root = Path(os.path.realpath(cache_dir))
    try:
        texts = _texts(json.loads(record.read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return set()
    found = set[Place]()
    for text in texts:
        path = Path(os.path.realpath(text)) if text.startswith("/") else root
        if path.is_relative_to(root) and len(parts := path.relative_to(root).parts) > 1:
            found.add((parts[0], parts[1]))
    return found


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
