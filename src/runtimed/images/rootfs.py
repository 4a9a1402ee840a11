"""Builds the root filesystem of an image from its recipe: a sparse raw ext4 file which every machine of it overlays."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from runtimed.images.apt_sources import KEYRINGS, Archive, SourceEntry
from runtimed.images.cache import Workplace
from runtimed.images.errors import CommandFailed, ImageBuildFailed
from runtimed.images.private_apt import open_apt
from runtimed.images.recipe import Recipe, boot_file
from runtimed.images.run import Progress, Runner, contained

BUILD_WITHIN_S = 3600
STEP_WITHIN_S = 900

SLACK_MIB = 256
"""Room in the filesystem as built, journal included; a machine grows it to its own disk size as it boots."""
JOURNAL_MIB = 32
BLOCK_BYTES = 4096
GROWS_TO_BYTES = 400 << 30
"""The largest disk a sandbox may ask for: room for the block group descriptors is reserved up to it."""
BYTES_PER_INODE = 16384
FEATURES = "^metadata_csum,uninit_bg,^64bit,resize_inode"
"""No checksum of each metadata block: computing them costs under emulation, and a sandbox's disk is thrown away."""

_COMMAND_ENVIRONMENT = (
    "env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive"
    " LC_ALL=C.UTF-8"
)

_UNWANTED = ("doc", "man", "info", "locale", "lintian", "bug", "gtk-doc", "linda")
"""Folders of /usr/share that stay out, except the copyright notices in doc."""


@dataclass(frozen=True, kw_only=True)
class RootfsOrder:
    """What to build."""

    image_id: str
    build_id: str
    """A UUID, new for each build: what is derived from an image (templates, overlays) fits only this build of it."""
    recipe: Recipe
    archive: Archive
    release: str


def build_rootfs(order: RootfsOrder, place: Workplace, runner: Runner, progress: Progress) -> None:
    """Makes `rootfs.img` and `image.json` in `place.result`.

    Raises ImageBuildFailed that says which package, file or command of the recipe is the matter.
    """
    progress("reading the package lists", 0.0)
    apt, archive = open_apt(place.work, order.archive, order.release, runner)
    entries = archive.entries(order.release)
    progress(f"installing {len(order.recipe.packages)} packages of {order.release}", 0.05)
    _install(_mmdebstrap(order, place.work, apt.settings_file(), entries), place.work, runner, progress)
    progress("cleaning up", 0.85)
    root = _root(place.work)
    _in_image(root, "image-finish.sh", runner)
    progress("writing the filesystem", 0.9)
    size_bytes = _filesystem_bytes(root, runner)
    image = place.result / "rootfs.img"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    runner.run(contained(_mke2fs(order, root, image)), within_s=STEP_WITHIN_S)
    (place.result / "image.json").write_text(
        json.dumps(
            {
                "image_id": order.image_id,
                "build_id": order.build_id,
                "name": order.recipe.name,
                "distribution": archive.distribution,
                "release": order.release,
                "rootfs_bytes": size_bytes,
            },
            indent=2,
        )
        + "\n"
    )
    progress("done", 1.0)


def _root(work: Path) -> Path:
    return work / "root"


def _mmdebstrap(order: RootfsOrder, work: Path, settings: Path, entries: list[SourceEntry]) -> list[str]:
    script = _write_customisation(order, work, entries)
    sources = work / "image.list"
    sources.write_text("".join(entry.line() + "\n" for entry in entries))
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    return [
        "mmdebstrap",
        # Within `contained` an ordinary user is root as well, so there is one way for both.
        "--mode=root",
        "--format=directory",
        f"--variant={order.recipe.variant}",
        *([f"--include={','.join(order.recipe.packages)}"] if order.recipe.packages else []),
        f"--aptopt={settings}",
        # The unprivileged download user may not enter the folder that the build is in.
        '--aptopt=APT::Sandbox::User "root"',
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=Acquire::Retries "3"',
        *excluded,
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        f'--customize-hook=/bin/sh {shlex.quote(str(script))} "$1"',
        order.release,
        str(_root(work)),
        str(sources),
    ]


def _install(argv: list[str], work: Path, runner: Runner, progress: Progress) -> None:
    temporary = work / "tmp"
    temporary.mkdir()

    def report(line: str) -> None:
        if line.startswith(("I: ", "runtime-step: ")) and "hook" not in line:
            progress(line.partition(": ")[2], None)

    try:
        runner.run(contained(argv), within_s=BUILD_WITHIN_S, env={"TMPDIR": str(temporary)}, on_line=report)
    except CommandFailed as error:
        raise _explained(error) from error


def _explained(error: CommandFailed) -> ImageBuildFailed:
    """The one sentence for what mmdebstrap says in hundreds of lines."""
    text = error.output
    missing = re.findall(r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate", text)
    steps = re.findall(r"^runtime-step: (.*)$", text, re.MULTILINE)
    problem = re.search(r"^runtime-problem: (.*)$", text, re.MULTILINE)
    sentence: str | None = None
    if missing:
        names = sorted({first or second for first, second in missing})
        sentence = f"The archive has no package {', '.join(names)}: correct the recipe's packages."
    elif problem:
        sentence = f"The image cannot be finished: {problem[1]}."
    elif "No space left on device" in text:
        sentence = "The disk is full: free some space, or set RUNTIME_CACHE_DIR to a larger disk."
    elif re.search(r"unshare: .*(Operation not permitted|Permission denied|No space left)|newuidmap|subuid", text):
        sentence = (
            "This user may not make user namespaces with subordinate ids: install uidmap, give the user a line in"
            " /etc/subuid and /etc/subgid, allow unprivileged user namespaces, or build as root."
        )
    elif steps:
        sentence = f"The recipe's {steps[-1]} failed."
    return ImageBuildFailed(sentence, details=error.details) if sentence else error


def _write_customisation(order: RootfsOrder, work: Path, entries: list[SourceEntry]) -> Path:
    """The script that mmdebstrap runs with the image's folder as $1; every write goes through chroot.

    Through chroot, because a link in the image may be absolute and must not lead to a file of the host.
    """
    parts = work / "customise"
    parts.mkdir()
    lines = ["set -eu", _chroot_stdin("/bin/sh -eu", boot_file("image-base.sh"), parts / "base")]
    files = (
        [("/etc/apt/sources.list", _sources_of_image(entries, order), 0o644)]
        if order.recipe.variant != "essential"
        else []
    )
    if order.recipe.environment:
        content = "".join(f'{name}="{value}"\n' for name, value in order.recipe.environment)
        files.append(("/etc/environment", content, 0o644))
    files += [(file.path, file.content, file.mode) for file in order.recipe.files]
    for index, (path, content, mode) in enumerate(files):
        write = 'mkdir -p "$(dirname "$1")"; cat > "$1"; chmod "$2" "$1"'
        command = f"/bin/sh -euc {shlex.quote(write)} sh {shlex.quote(path)} {mode:o}"
        lines.append(f"echo {shlex.quote(f'runtime-step: file {path}')}")
        lines.append(_chroot_stdin(command, content, parts / f"file-{index}"))
    lines.append('rm -f "$1"/etc/apt/sources.list.d/0000image.list')
    for number, command in enumerate(order.recipe.commands, start=1):
        shown = command if len(command) <= 60 else command[:57] + "..."
        lines.append(f"echo {shlex.quote(f'runtime-step: command {number} ({shown})')}")
        lines.append(f'chroot "$1" {_COMMAND_ENVIRONMENT} /bin/sh -euc {shlex.quote(command)} < /dev/null')
    script = work / "customise.sh"
    script.write_text("\n".join(lines) + "\n")
    return script


def _chroot_stdin(command: str, content: str, kept_in: Path) -> str:
    kept_in.write_text(content)
    return f'chroot "$1" {command} < {shlex.quote(str(kept_in))}'


def _sources_of_image(entries: list[SourceEntry], order: RootfsOrder) -> str:
    keyring = str(KEYRINGS[order.archive.distribution])
    return "".join(
        f"deb [signed-by={keyring}] {entry.uri} {entry.suite} {' '.join(entry.components)}\n" for entry in entries
    )


def _in_image(root: Path, name: str, runner: Runner) -> None:
    argv = ["chroot", str(root), "/bin/sh", "-c", boot_file(name)]
    runner.run(contained(argv), within_s=STEP_WITHIN_S)


def _filesystem_bytes(root: Path, runner: Runner) -> int:
    """What the files need, the inodes they need, and the slack; whole MiB."""
    count = 'du -s --block-size=1K "$1" | cut -f1; find "$1" -xdev | wc -l'
    said = runner.run(contained(["sh", "-euc", count, "sh", str(root)]), within_s=STEP_WITHIN_S).split()
    content_kib, files = int(said[0]), int(said[1])
    needed = max((content_kib << 10) * 104 // 100, files * BYTES_PER_INODE * 11 // 10) + (SLACK_MIB << 20)
    return (needed + (1 << 20) - 1) >> 20 << 20


def _mke2fs(order: RootfsOrder, root: Path, image: Path) -> list[str]:
    grows = GROWS_TO_BYTES // BLOCK_BYTES
    return [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-L", "rootfs", "-U", order.build_id),
        *("-b", str(BLOCK_BYTES), "-i", str(BYTES_PER_INODE), "-m", "0", "-O", FEATURES),
        *("-J", f"size={JOURNAL_MIB}"),
        *("-E", f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,resize={grows}"),
        *("-d", str(root), str(image)),
    ]
