"""What the operator does with images: build, list, remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtimed.images.run import ending_on_sigterm
from runtimed.images.store import ImageInfo, ImageStore
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
    if service is not None:
        raise CommandError(f"a service runs (pid {service['pid']}) and may use the image; stop it first")
    return ImageStore(settings.cache_dir).remove(name).image_id


def _shown(info: ImageInfo) -> dict[str, object]:
    return {
        "id": info.image_id,
        "name": info.name,
        "distribution": info.distribution,
        "release": info.release,
        "sizeMiB": Path(info.rootfs).stat().st_blocks * 512 >> 20,
    }
