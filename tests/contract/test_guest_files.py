"""What every guest promises about files: rows FI of the case list that concern the inside."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from runtimed.core import errors
from runtimed.core.files import FileEntry, WriteOptions
from runtimed.node.guest import GuestClient

from .conftest import GuestMachine, Run

MIB = 1 << 20


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def write(guest: GuestClient, path: str, data: bytes, **options: object) -> FileEntry:
    return await guest.files.write(path, pieces(data), WriteOptions(**{"user": "sandbox", **options}))  # type: ignore[arg-type]


async def read(guest: GuestClient, path: str) -> bytes:
    async with guest.files.read(path, user="sandbox") as reading:
        data = b"".join([chunk async for chunk in reading.chunks()])
        assert len(data) == reading.head.size
        assert reading.head.sha256 in (None, hashlib.sha256(data).hexdigest())
        return data


async def names(guest: GuestClient, path: str = "/workspace", *, depth: int = 1, **options: object) -> list[str]:
    asked = {"glob": None, "hidden": True, "limit": 1000, "user": "sandbox", **options}
    return [e.path.removeprefix(path + "/") for e in await guest.files.list(path, depth=depth, **asked)]  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40_000], ids=["empty", "one", "ten megabytes"])
async def test_what_is_written_is_read(guest: GuestClient, data: bytes) -> None:
    """FI-01."""
    entry = await write(guest, "/workspace/new/folders/file", data)

    assert (entry.size, entry.type, entry.mode) == (len(data), "file", 0o644)
    assert await read(guest, "/workspace/new/folders/file") == data


NAMES = ['日本 é "q" #%?.txt', "-rf", "line\nbreak", " ", "tab\t'", os.fsdecode(b"\xff\xfe bytes")]


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_that_the_system_takes_works_everywhere(guest: GuestClient, run: Run, name: str) -> None:
    """FI-03."""
    path = f"/workspace/names/{name}"
    await write(guest, path, b"content")

    found = await guest.files.stat(path, user="sandbox")
    packed = await archive(guest, "/workspace/names")
    listed = await run("ls", "-A", "--zero", "/workspace/names")

    assert found is not None
    assert (found.name, found.path) == (name, path)
    assert await read(guest, path) == b"content"
    assert await names(guest, "/workspace/names") == [name]
    assert packed.getnames() == [name]
    assert listed.stdout == os.fsencode(name) + b"\0"


async def test_a_written_file_belongs_to_the_sandbox_user_and_keeps_its_mode(
    machine: GuestMachine, guest: GuestClient, run: Run
) -> None:
    """FI-07."""
    await write(guest, "/workspace/tool", b"#!/bin/sh\necho one\n", mode=0o755)
    await write(guest, "/workspace/tool", b"#!/bin/sh\necho two\n")

    seen = await run("stat -c '%a %U' tool; ./tool; id -un")

    assert seen.stdout.split(b"\n")[0].split()[0] == b"755"
    assert seen.stdout.split(b"\n")[1] == b"two"
    assert seen.stdout.split(b"\n")[0].split()[1] == seen.stdout.split(b"\n")[2]


async def test_root_writes_as_root_and_leaves_a_users_file_to_the_user(guest: GuestClient) -> None:
    await write(guest, "/workspace/mine", b"1")
    mine = await write(guest, "/workspace/mine", b"22", user="root")
    fresh = await write(guest, "/root/roots", b"1", user="root")

    before = await guest.files.stat("/workspace", user="sandbox")
    assert before is not None
    assert (mine.uid, fresh.uid) == (before.uid, 0)


async def test_the_sandbox_user_has_no_more_rights_than_in_a_shell(guest: GuestClient, run: Run) -> None:
    if (await run("id -u")).stdout == b"0\n":
        pytest.skip("without root on the host the fake has one user only")
    await write(guest, "/root/secret", b"s", user="root", mode=0o600)
    await write(guest, "/workspace/readonly", b"old", mode=0o444)
    await guest.files.mkdir("/srv/theirs/inside", parents=True, user="root")

    for refused in (
        read(guest, "/root/secret"),
        write(guest, "/etc/mine", b"x"),
        write(guest, "/etc/passwd", b"x"),
        write(guest, "/workspace/readonly", b"new"),
        names(guest, "/root"),
        guest.files.remove("/etc/passwd", recursive=False, user="sandbox"),
        guest.files.remove("/srv/theirs", recursive=True, user="sandbox"),
        guest.files.chmod("/etc/passwd", mode=0o777, user="sandbox"),
        guest.files.mkdir("/etc/x", parents=True, user="sandbox"),
        guest.files.rename("/etc/passwd", "/etc/p", overwrite=True, user="sandbox"),
    ):
        with pytest.raises(errors.PermissionDenied):
            await refused

    assert await read(guest, "/workspace/readonly") == b"old"


async def test_a_write_that_does_not_come_whole_leaves_the_old_file(guest: GuestClient) -> None:
    await write(guest, "/workspace/kept", b"old")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new"
        raise ConnectionError("the uploader went away")

    with pytest.raises(ConnectionError):
        await guest.files.write("/workspace/kept", breaks(), WriteOptions(user="sandbox"))
    with pytest.raises(errors.UploadIncomplete):
        await write(guest, "/workspace/kept", b"short", size=10)

    assert await read(guest, "/workspace/kept") == b"old"
    assert await names(guest) == ["kept"]


async def test_writing_to_a_link_writes_to_what_it_points_at(guest: GuestClient, run: Run) -> None:
    await run("mkdir d; ln -s d/target link; ln -s loop loop")

    await write(guest, "/workspace/link", b"through")

    link = await guest.files.stat("/workspace/link", user="sandbox")
    assert link is not None
    assert (link.type, link.symlink_target) == ("symlink", "d/target")
    assert await read(guest, "/workspace/d/target") == b"through"
    with pytest.raises(errors.InvalidRequest, match="symbolic links"):
        await write(guest, "/workspace/loop", b"x")


async def test_what_is_no_ordinary_file_is_refused_and_never_waited_for(guest: GuestClient, run: Run) -> None:
    await run("mkdir d; mkfifo fifo; touch f")

    for path in ("/workspace/fifo", "/dev/zero", "/dev/null"):
        with pytest.raises(errors.InvalidRequest, match="ordinary"):
            await read(guest, path)
    with pytest.raises(errors.InvalidRequest, match="ordinary"):
        await write(guest, "/workspace/fifo", b"x")
    for asked in (read(guest, "/workspace/d"), write(guest, "/workspace/d", b"x")):
        with pytest.raises(errors.IsADirectory, match="/workspace/d"):
            await asked
    for path in ("/workspace/f/x", "/workspace/f/x/y"):
        with pytest.raises(errors.NotADirectory):
            await write(guest, path, b"x")
    with pytest.raises(errors.FileMissing, match="/workspace/none"):
        await read(guest, "/workspace/none")


async def test_files_that_do_not_know_their_size_are_read_whole(guest: GuestClient) -> None:
    assert b"Tgid:" in await read(guest, "/proc/self/status")


async def test_a_large_sparse_file_is_read_as_a_stream(guest: GuestClient, run: Run) -> None:
    """FI-09: nothing holds it whole, and leaving early is fine."""
    await run("truncate -s 2G sparse")

    async with guest.files.read("/workspace/sparse", user="sandbox") as reading:
        assert (reading.head.size, reading.head.sha256) == (2 << 30, None)
        first = await anext(reading.chunks())

    assert set(first) == {0}
    await guest.ping()


async def test_durable_writes_answer_after_the_disk_has_them(guest: GuestClient) -> None:
    await write(guest, "/workspace/durable", b"kept", durable=True)

    assert await read(guest, "/workspace/durable") == b"kept"


async def test_chunks_may_come_in_any_order_and_twice(guest: GuestClient) -> None:
    data = random.Random(3).randbytes(3 * MIB + 77)
    upload = str(uuid.uuid4())
    await guest.files.begin_upload(upload, "/workspace/up/big", size=len(data), mode=0o600, user="sandbox")
    for offset in (2 * MIB, 0, 3 * MIB, 0, MIB):
        await guest.files.put_chunk(upload, offset=offset, data=data[offset : offset + MIB])

    entry = await guest.files.commit_upload(upload, sha256=hashlib.sha256(data).hexdigest())

    assert (entry.size, entry.mode) == (len(data), 0o600)
    assert await read(guest, "/workspace/up/big") == data
    assert await names(guest, "/workspace/up") == ["big"]


async def test_an_upload_with_a_hole_or_another_digest_is_not_committed(guest: GuestClient) -> None:
    await write(guest, "/workspace/big", b"old")
    upload = str(uuid.uuid4())
    await guest.files.begin_upload(upload, "/workspace/big", size=10, mode=None, user="sandbox")
    await guest.files.put_chunk(upload, offset=5, data=b"world")

    with pytest.raises(errors.UploadIncomplete):
        await guest.files.commit_upload(upload, sha256=None)
    await guest.files.put_chunk(upload, offset=0, data=b"hello")
    with pytest.raises(errors.UploadIncomplete):
        await guest.files.commit_upload(upload, sha256="0" * 64)
    with pytest.raises(errors.InvalidRequest):
        await guest.files.put_chunk(upload, offset=8, data=b"past the end")
    assert await read(guest, "/workspace/big") == b"old"

    await guest.files.abort_upload(upload)
    await guest.files.abort_upload(upload)
    assert await names(guest) == ["big"]
    with pytest.raises(errors.UploadNotFound):
        await guest.files.put_chunk(upload, offset=0, data=b"x")


async def test_an_upload_goes_on_over_a_new_channel(machine: GuestMachine, guest: GuestClient) -> None:
    upload = str(uuid.uuid4())
    await guest.files.begin_upload(upload, "/workspace/over", size=6, mode=None, user="sandbox")
    await guest.files.put_chunk(upload, offset=0, data=b"one")
    await guest.channel.close()

    again = await machine.connect()
    await again.files.put_chunk(upload, offset=3, data=b"two")
    await again.files.commit_upload(upload, sha256=None)

    assert await read(again, "/workspace/over") == b"onetwo"


async def test_a_listing_goes_as_deep_as_asked_and_is_bounded(guest: GuestClient, run: Run) -> None:
    await run("mkdir -p a/b/c .hid; touch a/1.py a/b/2.py a/b/c/3.py top.py .hid/4.py; ln -s / root")

    assert await names(guest, hidden=False) == ["a", "root", "top.py"]
    assert await names(guest, depth=2, hidden=False) == ["a", "a/1.py", "a/b", "root", "top.py"]
    assert await names(guest, depth=9, limit=3) == [".hid", ".hid/4.py", "a"]
    assert await names(guest, glob="**/*.py", hidden=False) == ["a/1.py", "a/b/2.py", "a/b/c/3.py", "top.py"]
    assert await names(guest, glob="a/*/*.py") == ["a/b/2.py"]
    assert await names(guest, glob="*.py") == ["top.py"]
    for path, error in (("/workspace/none", errors.FileMissing), ("/workspace/top.py", errors.NotADirectory)):
        with pytest.raises(error):
            await names(guest, path)


async def test_a_listing_of_thousands_is_whole(guest: GuestClient, run: Run) -> None:
    await run("seq -f 'file-%g' 3000 | xargs touch")

    assert len(await names(guest, limit=5000)) == 3000


async def test_stat_tells_kinds_apart_and_what_is_not_there(guest: GuestClient, run: Run) -> None:
    await run("mkdir d; touch -d @1000000 f; mkfifo p; ln -s nowhere l")

    kinds = {name: await guest.files.stat(f"/workspace/{name}", user="sandbox") for name in "dfplx"}

    assert {name: entry and entry.type for name, entry in kinds.items()} == {
        "d": "directory", "f": "file", "p": "other", "l": "symlink", "x": None,
    }  # fmt: skip
    assert kinds["f"] is not None
    assert kinds["f"].modified_at_s == 1_000_000
    assert await guest.files.stat("/workspace/f/below", user="sandbox") is None


async def test_folders_are_made_with_and_without_parents(guest: GuestClient) -> None:
    await guest.files.mkdir("/workspace/a/b", parents=True, user="sandbox")
    await guest.files.mkdir("/workspace/a/b", parents=True, user="sandbox")

    with pytest.raises(errors.AlreadyExists):
        await guest.files.mkdir("/workspace/a/b", parents=False, user="sandbox")
    with pytest.raises(errors.FileMissing):
        await guest.files.mkdir("/workspace/x/y", parents=False, user="sandbox")


async def test_removing_says_whether_there_was_anything(guest: GuestClient, run: Run) -> None:
    await run("mkdir -p full/deep empty; touch full/deep/f file; ln -s full link")
    remove = guest.files.remove

    with pytest.raises(errors.DirectoryNotEmpty):
        await remove("/workspace/full", recursive=False, user="sandbox")
    assert await remove("/workspace/link", recursive=True, user="sandbox")
    assert await remove("/workspace/empty", recursive=False, user="sandbox")
    assert await remove("/workspace/file", recursive=False, user="sandbox")
    assert await names(guest, depth=3) == ["full", "full/deep", "full/deep/f"]
    assert await remove("/workspace/full", recursive=True, user="sandbox")
    assert not await remove("/workspace/full", recursive=True, user="sandbox")


@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "//", "/tmp/.."])
async def test_the_root_and_mount_points_stay(guest: GuestClient, path: str) -> None:
    """FI-15."""
    with pytest.raises(errors.Conflict, match="mount point"):
        await guest.files.remove(path, recursive=True, user="root")


async def test_renaming_replaces_only_when_asked(guest: GuestClient) -> None:
    await write(guest, "/workspace/a", b"a")
    await write(guest, "/workspace/b", b"b")
    rename = guest.files.rename

    with pytest.raises(errors.AlreadyExists, match="/workspace/b"):
        await rename("/workspace/a", "/workspace/b", overwrite=False, user="sandbox")
    await rename("/workspace/a", "/workspace/b", overwrite=True, user="sandbox")
    with pytest.raises(errors.FileMissing, match="/workspace/a"):
        await rename("/workspace/a", "/workspace/c", overwrite=True, user="sandbox")
    await rename("/workspace/b", "/workspace/c", overwrite=False, user="sandbox")

    assert await read(guest, "/workspace/c") == b"a"


async def test_chmod_changes_the_mode(guest: GuestClient) -> None:
    await write(guest, "/workspace/f", b"")

    await guest.files.chmod("/workspace/f", mode=0o640, user="sandbox")

    found = await guest.files.stat("/workspace/f", user="sandbox")
    assert found is not None
    assert found.mode == 0o640


async def test_a_path_that_is_none_is_refused_by_name(guest: GuestClient) -> None:
    for path in ("relative", "", "/nul\0byte"):
        with pytest.raises(errors.InvalidRequest, match="path"):
            await guest.files.stat(path, user="sandbox")


async def archive(guest: GuestClient, path: str, **options: object) -> tarfile.TarFile:
    asked = {"gzip": True, "exclude": (), "user": "sandbox", **options}
    async with guest.files.read_archive(path, **asked) as reading:  # type: ignore[arg-type]
        data = b"".join([chunk async for chunk in reading.chunks()])
    if asked["gzip"]:
        assert data[4:8] == b"\0\0\0\0"  # No time in the header: the same folder is the same archive.
        data = gzip.decompress(data)
    assert data.endswith(bytes(1024))
    return tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape")


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_folder_travels_out_and_in_as_one_tar(guest: GuestClient, run: Run, compressed: bool) -> None:
    """FI-13 among others: contents with NUL bytes, links of both kinds, modes, empty folders."""
    long_name = "n" * 200
    script = f"""mkdir -p src/a/b src/empty; printf 'x\\0y\\0' > src/a/nul; ln -s ../a/nul src/a/soft
        ln src/a/nul src/a/hard; touch src/a/b/{long_name}; head -c 3000000 /dev/urandom > src/big
        chmod 750 src/a/nul; chmod 555 src/a/b; mkfifo src/pipe"""
    await run(script)
    packed = await archive(guest, "/workspace/src", gzip=compressed)
    assert sorted(packed.getnames()) == sorted(
        ["a", "a/b", f"a/b/{long_name}", "a/hard", "a/nul", "a/soft", "big", "empty"]
    )

    async with guest.files.read_archive("/workspace/src", gzip=compressed, exclude=(), user="sandbox") as reading:
        data = b"".join([chunk async for chunk in reading.chunks()])
    await guest.files.write_archive("/workspace/into/there", pieces(data), user="sandbox")

    same = await run(
        "rm src/pipe; diff -r src into/there && stat -c '%a %h %U' into/there/a/nul into/there/a/b; id -un"
    )
    user = same.stdout.split()[-1]
    assert same.stdout.split() == [b"750", b"2", user, b"755", b"2", user, user], same


async def test_an_archive_leaves_out_what_was_excluded(guest: GuestClient, run: Run) -> None:
    await run(
        "mkdir -p p/.git p/src/__pycache__ p/build/x; touch p/.git/c p/src/a.py p/src/__pycache__/a.pyc p/build/x/y"
    )

    packed = await archive(guest, "/workspace/p", exclude=(".git", "__pycache__", "build/x"))

    assert packed.getnames() == ["build", "src", "src/a.py"]


async def test_unpacking_merges_and_replaces(guest: GuestClient, run: Run) -> None:
    await run("mkdir -p t/keep; echo old > t/file; echo safe > outside; ln -s ../outside t/link")
    data = tar_of(
        lambda tar: (add(tar, "file", b"new"), add(tar, "link", b"no longer a link"), add(tar, "sub/x", b"x"))
    )

    await guest.files.write_archive("/workspace/t", pieces(data), user="sandbox")

    assert await read(guest, "/workspace/t/file") == b"new"
    assert await read(guest, "/workspace/t/link") == b"no longer a link"
    assert await read(guest, "/workspace/outside") == b"safe\n"
    assert await names(guest, "/workspace/t", depth=2) == ["file", "keep", "link", "sub", "sub/x"]


def tar_of(fill: Callable[[tarfile.TarFile], object]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        fill(tar)
    return out.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    tar.addfile(info, io.BytesIO(data))


def through_link(tar: tarfile.TarFile) -> None:
    add(tar, "ok", b"")
    add(tar, "d/l", kind=tarfile.SYMTYPE, link="../inside")
    add(tar, "inside", kind=tarfile.SYMTYPE, link="../../etc")
    add(tar, "d/l/evil", b"x")


HOSTILE: dict[str, Callable[[tarfile.TarFile], object]] = {
    "absolute": lambda tar: add(tar, "/tmp/evil", b"x"),
    "dots": lambda tar: add(tar, "a/../../evil", b"x"),
    "absolute link": lambda tar: add(tar, "l", kind=tarfile.SYMTYPE, link="/etc"),
    "link outside": lambda tar: add(tar, "a/l", kind=tarfile.SYMTYPE, link="../../x"),
    "through a link": through_link,
    "behind an old link": lambda tar: add(tar, "old/evil", b"x"),
    "hard link outside": lambda tar: add(tar, "l", kind=tarfile.LNKTYPE, link="/etc/passwd"),
    "hard link to what is not in it": lambda tar: add(tar, "l", kind=tarfile.LNKTYPE, link="was-there"),
    "device": lambda tar: add(tar, "dev", kind=tarfile.CHRTYPE),
    "pipe": lambda tar: add(tar, "fifo", kind=tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_archive_that_reaches_outside_is_refused(guest: GuestClient, run: Run, kind: str) -> None:
    await run("mkdir box elsewhere; ln -s ../elsewhere box/old; echo 1 > box/was-there")

    with pytest.raises(errors.UnsafeArchive):
        await guest.files.write_archive("/workspace/box", pieces(tar_of(HOSTILE[kind])), user="sandbox")

    assert await names(guest, "/workspace/elsewhere") == []
    assert await names(guest) == ["box", "elsewhere"]


async def test_what_is_no_archive_is_refused(guest: GuestClient) -> None:
    for data in (b"no tar at all" * 1000, tar_of(lambda tar: add(tar, "f", b"x" * 100_000))[:-40]):
        with pytest.raises(errors.InvalidRequest, match="archive"):
            await guest.files.write_archive("/workspace/t", pieces(data), user="sandbox")


async def test_an_archive_with_much_after_its_end_is_answered(guest: GuestClient) -> None:
    plain = gzip.decompress(tar_of(lambda tar: add(tar, "f", b"x")))

    await guest.files.write_archive("/workspace/t", pieces(plain + bytes(8 * MIB)), user="sandbox")

    assert await read(guest, "/workspace/t/f") == b"x"


async def test_archives_and_files_travel_side_by_side(guest: GuestClient) -> None:
    import asyncio

    data = random.Random(4).randbytes(2 * MIB)

    async def one(number: int) -> bytes:
        await write(guest, f"/workspace/many/{number}", data)
        return await read(guest, f"/workspace/many/{number}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(8)]

    assert [task.result() == data for task in tasks] == [True] * 8


def long_header(kind: bytes) -> bytes:
    """A header that announces 2 GiB of itself."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 2 << 30
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(4 * MIB)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
async def test_an_archive_cannot_fill_the_agents_memory_with_headers(guest: GuestClient, kind: bytes) -> None:
    with pytest.raises(errors.InvalidRequest, match="archive"):
        await guest.files.write_archive("/workspace/t", pieces(long_header(kind), MIB), user="sandbox")
