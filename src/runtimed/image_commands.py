"""What the operator does with images: build, list, remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtimed.core.wording import counted
from runtimed.images.run import ending_on_sigterm
from runtimed.images.store import ImageInfo, ImageStore
from runtimed.pruning import Pruned
from runtimed.settings import CommandError, Settings
from runtimed.state_folder import StateFolder


def build(settings: Settings, name_or_path: str, say: Callable[[str], None]) -> dict[str, object]:
    """Raises ImageNotFound, InvalidRequest, and ImageBuildFailed with the way out."""

    def told(line: str, share: float | None = None) -> None:
        say(line if share is None else f"{line} ({share:.0%})")

    with ending_on_sigterm():
        return _shown(ImageStore(settings.cache_dir).build(name_or_path, told))


def listed(settings: Settings) -> list[dict[str, object]]:
    return [_shown(info) for info in ImageStore(settings.cache_dir).list()]


def remove(settings: Settings, name: str) -> str:
    """Raises ImageNotFound, and CommandError while a service of this state folder runs."""
    service = StateFolder(settings.state_dir).running_service()
    if service is not None and ImageStore(settings.cache_dir).find(name) is not None:
        raise CommandError(f"a service runs (pid {service['pid']}) and may use the image; stop it first")
    return ImageStore(settings.cache_dir).remove(name).image_id


def prune_lines(pruned: Pruned, *, dry_run: bool) -> list[str]:
    """What was or would be removed, for people."""
    lines = [f"{one.place:42} {_mib(one.bytes):>9}  unused for {_days(one.unused_days)}" for one in pruned.removed]
    total = sum(one.bytes for one in pruned.removed)
    if not lines:
        return ["nothing to remove"]
    return [*lines, f"{'would free' if dry_run else 'freed'} {_mib(total)} in {counted(len(lines), 'folder')}"]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _days(days: float) -> str:
    return counted(int(days), "day") if days >= 1 else counted(int(days * 24), "hour")


def _shown(info: ImageInfo) -> dict[str, object]:
    return {
        "id": info.image_id,
        "name": info.name,
        "distribution": info.distribution,
        "release": info.release,
        "sizeMiB": Path(info.rootfs).stat().st_blocks * 512 >> 20,
    }
