"""Packages are fetched with a state of our own, and what goes wrong is said in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from runtimed.images import qemu
from runtimed.images.apt_sources import choose_archive
from runtimed.images.errors import CommandFailed, ImageBuildFailed
from runtimed.images.private_apt import KeyUnknown, PrivateApt, open_apt
from runtimed.images.qemu import OLDEST, find_host_qemu, parse_version

from .distribution import ENTRIES, FakeDistribution

ARCHIVE = choose_archive(ENTRIES, "debian", host_release="bookworm")


class Refusing(FakeDistribution):
    """Says no to `apt-get VERB` with this output, as long as `only_if` accepts the sources."""

    def __init__(self, verb: str, output: str, *, only_if: Callable[[str], bool] = lambda sources: True) -> None:
        super().__init__()
        self._verb, self._output, self._only_if = verb, output, only_if

    def run(
        self,
        argv: Sequence[str],
        *,
        within_s: float,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        if argv[0] == "apt-get" and self._verb in argv and env is not None:
            sources = (Path(env["APT_CONFIG"]).parent / "sources.list").read_text()
            if self._only_if(sources):
                raise CommandFailed(argv, code=100, output=self._output)
        return super().run(argv, within_s=within_s, env=env, on_line=on_line)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("E: The repository '... nope Release' does not have a Release file.", "does not serve one of"),
        ("W: GPG error: NO_PUBKEY 0E98404D386FA1D9", "has no key for"),
        ("E: Failed to fetch ... Could not resolve 'mirror'", "check with `apt-get update` that the network"),
    ],
)
def test_lists_that_cannot_be_fetched_say_what_is_the_matter(tmp_path: Path, output: str, sentence: str) -> None:
    apt = PrivateApt(tmp_path, ARCHIVE.entries("bookworm"), Refusing("update", output))

    with pytest.raises(ImageBuildFailed, match=sentence):
        apt.update()


def test_an_unknown_package_is_named(tmp_path: Path) -> None:
    apt = PrivateApt(tmp_path, ARCHIVE.entries("trixie"), Refusing("install", "E: Unable to locate package nonsense"))
    apt.update()

    with pytest.raises(ImageBuildFailed, match="no package nonsense"):
        apt.closure(["nonsense"])


def test_the_hosts_way_to_the_mirror_is_kept_and_its_hooks_are_not(tmp_path: Path) -> None:
    apt = PrivateApt(tmp_path, ARCHIVE.entries("trixie"), FakeDistribution())
    apt.update()

    assert apt.settings_file().read_text() == 'Acquire::http::Proxy "http://proxy.example:3128";\n'
    assert "Post-Invoke" not in (tmp_path / "apt.conf").read_text()


def test_a_release_that_is_newer_than_the_hosts_keys_is_verified_with_the_newest_keyring_package(
    tmp_path: Path,
) -> None:
    def with_old_keys(sources: str) -> bool:
        return "trixie" in sources and "keyring-root" not in sources

    runner = Refusing("update", "NO_PUBKEY", only_if=with_old_keys)
    _, archive = open_apt(tmp_path, ARCHIVE, "trixie", runner)

    assert archive.keyring == str(tmp_path / "keyring-root/usr/share/keyrings/keys.gpg")


def test_the_hosts_own_release_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyUnknown):
        open_apt(tmp_path, ARCHIVE, "bookworm", Refusing("update", "NO_PUBKEY"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("QEMU emulator version 7.2.15 (Debian 1:7.2+dfsg-7+deb12u13)", (7, 2, 15)),
        ("1:10.0.2+ds-2+deb13u1~bpo12+1", (10, 0, 2)),
        ("1:8.2.2+ds-0ubuntu1", (8, 2, 2)),
        ("1:9.0+ds-1", (9, 0, 0)),
        ("nothing", (0, 0, 0)),
    ],
)
def test_versions_are_read_from_what_programs_and_packages_say(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


class HostWithQemu(FakeDistribution):
    def __init__(self, version: str, machines: str) -> None:
        super().__init__()
        self._version, self._machines = version, machines

    def _act(self, words: list[str], env: Mapping[str, str]) -> str:
        return self._machines if words[-1] == "help" else f"QEMU emulator version {self._version}\n"


@pytest.mark.parametrize(
    ("version", "machines", "is_taken"),
    [
        ("8.2.0", "microvm  microvm (i386)\n", True),
        ("10.1.0", "microvm  microvm (i386)\n", True),
        ("8.1.9", "microvm  microvm (i386)\n", False),
        ("10.1.0", "pc  Standard PC\n", False),
    ],
)
def test_the_hosts_qemu_is_taken_if_it_is_new_enough_and_has_microvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, machines: str, is_taken: bool
) -> None:
    for name in ("qemu-system-x86_64", "qemu-img"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = find_host_qemu(HostWithQemu(version, machines))

    assert (found is not None) is is_taken
    if found is not None:
        assert found.root is None
        assert found.version >= OLDEST


class Offering(FakeDistribution):
    """An archive with one QEMU in the release and another in its backports."""

    def __init__(self, release: str, backports: str) -> None:
        super().__init__()
        self._offers = {False: release, True: backports}

    def _apt_get(self, words: list[str], state: Path) -> str:
        if "--print-uris" not in words:
            return super()._apt_get(words, state)
        version = self._offers["bookworm-backports" in words]
        return f"'http://mirror.example/q.deb' qemu-system-x86_1%3a{version}_amd64.deb 1 SHA256:0\n"


def downloads(runner: FakeDistribution) -> list[list[str]]:
    return [call for call in runner.calls if "--download-only" in call]


@pytest.mark.parametrize(("release", "is_backported"), [("7.2+dfsg-7", True), ("9.2.0+ds-1", False)])
def test_qemu_is_taken_from_the_backports_only_where_the_releases_own_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, is_backported: bool
) -> None:
    monkeypatch.setattr(qemu, "find_host_qemu", lambda runner: None)
    runner = Offering(release, "10.0.2+ds-2~bpo12+1")

    qemu.ensure_qemu(tmp_path, runner=runner, sources=lambda: ENTRIES)

    assert ["bookworm-backports" in call for call in downloads(runner)] == [is_backported]


def test_a_distribution_without_a_new_enough_qemu_says_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "find_host_qemu", lambda runner: None)
    runner = Offering("7.2+dfsg-7", "8.1.2+ds-1")

    with pytest.raises(ImageBuildFailed, match=r"is 8\.1\.2 and 8\.2\.0 is needed"):
        qemu.ensure_qemu(tmp_path, runner=runner, sources=lambda: ENTRIES)
    assert downloads(runner) == []
