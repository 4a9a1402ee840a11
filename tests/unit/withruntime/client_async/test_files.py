"""Files, uploads and folders, against a scripted service."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from scripted_server import RESET, Reply, Request, ScriptedServer, answer, refusal

from withruntime import AsyncSandbox, InvalidRequestError, NotFoundError, RuntimeError

CONTENT = "/v1/sandboxes/a/files/content"
STAT = "/v1/sandboxes/a/files/stat"
UPLOADS = "/v1/sandboxes/a/uploads"
MIB = 1 << 20


def content(data: bytes, promised: bytes | None = None, **more: int) -> Reply:
    whole = data if promised is None else promised
    headers = {"X-Content-Length": str(len(whole)), "X-Content-Sha256": hashlib.sha256(whole).hexdigest().upper()}
    return Reply(body=data, headers=headers, **more)


class Uploads:
    """Takes the parts of one upload, in whatever order they come."""

    def __init__(self, service: ScriptedServer, at: str = UPLOADS, **begun: object) -> None:
        self.begin: dict = {}
        self.parts: dict[int, bytes] = {}
        service.on("POST", at, lambda request: self._begin(request, begun))
        service.on("PUT", f"{at}/u", self._take)
        service.on("POST", f"{at}/u:commit", answer({"path": "/workspace/big", "size": 1}))
        service.on("POST", f"{at}/u:abort", answer({}))

    def _begin(self, request: Request, begun: dict) -> Reply:
        self.begin = request.json
        return answer({"uploadId": "u", "chunkBytes": MIB, **begun})

    def _take(self, request: Request) -> Reply:
        self.parts[int(request.query["offset"][0])] = request.body
        return answer({})

    @property
    def data(self) -> bytes:
        return b"".join(self.parts[offset] for offset in sorted(self.parts))


def tar_gz(*members: tarfile.TarInfo, data: bytes = b"x") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return packed.getvalue()


async def sandbox_of(service: ScriptedServer) -> AsyncSandbox:
    return await AsyncSandbox.connect("a")


async def test_fi_03_any_name_travels(service: ScriptedServer):
    path = '/tmp/日本 é "q" #%?\n.txt'
    service.on("GET", CONTENT, content(b"text"))

    assert await (await sandbox_of(service)).files.read_text(path) == "text"
    assert service.requests[-1].query["path"] == [path]


async def test_a_small_file_is_written_in_one_request(service: ScriptedServer):
    service.on("PUT", CONTENT, answer({"path": "/workspace/a", "size": 3}))
    sandbox = await sandbox_of(service)

    assert await sandbox.files.write("/workspace/a", b"a\0b", mode=0o755) == {"path": "/workspace/a", "size": 3}
    assert service.requests[-1].query == {"path": ["/workspace/a"], "mode": ["755"]}
    assert service.requests[-1].body == b"a\0b"


async def test_a_file_that_comes_broken_is_read_again(service: ScriptedServer):
    service.on("GET", CONTENT, content(b"bro", b"whole"), content(b"whole", drop_after=2), content(b"whole"))

    assert await (await sandbox_of(service)).files.read("/workspace/a") == b"whole"


async def test_a_file_that_stays_broken_is_an_error(service: ScriptedServer):
    service.on("GET", CONTENT, content(b"wrong", b"whole"))
    with pytest.raises(RuntimeError) as refused:
        await (await sandbox_of(service)).files.read("/workspace/a")

    assert refused.value.code == "download_incomplete"
    assert len(service.sent("GET", CONTENT)) == 3


async def test_a_stream_that_ends_early_is_an_error_at_its_end(service: ScriptedServer):
    service.on("GET", CONTENT, content(b"abcdef", drop_after=3))
    got = b""
    with pytest.raises(RuntimeError) as refused:
        async for piece in (await sandbox_of(service)).files.read_stream("/workspace/a"):
            got += piece

    assert refused.value.code == "download_incomplete"
    assert got == b"abc"


async def test_fi_09_a_file_that_does_not_belong_in_memory_is_refused_before_it_comes(service: ScriptedServer):
    service.on("GET", CONTENT, Reply(body=b"", headers={"X-Content-Length": str(2 << 30)}))
    with pytest.raises(InvalidRequestError) as refused:
        await (await sandbox_of(service)).files.read_text("/workspace/sparse")

    assert (refused.value.code, refused.value.status) == ("too_large", 413)


async def test_a_large_file_goes_in_parts_and_says_its_size_and_digest_first(service: ScriptedServer):
    data, uploads = bytes(range(256)) * 10_000, Uploads(service)
    await (await sandbox_of(service)).files.write("/workspace/big", data)

    assert uploads.data == data
    assert uploads.begin == {
        "path": "/workspace/big",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


async def test_fi_11_a_part_that_is_lost_is_sent_again_also_when_the_source_can_be_read_only_once(
    service: ScriptedServer,
):
    uploads = Uploads(service)
    service.on("PUT", f"{UPLOADS}/u", RESET, uploads._take)
    pieces = (bytes([number]) * 300_000 for number in range(5))
    await (await sandbox_of(service)).files.write("/workspace/big", pieces)

    assert uploads.data == b"".join(bytes([number]) * 300_000 for number in range(5))


async def test_an_upload_that_fails_is_called_off(service: ScriptedServer):
    Uploads(service)
    service.on("PUT", f"{UPLOADS}/u", refusal(409, "disk_full"))
    with pytest.raises(RuntimeError) as refused:
        await (await sandbox_of(service)).files.write("/workspace/big", b"x" * (MIB + 1))

    assert refused.value.code == "disk_full"
    assert len(service.sent("POST", f"{UPLOADS}/u:abort")) == 1
    assert service.sent("POST", f"{UPLOADS}/u:commit") == []


async def test_a_mode_that_the_service_did_not_take_is_set_afterwards(service: ScriptedServer):
    Uploads(service)
    service.on("POST", "/v1/sandboxes/a/files:chmod", answer({}))
    await (await sandbox_of(service)).files.write("/workspace/big", b"x" * (MIB + 1), mode=0o700)

    (sent,) = service.sent("POST", "/v1/sandboxes/a/files:chmod")
    assert sent.json == {"path": "/workspace/big", "mode": "700"}


async def test_an_uploaded_file_keeps_its_mode(service: ScriptedServer, tmp_path: Path):
    script = tmp_path / "script"
    script.write_bytes(b"#!/bin/sh\n")
    script.chmod(0o750)
    service.on("PUT", CONTENT, answer({}))
    await (await sandbox_of(service)).files.upload(str(script), "/workspace/script")

    assert service.requests[-1].query["mode"] == ["750"]


async def test_a_folder_travels_as_one_archive_and_keeps_its_shape(service: ScriptedServer, tmp_path: Path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(b"\0in")
    (tmp_path / "d" / "l").symlink_to("e/f")
    service.on("PUT", "/v1/sandboxes/a/files/archive", answer({}))
    await (await sandbox_of(service)).files.upload(str(tmp_path / "d"), "/workspace/d")

    sent = service.requests[-1]
    assert sent.query == {"path": ["/workspace/d"], "user": ["sandbox"]}
    with tarfile.open(fileobj=io.BytesIO(sent.body)) as archive:
        assert sorted(archive.getnames()) == [".", "e", "e/f", "l"]
        assert archive.getmember("l").linkname == "e/f"
        assert archive.extractfile("e/f").read() == b"\0in"  # type: ignore[union-attr]


async def test_a_large_folder_goes_in_parts_in_order(service: ScriptedServer, tmp_path: Path):
    uploads = Uploads(service, "/v1/sandboxes/a/files/archive/uploads")
    noise = b"".join(hashlib.sha512(number.to_bytes(4, "big")).digest() for number in range(40_000))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "noise").write_bytes(noise)
    await (await sandbox_of(service)).files.upload(str(tmp_path / "d"), "/workspace/d")

    assert list(uploads.parts) == sorted(uploads.parts)
    with tarfile.open(fileobj=io.BytesIO(uploads.data)) as archive:
        assert archive.extractfile("noise").read() == noise  # type: ignore[union-attr]


async def test_a_download_replaces_a_file_whole_or_not_at_all(service: ScriptedServer, tmp_path: Path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    service.on("GET", STAT, answer({"exists": True, "type": "file"}))
    service.on("GET", CONTENT, content(b"new but cut", drop_after=3))
    with pytest.raises(RuntimeError):
        await (await sandbox_of(service)).files.download("/workspace/f", str(target))

    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


async def test_a_folder_comes_back_as_it_was(service: ScriptedServer, tmp_path: Path):
    folder, file, link = tarfile.TarInfo("./d"), tarfile.TarInfo("./d/f"), tarfile.TarInfo("./d/l")
    folder.type, folder.mode, file.mode = tarfile.DIRTYPE, 0o750, 0o640
    link.type, link.linkname = tarfile.SYMTYPE, "f"
    service.on("GET", STAT, answer({"exists": True, "type": "directory"}))
    service.on("GET", "/v1/sandboxes/a/files/archive", Reply(body=tar_gz(folder, file, link)))
    await (await sandbox_of(service)).files.download("/workspace/d", str(tmp_path / "out"))

    assert (tmp_path / "out/d/l").read_bytes() == b"x"
    assert (tmp_path / "out/d/f").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "out/d").stat().st_mode & 0o777 == 0o750


async def test_what_is_not_there_is_named(service: ScriptedServer, tmp_path: Path):
    service.on("GET", STAT, answer({"exists": False}))
    sandbox = await sandbox_of(service)
    with pytest.raises(NotFoundError, match="/nope"):
        await sandbox.files.stat("/nope")
    with pytest.raises(NotFoundError, match="/nope"):
        await sandbox.files.download("/nope", str(tmp_path / "x"))

    assert not await sandbox.files.exists("/nope")
    assert not (tmp_path / "x").exists()


async def test_listing_moving_and_removing_say_what_they_are_told(service: ScriptedServer):
    service.on("GET", "/v1/sandboxes/a/files/list", answer({"data": [{"name": "x", "path": "/workspace/x"}]}))
    for verb in ("mkdir", "rename", "chmod"):
        service.on("POST", f"/v1/sandboxes/a/files:{verb}", answer({}))
    service.on("POST", "/v1/sandboxes/a/files:remove", answer({"removed": False}))
    files = (await sandbox_of(service)).files

    assert await files.glob("**/*.py") == [{"name": "x", "path": "/workspace/x"}]
    assert service.requests[-1].query == {"path": ["/workspace"], "glob": ["**/*.py"]}
    await files.mkdir("/workspace/d", parents=False)
    assert service.requests[-1].json == {"path": "/workspace/d", "parents": False}
    await files.rename("/a", "/b", overwrite=True)
    assert service.requests[-1].json == {"from": "/a", "to": "/b", "overwrite": True}
    assert not await files.remove("/workspace/d", recursive=True)
    await files.chmod("/workspace/d", 0o4711)
    assert service.requests[-1].json == {"path": "/workspace/d", "mode": "711"}
