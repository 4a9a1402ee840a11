"""Knows when templates were last used, what each stands on and what keeps it, and takes unused ones away.

ROOT/<key>/                 its modification time is its last use
ROOT/<key>/needs.json       the files that a machine cloned from it has open beside its own
ROOT/.holders/<key>/<hash>  a folder that keeps it: a machine's, a paused sandbox's or a snapshot's
ROOT/.lock-use              shared while a use is noted, alone while something unused is taken away
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path

from runtimed.core import file_lock
from runtimed.core.boot import ImageFiles

NEEDS = "needs.json"
_LOCK = ".lock-use"


def use(root: Path, key: str) -> bool:
    """Note that a template is used now; False if it is not there. No prune takes it from here on."""
    with file_lock.held(root / _LOCK, shared=True):
        try:
            os.utime(root / key)
        except FileNotFoundError:
            return False
        return True


def keys(root: Path) -> list[str]:
    """Every finished template."""
    return sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != ".") if root.is_dir() else []


def holders(root: Path, key: str) -> list[Path]:
    """The folders that keep a template; those that are gone are forgotten."""
    folder = root / ".holders" / key
    living = []
    for holder in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            path = Path(holder.read_text())
            if path.exists():
                living.append(path)
            else:
                holder.unlink(missing_ok=True)
    return living


def write_needs(directory: Path, image: ImageFiles) -> None:
    """Say what a template's clones have open: saved memory fits these very files and no later build of them."""
    needs = [image.rootfs, image.kernel, image.initrd, image.agent_disk]
    (directory / NEEDS).write_text(json.dumps([str(path) for path in needs]))


def remove_unused(root: Path, key: str, *, before_s: float) -> bool:
    """Take a template away unless something holds it, or it was used at or after `before_s` (seconds since 1970)."""
    gone = root / f".discarded-{uuid.uuid4()}"
    with file_lock.held(root / _LOCK):
        try:
            if (root / key).stat().st_mtime >= before_s or holders(root, key):
                return False
            (root / key).rename(gone)
        except FileNotFoundError:
            return False
    shutil.rmtree(gone, ignore_errors=True)
    return True
