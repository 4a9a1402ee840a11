"""Reads where the host gets its packages from, and says where another release of the same distribution is.

Nothing here names a mirror: what the host's administrator configured is what images are built from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from runtimed.images.errors import ImageBuildFailed

RELEASES = {
    "debian": ("bullseye", "bookworm", "trixie", "forky", "sid"),
    "ubuntu": ("focal", "jammy", "noble", "oracular", "plucky", "questing", "resolute"),
}
"""Code names: an entry of the host's sources with one of them is a distribution's archive and not somebody's extra."""

KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
KEYRING_PACKAGES = {"debian": "debian-archive-keyring", "ubuntu": "ubuntu-keyring"}
COMPONENTS = {"debian": ("main",), "ubuntu": ("main", "universe")}
"""Debian's main has all that the recipes name; Ubuntu keeps pandas and ripgrep in universe."""


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """One `deb` line: one address and one suite."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None

    def line(self) -> str:
        option = f'[signed-by="{self.signed_by}"] ' if self.signed_by else ""
        return f"deb {option}{self.uri} {self.suite} {' '.join(self.components)}"


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where one distribution's packages are, whatever the release."""

    distribution: str
    uri: str
    security_uri: str | None
    keyring: str
    host_release: str
    """The release whose entry was found."""

    def entries(self, release: str, *, backports: bool = False) -> list[SourceEntry]:
        """The release, its updates and its security fixes, and its backports if asked for."""
        suites = [(self.uri, release)]
        if release != "sid":
            suites.append((self.uri, f"{release}-updates"))
            if self.security_uri is not None:
                suites.append((self.security_uri, f"{release}-security"))
            if backports:
                suites.append((self.uri, f"{release}-backports"))
        components = COMPONENTS[self.distribution]
        return [
            SourceEntry(uri=uri, suite=suite, components=components, signed_by=self.keyring) for uri, suite in suites
        ]

    def with_keyring(self, keyring: Path) -> Archive:
        return replace(self, keyring=str(keyring))


def host_entries(apt_folder: Path = Path("/etc/apt")) -> list[SourceEntry]:
    """Every enabled binary entry of sources.list and sources.list.d, in apt's order."""
    entries: list[SourceEntry] = []
    single = apt_folder / "sources.list"
    paths = ([single] if single.is_file() else []) + sorted((apt_folder / "sources.list.d").glob("*"))
    for path in paths:
        if path.suffix == ".list":
            entries.extend(_parse_lines(_read(path)))
        elif path.suffix == ".sources":
            entries.extend(_parse_stanzas(_read(path)))
    return entries


def find_archive(
    entries: Iterable[SourceEntry], distribution: str, *, host_release: str | None = None
) -> Archive | None:
    """The distribution's archive among the entries; the entry of `host_release` is preferred."""
    known = RELEASES[distribution]
    mains = [entry for entry in entries if entry.suite in known and "main" in entry.components]
    if not mains:
        return None
    main = next((entry for entry in mains if entry.suite == host_release), mains[0])
    security = next((entry for entry in entries if entry.suite == f"{main.suite}-security"), None)
    keyring = main.signed_by or str(KEYRINGS[distribution])
    return Archive(
        distribution=distribution,
        uri=main.uri,
        security_uri=security.uri if security is not None else None,
        keyring=keyring,
        host_release=main.suite,
    )


def choose_archive(entries: Iterable[SourceEntry], distribution: str, *, host_release: str | None) -> Archive:
    """The archive for a recipe's `distribution`; "auto" takes Ubuntu where the host has it, else Debian."""
    entries = list(entries)
    wanted = ("ubuntu", "debian") if distribution == "auto" else (distribution,)
    for name in wanted:
        if archive := find_archive(entries, name, host_release=host_release):
            return archive
    names = " or ".join(name.capitalize() for name in wanted)
    raise ImageBuildFailed(
        f"The apt sources of this host have no {names} archive; add one to /etc/apt/sources.list.d,"
        " or name another distribution in the recipe."
    )


def host_archive(entries: Iterable[SourceEntry], host_release: str | None) -> Archive:
    """The archive of the host's own release."""
    own = next((name for name, releases in RELEASES.items() if host_release in releases), "auto")
    return choose_archive(entries, own, host_release=host_release)


def host_release_name(os_release: Path = Path("/etc/os-release")) -> str | None:
    """VERSION_CODENAME of the host."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', text, re.MULTILINE)
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ImageBuildFailed(f"The apt source {path} cannot be read: {error.strerror}.") from error


def _parse_lines(text: str) -> list[SourceEntry]:
    entries = []
    for line in text.splitlines():
        found = re.match(
            r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<parts>[^#]*)", line
        )
        if found is None:
            continue
        options = dict(item.partition("=")[::2] for item in (found["options"] or "").split())
        entries.append(
            SourceEntry(
                uri=found["uri"],
                suite=found["suite"],
                components=tuple(found["parts"].split()),
                signed_by=_only_path(options.get("signed-by")),
            )
        )
    return entries


def _parse_stanzas(text: str) -> list[SourceEntry]:
    entries: list[SourceEntry] = []
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", without_comments):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
            else:
                key, _, value = line.partition(":")
                name = key.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        entries.extend(
            SourceEntry(
                uri=uri,
                suite=suite,
                components=tuple(fields.get("components", "").split()),
                signed_by=_only_path(fields.get("signed-by")),
            )
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        )
    return entries


def _only_path(signed_by: str | None) -> str | None:
    """A keyring's path; a fingerprint or an inline key does not carry over to other releases."""
    value = (signed_by or "").strip().strip('"')
    return value if value.startswith("/") and "\n" not in value and "," not in value else None
