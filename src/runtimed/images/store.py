"""The images of this host: makes what is missing, finds what is there, and says where its files are."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtimed.core.boot import ImageFiles
from runtimed.core.errors import ImageNotFound
from runtimed.images import agent_disk, guest_tools, kernel
from runtimed.images.apt_sources import (
    Archive,
    SourceEntry,
    choose_archive,
    host_entries,
    host_release_name,
)
from runtimed.images.cache import Artifact, Cache, Workplace
from runtimed.images.recipe import Recipe, is_recipe, load_recipe, packaged_recipes
from runtimed.images.rootfs import RootfsOrder, build_rootfs
from runtimed.images.run import HostRunner, Progress, Runner, silent

_IMAGES, _KERNELS, _TOOLS, _AGENTS = "images", "kernels", "tools", "agents"
KINDS = (_IMAGES, _KERNELS, _TOOLS, _AGENTS)
"""What this store makes, as folders of the cache."""


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """One built image."""

    image_id: str
    """Names the recipe and the release: equal recipes give equal ids."""
    build_id: str
    """A UUID, new for each build. Templates and overlays made from an image fit only this build of it."""
    name: str
    distribution: str
    release: str
    rootfs: Path
    rootfs_bytes: int
    """The size of the filesystem as built; a machine's disk must not be smaller."""


@dataclass(frozen=True, kw_only=True)
class _System:
    """What an image's kernel and agent's disk are made of."""

    archive: Archive
    release: str


@dataclass(frozen=True, kw_only=True)
class _Settled(_System):
    """A recipe whose "auto" fields have been settled on this host."""

    recipe: Recipe

    @property
    def image_id(self) -> str:
        return self.recipe.address(distribution=self.archive.distribution, release=self.release)


class ImageStore:
    """One host's images. Its methods block (seconds to minutes for `ensure`): call it in a thread.

    Several threads and processes may use one cache folder at the same time.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        runner: Runner | None = None,
        sources: Callable[[], list[SourceEntry]] = host_entries,
        guest_source: Path | None = None,
    ) -> None:
        self._cache = Cache(cache_dir)
        self._runner: Runner = runner or HostRunner()
        self._sources = sources
        self._guest_source = guest_source

    def ensure(self, name_or_path: str, progress: Progress = silent) -> ImageFiles:
        """All that a machine of an image boots from, each file made now if it is missing. Idempotent.

        An image of somebody's own recipe is found by its name or id once it is built, without the recipe. The files
        never change; the answer's `image_id` names this very build of the image, because templates and disks made
        from one build do not fit another.

        Raises:
            ImageNotFound, InvalidRequest: no such recipe, or a wrong one.
            ImageBuildFailed: a sentence that names the way out; nothing of the attempt is left.
        """
        own = None if is_recipe(name_or_path) else self.find(name_or_path)
        if own is not None:
            archive = choose_archive(self._sources(), own.distribution, host_release=host_release_name())
            system = _System(archive=archive, release=own.release)
            return self._files(system, lambda: own, progress)
        settled = self._settle(load_recipe(name_or_path))
        return self._files(settled, lambda: self._image(settled, progress), progress)

    def _files(self, system: _System, image: Callable[[], ImageInfo], progress: Progress) -> ImageFiles:
        kernel_id, kernel_folder = self._kernel(system, progress)
        agent_id, agent_folder = self._agent(system, kernel_id, kernel_folder, progress)
        info = image()
        return ImageFiles(
            image_id=f"{info.image_id}-{info.build_id[:8]}",
            name=info.name,
            release=info.release,
            rootfs=info.rootfs,
            rootfs_bytes=info.rootfs_bytes,
            kernel_id=kernel_id,
            kernel=kernel_folder / "vmlinux",
            initrd=kernel_folder / "initrd.cpio",
            agent_id=agent_id,
            agent_disk=agent_folder / "agent.img",
        )

    def build(self, name_or_path: str, progress: Progress = silent) -> ImageInfo:
        """The same for an operator, who wants to know about the image. Raises what `ensure` raises."""
        self.ensure(name_or_path, progress)
        return self._image(self._settle(load_recipe(name_or_path)), progress)

    def find(self, name_or_id: str) -> ImageInfo | None:
        """A built image by its id, or by its name: the one of today's recipe, else the newest of that name."""
        images = self.list()
        by_id = {image.image_id: image for image in images}
        if name_or_id in by_id:
            return by_id[name_or_id]
        named = [image for image in images if image.name == name_or_id]
        if len(named) > 1:
            try:
                current = self._settle(load_recipe(name_or_id)).image_id
            except ImageNotFound:
                current = ""
            named.sort(key=lambda image: (image.image_id != current, -_built_at(image)))
        return named[0] if named else None

    def list(self) -> list[ImageInfo]:
        """Every built image, by name."""
        found = [_read_info(self._cache.path(_IMAGES, key)) for key in self._cache.keys(_IMAGES)]
        return sorted((info for info in found if info is not None), key=lambda info: (info.name, info.image_id))

    def remove(self, name_or_id: str) -> ImageInfo:
        """Delete a built image. Whoever calls makes sure that no machine or template is based on it.

        Raises ImageNotFound.
        """
        info = self.find(name_or_id)
        if info is None or not self._cache.remove(_IMAGES, info.image_id):
            raise ImageNotFound(f"There is no built image {name_or_id!r}; `runtime image ls` lists them.")
        return info

    def current(self) -> set[tuple[str, str]]:
        """Kind and key of what the next start or create may ask for: of each name the newest image and today's
        recipe, with the kernel, the tools and the agent's disk that belong to them. None of it need be built."""
        newest: dict[str, ImageInfo] = {}
        for info in self.list():
            other = newest.get(info.name)
            if other is None or _built_at(info) > _built_at(other):
                newest[info.name] = info
        wanted = {(info.image_id, info.distribution, info.release) for info in newest.values()}
        for name in packaged_recipes():
            settled = self._settle(load_recipe(name))
            wanted.add((settled.image_id, settled.archive.distribution, settled.release))
        source = self._guest_source or agent_disk.guest_source()
        found = set[tuple[str, str]]()
        for image_id, distribution, release in wanted:
            kernel_id = kernel.kernel_address(distribution, release)
            tools_id = guest_tools.tools_address(distribution, release)
            agent_id = agent_disk.agent_address(source, kernel_id, tools_id)
            found |= {(_IMAGES, image_id), (_KERNELS, kernel_id), (_TOOLS, tools_id), (_AGENTS, agent_id)}
        return found

    def remove_leftovers(self) -> int:
        """Remove what killed builds left behind; answers how many. Call it at the start of the service."""
        return len(self._cache.remove_leftovers())

    def _settle(self, recipe: Recipe) -> _Settled:
        archive = choose_archive(self._sources(), recipe.distribution, host_release=host_release_name())
        return _Settled(recipe=recipe, archive=archive, release=recipe.release_for(archive.distribution))

    def _kernel(self, system: _System, progress: Progress) -> tuple[str, Path]:
        key = kernel.kernel_address(system.archive.distribution, system.release)

        def make(place: Workplace) -> None:
            kernel.build_kernel(system.archive, system.release, place, self._runner, progress)

        artifact = Artifact(kind=_KERNELS, key=key, needs_mib=kernel.NEEDS_MIB, make=make)
        return key, self._cache.ensure(artifact, progress)

    def _agent(self, system: _System, kernel_id: str, kernel_folder: Path, progress: Progress) -> tuple[str, Path]:
        tools_id = guest_tools.tools_address(system.archive.distribution, system.release)

        def make_tools(place: Workplace) -> None:
            guest_tools.build_tools(system.archive, system.release, place, self._runner, progress)

        tools = Artifact(kind=_TOOLS, key=tools_id, needs_mib=guest_tools.NEEDS_MIB, make=make_tools)
        parts = agent_disk.AgentParts(
            guest_source=self._guest_source or agent_disk.guest_source(),
            kernel=kernel_folder,
            kernel_id=kernel_id,
            tools=self._cache.ensure(tools, progress),
            tools_id=tools_id,
        )
        key = agent_disk.agent_address(parts.guest_source, kernel_id, tools_id)

        def make_disk(place: Workplace) -> None:
            agent_disk.build_agent_disk(parts, place, self._runner, progress)

        disk = Artifact(kind=_AGENTS, key=key, needs_mib=agent_disk.NEEDS_MIB, make=make_disk)
        return key, self._cache.ensure(disk, progress)

    def _image(self, settled: _Settled, progress: Progress) -> ImageInfo:
        def make(place: Workplace) -> None:
            order = RootfsOrder(
                image_id=settled.image_id,
                build_id=str(uuid.uuid4()),
                recipe=settled.recipe,
                archive=settled.archive,
                release=settled.release,
            )
            build_rootfs(order, place, self._runner, progress)

        artifact = Artifact(kind=_IMAGES, key=settled.image_id, needs_mib=settled.recipe.needs_mib, make=make)
        info = _read_info(self._cache.ensure(artifact, progress))
        if info is None:
            raise ImageNotFound(f"The image {settled.recipe.name} was removed while it was asked for; ask again.")
        return info


def _built_at(info: ImageInfo) -> float:
    """Seconds since 1970. Of the description, because the folder's own time is that of its last use."""
    return (info.rootfs.parent / "image.json").stat().st_mtime


def _read_info(folder: Path) -> ImageInfo | None:
    try:
        described = json.loads((folder / "image.json").read_text())
    except FileNotFoundError:
        return None
    return ImageInfo(
        image_id=described["image_id"],
        build_id=described["build_id"],
        name=described["name"],
        distribution=described["distribution"],
        release=described["release"],
        rootfs=folder / "rootfs.img",
        rootfs_bytes=described["rootfs_bytes"],
    )
