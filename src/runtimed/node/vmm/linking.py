"""Gives a file that never changes a second name, or copies it where the two places are not on one file system."""

from __future__ import annotations

import errno
from pathlib import Path


def link_or_copy(source: Path, target: Path) -> None:
    """Raises OSError: no room, or no such file."""
    try:
        target.hardlink_to(source)
    except OSError as failure:
        if failure.errno != errno.EXDEV:
            raise
        target.write_bytes(source.read_bytes())
        target.chmod(0o444)
