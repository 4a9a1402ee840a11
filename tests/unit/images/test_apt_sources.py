"""Where packages come from is read from the host's own sources, whichever way they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimed.images.apt_sources import choose_archive, host_archive, host_entries, host_release_name
from runtimed.images.errors import ImageBuildFailed

STANZAS = """\
Types: deb
# a comment inside
URIs: http://one.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://one.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: trixie
Components: main
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_both_ways_of_writing_sources_are_read(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "# deb http://no.example/debian sid main\n"
        "deb [arch=amd64 signed-by=/keys/one.gpg] http://two.example/debian trixie main non-free # why\n"
        "deb-src http://two.example/debian trixie main\n"
    )
    (apt / "sources.list.d/debian.sources").write_text(STANZAS)
    (apt / "sources.list.d/notes.txt").write_text("deb http://no.example/debian sid main\n")

    assert [(entry.uri, entry.suite, entry.components, entry.signed_by) for entry in host_entries(apt)] == [
        ("http://two.example/debian", "trixie", ("main", "non-free"), "/keys/one.gpg"),
        *(
            ("http://one.example/debian", suite, ("main", "contrib"), "/usr/share/keyrings/debian-archive-keyring.gpg")
            for suite in ("bookworm", "bookworm-updates")
        ),
        ("http://one.example/debian-security", "bookworm-security", ("main",), None),
    ]


def test_a_newer_release_is_looked_for_at_the_hosts_own_mirror(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text(STANZAS)

    archive = choose_archive(host_entries(apt), "auto", host_release="bookworm")
    lines = [entry.line() for entry in archive.entries("trixie")]

    option = '[signed-by="/usr/share/keyrings/debian-archive-keyring.gpg"]'
    assert lines == [
        f"deb {option} http://one.example/debian trixie main",
        f"deb {option} http://one.example/debian trixie-updates main",
        f"deb {option} http://one.example/debian-security trixie-security main",
    ]


def test_a_strangers_repository_is_not_taken_for_the_distribution(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://vendor.example/apt stable main\n")

    with pytest.raises(ImageBuildFailed, match=r"no Ubuntu or Debian archive; add one to /etc/apt"):
        choose_archive(host_entries(apt), "auto", host_release="bookworm")


UBUNTU = "deb http://three.example/ubuntu noble main universe\ndeb http://three.example/ubuntu noble-security main\n"


def test_ubuntu_is_preferred_where_the_host_has_it(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://one.example/debian bookworm main\n" + UBUNTU)
    entries = host_entries(apt)

    archive = choose_archive(entries, "auto", host_release="bookworm")

    assert (archive.distribution, archive.uri) == ("ubuntu", "http://three.example/ubuntu")
    assert archive.keyring == "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
    assert [entry.components for entry in archive.entries("noble")] == [("main", "universe")] * 3
    assert choose_archive(entries, "debian", host_release="bookworm").distribution == "debian"


def test_qemu_comes_from_the_hosts_own_distribution(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://one.example/debian bookworm main\n" + UBUNTU)

    assert host_archive(host_entries(apt), "bookworm").distribution == "debian"


def test_the_hosts_release_is_read_from_os_release(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME="Debian"\nVERSION_CODENAME=bookworm\n')

    assert host_release_name(tmp_path / "os-release") == "bookworm"
    assert host_release_name(tmp_path / "none") is None
