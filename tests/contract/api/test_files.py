"""Files through the API."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from .conftest import Api


@pytest.fixture
async def base(api: Api) -> str:
    return f"/v1/sandboxes/{(await api.create())['id']}"


async def test_bytes_come_back_as_they_went_with_their_length_and_digest(api: Api, base: str) -> None:
    content = bytes(range(256)) * 4
    put = await api.http.put(f"{base}/files/content", params={"path": "/workspace/a", "mode": "755"}, content=content)
    got = await api.http.get(f"{base}/files/content", params={"path": "/workspace/a"})

    assert (put.status_code, put.json()["mode"]) == (200, "0755")
    assert got.content == content
    assert got.headers["X-Content-Length"] == got.headers["Content-Length"] == "1024"
    assert got.headers["X-Content-Sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("path", ['/tmp/日本 é "q" #%?.txt', "/tmp/-dash", "/tmp/a\nb", "/tmp/a+b c"])
async def test_fi_03_any_name_goes_through(api: Api, base: str, path: str) -> None:
    await api.http.put(f"{base}/files/content", params={"path": path}, content=b"x")

    assert (await api.http.get(f"{base}/files/content", params={"path": path})).content == b"x"
    assert (await api.http.get(f"{base}/files/stat", params={"path": path})).json()["path"] == path


@pytest.mark.parametrize("size", [0, 1, (1 << 20)])
async def test_a_single_write_takes_up_to_a_mebibyte(api: Api, base: str, size: int) -> None:
    reply = await api.http.put(f"{base}/files/content", params={"path": "/a"}, content=b"x" * size)

    assert reply.json()["size"] == size


async def test_a_single_write_of_more_is_413_whether_its_length_is_told_or_not(api: Api, base: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (1 << 19)

    told = await api.http.put(f"{base}/files/content", params={"path": "/a"}, content=b"x" * ((1 << 20) + 1))
    untold = await api.http.put(f"{base}/files/content", params={"path": "/a"}, content=parts())

    for reply in (told, untold):
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")
    assert (await api.http.get(f"{base}/files/stat", params={"path": "/a"})).json() == {"exists": False}


async def test_a_file_that_is_not_there_names_its_path(api: Api, base: str) -> None:
    reply = await api.http.get(f"{base}/files/content", params={"path": "/nope"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "file_not_found")
    assert "/nope" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "field"),
    [({}, "path"), ({"path": "relative"}, "path"), ({"path": "/a\0b"}, "path"), ({"path": "/" + "a" * 4096}, "path")],
)
async def test_a_wrong_path_names_its_field(api: Api, base: str, query: dict[str, str], field: str) -> None:
    for route in ("content", "stat", "list", "archive"):
        reply = await api.http.get(f"{base}/files/{route}", params=query)

        assert reply.status_code == 400
        assert reply.json()["error"]["details"]["issues"][0]["field"] == field


async def test_verbs_on_paths(api: Api, base: str) -> None:
    await api.http.put(f"{base}/files/content", params={"path": "/workspace/a"}, content=b"x")

    async def verb(name: str, **body: Any) -> Any:
        reply = await api.call("POST", f"{base}/files:{name}", body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    assert (await verb("mkdir", path="/workspace/d", parents=True))["type"] == "directory"
    await verb("chmod", path="/workspace/a", mode="600")
    await verb("rename", **{"from": "/workspace/a", "to": "/workspace/b"})
    listed = (await api.http.get(f"{base}/files/list", params={"path": "/workspace"})).json()["data"]
    assert await verb("remove", path="/workspace/b") == {"removed": True}
    assert await verb("remove", path="/workspace/b") == {"removed": False}

    assert [entry["name"] for entry in listed] == ["b"]
    assert listed[0].keys() >= {"name", "path", "type", "size", "mode", "modifiedAt", "uid", "owner"}


async def begin(api: Api, base: str, content: bytes, **more: Any) -> dict[str, Any]:
    body = {"path": "/workspace/big", "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **more}
    reply = await api.call("POST", f"{base}/uploads", body)
    assert reply.status_code == 201, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def test_an_upload_takes_its_chunks_in_any_order(api: Api, base: str) -> None:
    content = bytes(i % 251 for i in range((2 << 20) + 5))
    upload = await begin(api, base, content, mode="755")
    size = upload["chunkBytes"]
    for offset in reversed(range(0, len(content), size)):
        chunk = content[offset : offset + size]
        put = await api.http.put(f"{base}/uploads/{upload['uploadId']}", params={"offset": offset}, content=chunk)
        assert put.status_code == 200

    done = await api.call("POST", f"{base}/uploads/{upload['uploadId']}:commit", {})

    assert upload["mode"] == "755"
    assert (done.json()["size"], done.json()["mode"]) == (len(content), "0755")
    assert (await api.http.get(f"{base}/files/content", params={"path": "/workspace/big"})).content == content


async def test_an_upload_with_another_digest_is_refused(api: Api, base: str) -> None:
    upload = await begin(api, base, b"abc")
    await api.http.put(f"{base}/uploads/{upload['uploadId']}", params={"offset": 0}, content=b"abd")

    done = await api.call("POST", f"{base}/uploads/{upload['uploadId']}:commit", {})

    assert (done.status_code, done.json()["error"]["code"]) == (409, "upload_incomplete")


async def test_an_aborted_upload_is_gone(api: Api, base: str) -> None:
    upload = await begin(api, base, b"abc")
    for _ in range(2):
        assert (await api.call("POST", f"{base}/uploads/{upload['uploadId']}:abort", {})).status_code == 200

    done = await api.call("POST", f"{base}/uploads/{upload['uploadId']}:commit", {})

    assert (done.status_code, done.json()["error"]["code"]) == (404, "upload_not_found")


@pytest.mark.parametrize(
    ("more", "field"),
    [({"size": -1}, "size"), ({"sha256": "x"}, "sha256"), ({"mode": "9"}, "mode"), ({"path": "x"}, "path")],
)
async def test_a_wrong_upload_names_its_field(api: Api, base: str, more: dict[str, Any], field: str) -> None:
    reply = await api.call("POST", f"{base}/uploads", {"path": "/a", "size": 1} | more)

    assert reply.json()["error"]["details"]["issues"][0]["field"] == field


async def test_an_archive_flows_in_by_chunks_in_order(api: Api, base: str) -> None:
    upload = (await api.call("POST", f"{base}/files/archive/uploads", {"path": "/w", "gzip": True})).json()
    path = f"{base}/files/archive/uploads/{upload['uploadId']}"
    for offset, chunk in ((0, b"abc"), (0, b"abc"), (3, b"def")):
        assert (await api.http.put(path, params={"offset": offset}, content=chunk)).status_code == 200
    ahead = await api.http.put(path, params={"offset": 100}, content=b"x")

    done = await api.call("POST", f"{path}:commit", {})
    again = await api.call("POST", f"{path}:commit", {})

    assert (ahead.status_code, ahead.json()["error"]["code"]) == (409, "upload_incomplete")
    assert done.json() == again.json() == {"bytes": 6}
    assert (await api.http.get(f"{base}/files/archive", params={"path": "/w"})).content == b"abcdef"


async def test_an_aborted_archive_is_gone(api: Api, base: str) -> None:
    upload = (await api.call("POST", f"{base}/files/archive/uploads", {"path": "/w"})).json()
    path = f"{base}/files/archive/uploads/{upload['uploadId']}"
    await api.call("POST", f"{path}:abort", {})

    reply = await api.http.put(path, params={"offset": 0}, content=b"x")

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "upload_not_found")


async def test_a_small_archive_goes_in_one_request(api: Api, base: str) -> None:
    reply = await api.http.put(f"{base}/files/archive", params={"path": "/w"}, content=b"tar")

    assert reply.status_code == 200
    assert (await api.http.get(f"{base}/files/archive", params={"path": "/w"})).content == b"tar"
