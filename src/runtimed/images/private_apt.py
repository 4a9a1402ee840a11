"""Downloads and unpacks distribution packages with a package state of its own; the host's packages are not touched.

Works as an ordinary user. Signatures are checked by apt as always; what a package brings is only unpacked, none of
its scripts runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from runtimed.images.apt_sources import KEYRING_PACKAGES, Archive, SourceEntry
from runtimed.images.errors import CommandFailed, ImageBuildFailed
from runtimed.images.run import Runner

UPDATE_WITHIN_S = 600
DOWNLOAD_WITHIN_S = 1800
UNPACK_WITHIN_S = 300

_CARRIED = re.compile(
    r"^Acquire::(http|https|ftp|socks|Retries|ForceIPv4|ForceIPv6|Check-Valid-Until|Check-Date|Max-ValidTime)\b.*;$",
    re.IGNORECASE,
)
"""Of the host's own apt settings: how to reach a mirror. Its hooks and pins are not for us."""

_MERGED = ("bin", "sbin", "lib", "lib64")

_UNPACK = """
dpkg-deb --fsys-tarfile "$1" > "$1.tar"
tar -x --keep-directory-symlink --no-same-owner -f "$1.tar" -C "$2"
rm "$1.tar"
"""
"""tar is told to go through links to folders; the unpacking of dpkg-deb itself would replace them by folders."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package that apt would download."""

    name: str
    version: str


class PrivateApt:
    """One package state in `folder`, for the given sources and an empty system."""

    def __init__(self, folder: Path, entries: Sequence[SourceEntry], runner: Runner) -> None:
        self._folder = folder
        self._entries = entries
        self._runner = runner
        self._env = {"APT_CONFIG": str(folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}

    def update(self) -> None:
        """Fetch the package lists. Raises ImageBuildFailed: the mirror, a suite or a key (KeyUnknown) is the matter."""
        self._write_state()
        try:
            self._get(["update", "-o", "APT::Update::Error-Mode=any"], within_s=UPDATE_WITHIN_S)
        except CommandFailed as error:
            raise _update_failed(error, self._entries) from error

    def closure(self, names: Sequence[str], *, suite: str | None = None) -> list[Package]:
        """The packages and all that they depend on (not what they recommend); `suite` is preferred."""
        output = self._install(names, suite=suite, more=["--print-uris"], within_s=UPDATE_WITHIN_S)
        files = re.findall(r"^'[^']+' (\S+)_(\S+)_\w+\.deb ", output, re.MULTILINE)
        return [Package(name=name, version=unquote(version)) for name, version in files]

    def download_closure(self, names: Sequence[str], *, suite: str | None = None) -> list[Path]:
        """The .deb files of `closure`."""
        self._install(names, suite=suite, more=["--download-only"], within_s=DOWNLOAD_WITHIN_S)
        return sorted((self._folder / "archives").glob("*.deb"))

    def download(self, packages: Iterable[Package]) -> list[Path]:
        """Only these, without what they depend on."""
        folder = self._folder / "single"
        folder.mkdir(exist_ok=True)
        wanted = [f"{package.name}={package.version}" for package in packages]
        # `download` writes to the working directory, which is the service's: a shell of its own changes it.
        self._runner.run(
            ["sh", "-c", 'cd "$1" && shift && exec apt-get download "$@"', "sh", str(folder), *wanted],
            within_s=DOWNLOAD_WITHIN_S,
            env=self._env,
        )
        return sorted(folder.glob("*.deb"))

    def settings_file(self) -> Path:
        """The host's ways to the mirror, as an apt.conf without our folders: for a build inside a chroot."""
        return self._folder / "mirror.conf"

    def _write_state(self) -> None:
        for name in ("lists/partial", "archives/partial", "etc", "parts"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        (self._folder / "sources.list").write_text("".join(entry.line() + "\n" for entry in self._entries))
        mirror = "".join(
            line + "\n"
            for line in self._runner.run(["apt-config", "dump"], within_s=60).splitlines()
            if _CARRIED.match(line)
        )
        self.settings_file().write_text(mirror)
        (self._folder / "apt.conf").write_text(mirror + self._own_settings())

    def _own_settings(self) -> str:
        here = self._folder
        return "".join(
            f'{key} "{value}";\n'
            for key, value in {
                "Dir::State": here,
                "Dir::State::lists": here / "lists",
                "Dir::State::status": here / "status",
                "Dir::Cache": here,
                "Dir::Cache::archives": here / "archives",
                "Dir::Log": here,
                "Dir::Etc": here / "etc",
                "Dir::Etc::main": "/dev/null",
                "Dir::Etc::parts": here / "parts",
                "Dir::Etc::sourcelist": here / "sources.list",
                "Dir::Etc::sourceparts": here / "parts",
                "Dir::Etc::preferencesparts": here / "parts",
                "Dir::Etc::trustedparts": here / "parts",
                "APT::Sandbox::User": "root",  # the unprivileged download user cannot write below our cache folder
                "APT::Install-Recommends": "false",
                "APT::Architecture": "amd64",
                "Acquire::Languages": "none",
                "Acquire::Retries": "3",
                "Debug::NoLocking": "true",
                "Dpkg::Use-Pty": "false",
            }.items()
        )

    def _install(self, names: Sequence[str], *, suite: str | None, more: Sequence[str], within_s: float) -> str:
        target = ["--target-release", suite] if suite else []
        try:
            return self._get(["--yes", *more, *target, "install", *names], within_s=within_s)
        except CommandFailed as error:
            missing = re.findall(r"(?:Unable to locate package|has no installation candidate:?) (\S+)", error.output)
            if missing:
                raise ImageBuildFailed(
                    f"The archive has no package {', '.join(missing)}; correct the recipe."
                ) from error
            raise

    def _get(self, arguments: Sequence[str], *, within_s: float) -> str:
        return self._runner.run(["apt-get", "--quiet=2", *arguments], within_s=within_s, env=self._env)


def open_apt(folder: Path, archive: Archive, release: str, runner: Runner) -> tuple[PrivateApt, Archive]:
    """Package lists of one release, and the archive with the keyring that verified them.

    A host may be older than the release and not know its keys yet. Its own release carries a newer keyring package
    as an update, signed with keys that the host knows: then that one is used.
    """
    apt = PrivateApt(folder / "apt", archive.entries(release), runner)
    try:
        apt.update()
        return apt, archive
    except KeyUnknown:
        if release == archive.host_release:
            raise
    older = PrivateApt(folder / "keyring", archive.entries(archive.host_release), runner)
    older.update()
    package = KEYRING_PACKAGES[archive.distribution]
    wanted = [found for found in older.closure([package]) if found.name == package]
    root = unpack(older.download(wanted), folder / "keyring-root", runner)
    newer = archive.with_keyring(root / "usr/share/keyrings" / Path(archive.keyring).name)
    apt = PrivateApt(folder / "apt", newer.entries(release), runner)
    apt.update()
    return apt, newer


def unpack(debs: Iterable[Path], root: Path, runner: Runner) -> Path:
    """Unpack packages over each other into `root`, laid out as distributions are today (/lib is /usr/lib)."""
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        runner.run(["sh", "-euc", _UNPACK, "sh", str(deb), str(root)], within_s=UNPACK_WITHIN_S)
    return root


class KeyUnknown(ImageBuildFailed):
    """The keyring at hand does not have the key that signed a release."""


def _update_failed(error: CommandFailed, entries: Sequence[SourceEntry]) -> ImageBuildFailed:
    suites = ", ".join(entry.suite for entry in entries)
    details = error.details
    if "NO_PUBKEY" in error.output or "not signed" in error.output:
        return KeyUnknown(
            f"The keyring {entries[0].signed_by} has no key for {suites}; update the host's archive keyring package.",
            details=details,
        )
    if "does not have a Release file" in error.output:
        return ImageBuildFailed(
            f"The host's mirror does not serve one of {suites}; choose another release.", details=details
        )
    return ImageBuildFailed(
        f"The package lists of {suites} cannot be fetched from the host's mirror; check with `apt-get update` that the"
        " network and the proxy settings work.",
        details=details,
    )
