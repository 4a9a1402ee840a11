"""Folders as archives: what reaches outside is refused before anything is written."""

import io
import tarfile
from pathlib import Path

import pytest

from withruntime._archives import pack, unpack
from withruntime._errors import RuntimeError


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    found.size = 1 if kind == tarfile.REGTYPE else 0
    return found


def tar_gz(*members: tarfile.TarInfo) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for one in members:
            archive.addfile(one, io.BytesIO(b"x") if one.isreg() else None)
    packed.seek(0)
    return packed


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("/etc/out")],
        [member("a/../../out")],
        [member("l", tarfile.SYMTYPE, "/etc")],
        [member("l", tarfile.SYMTYPE, "../out")],
        [member("d/l", tarfile.SYMTYPE, "../../out")],
        [member("l", tarfile.SYMTYPE, "d"), member("l/x")],
        [member("l", tarfile.SYMTYPE, "."), member("l/l2", tarfile.SYMTYPE, "..")],
        [member("h", tarfile.LNKTYPE, "../../etc/passwd")],
        [member("h", tarfile.LNKTYPE, "not-before"), member("not-before")],
    ],
    ids=lambda members: " ".join(f"{one.name}>{one.linkname}" for one in members),
)
def test_an_archive_that_reaches_outside_is_refused_whole(members: list[tarfile.TarInfo], tmp_path: Path):
    with pytest.raises(RuntimeError) as refused:
        unpack(tar_gz(member("good"), *members), tmp_path / "in")

    assert refused.value.code == "unsafe_archive"
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_is_there_already_is_not_followed(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "d").symlink_to(tmp_path / "outside")
    with pytest.raises(RuntimeError) as refused:
        unpack(tar_gz(member("d/x")), tmp_path / "in")

    assert refused.value.code == "unsafe_archive"
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_that_is_there_as_a_link_is_replaced_and_not_written_through(tmp_path: Path):
    (tmp_path / "outside").write_text("safe")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").symlink_to(tmp_path / "outside")
    unpack(tar_gz(member("x")), tmp_path / "in")

    assert (tmp_path / "outside").read_text() == "safe"
    assert (tmp_path / "in" / "x").read_text() == "x"


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_archive_that_is_cut_short_writes_nothing(cut: int, tmp_path: Path):
    whole = tar_gz(*(member(f"file-{number}") for number in range(50))).getvalue()
    with pytest.raises(RuntimeError) as refused:
        unpack(io.BytesIO(whole[: len(whole) * cut // 100]), tmp_path / "in")

    assert refused.value.code == "download_incomplete"
    assert not (tmp_path / "in").exists()


def test_an_archive_that_ends_between_two_members_is_cut_short_too(tmp_path: Path):
    import gzip

    plain = gzip.decompress(tar_gz(member("a"), member("b")).getvalue())
    with pytest.raises(RuntimeError) as refused:
        unpack(io.BytesIO(gzip.compress(plain[:1024])), tmp_path / "in")

    assert refused.value.code == "download_incomplete"


def test_a_folder_survives_the_way_there_and_back(tmp_path: Path):
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "dé \n'x'").mkdir()
    (source / "dé \n'x'" / ("n" * 200)).write_bytes(b"\0" * 5000)
    (source / "run").write_bytes(b"")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("run")
    (source / "dangling").symlink_to("nowhere")
    packed = io.BytesIO()
    pack(source, packed)
    packed.seek(0)
    unpack(packed, tmp_path / "copy")

    def shape(folder: Path) -> dict[str, object]:
        return {
            str(path.relative_to(folder)): path.readlink()
            if path.is_symlink()
            else (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
            for path in folder.rglob("*")
        }

    assert shape(tmp_path / "copy") == shape(source)
