"""A canary secret is used by every kind of program in a real machine, and is found nowhere but at its host."""

from __future__ import annotations

import base64
import importlib.util
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from withruntime import InvalidRequestError, NotFoundError, Sandbox

from .fixtures import EgressService
from .world import TestWorld

pytestmark = pytest.mark.system

CANARY = "canary/" + secrets.token_hex(20) + "+x="
BAD = [
    ({"value": "x" * 8193}, "value"),
    ({"value": "two\nlines"}, "value"),
    ({"value": "\u00e4"}, "value"),
    ({"value": ""}, "value"),
    ({"hosts": []}, "hosts"),
    ({"hosts": ["api.test/path"]}, "hosts.0"),
    ({"hosts": ["https://api.test"]}, "hosts.0"),
    ({"header": "Host"}, "header"),
    ({"rules": [{"paths": ["/a/../b"]}]}, "rules.0.paths.0"),
]


@pytest.fixture
def holder(egress_service: EgressService, roomy: Sandbox, world: TestWorld) -> Iterator[Sandbox]:
    """The sandbox, with a canary for api.test."""
    egress_service.client.secrets.set("CANARY", value=CANARY, hosts=["api.test"])
    roomy.network.set(internet=True)
    (world.folder / "last-api.test").unlink(missing_ok=True)
    yield roomy
    egress_service.client.secrets.delete("CANARY")


def run(sandbox: Sandbox, command: str, **options) -> str:
    done = sandbox.exec(command, timeout_ms=100_000, **options)
    return done.stdout + done.stderr


def put_packages(sandbox: Sandbox, *names: str) -> str:
    """Copy Python packages of the tests' own environment into the sandbox; its folder there."""
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            pytest.skip(f"the tests' environment has no {name} to bring along")
        here = Path(found.origin)
        if here.name == "__init__.py":
            sandbox.files.upload(str(here.parent), f"/workspace/packages/{name}")
        else:
            sandbox.files.write(f"/workspace/packages/{here.name}", here.read_bytes())
    return "/workspace/packages"


def programs(sandbox: Sandbox, program: str) -> str:
    """The command by which a program asks api.test for /x with the placeholder in a header."""
    if program == "curl":
        return 'curl -sS -m 30 -H "Authorization: Bearer $CANARY" https://api.test/x'
    if program == "curl without a proxy":
        return "curl -sS -m 30 --noproxy '*' -H \"Authorization: Bearer $CANARY\" https://api.test/x"
    if program == "urllib":
        return (
            "python3 -c \"import os,urllib.request as u;print(u.urlopen(u.Request('https://api.test/x',"
            "headers={'Authorization':'Bearer '+os.environ['CANARY']})).read().decode())\""
        )
    if program in ("requests", "httpx"):
        needs = {
            "requests": ("requests", "urllib3", "charset_normalizer", "certifi", "idna"),
            "httpx": ("httpx", "httpcore", "h11", "anyio", "certifi", "idna", "typing_extensions"),
        }
        folder = put_packages(sandbox, *needs[program])
        return (
            f'PYTHONPATH={folder} python3 -c "import os,{program} as r;'
            "print(r.get('https://api.test/x',headers={'Authorization':'Bearer '+os.environ['CANARY']}).text)\""
        )
    if program == "git":
        return "git ls-remote https://someone:$CANARY@api.test/x.git; true"
    node = shutil.which("node")
    if node is None:
        pytest.skip("this machine has no node to bring along")
    sandbox.files.upload(os.path.realpath(node), "/workspace/node")
    script = (
        "const t=require('tls').connect({host:'api.test',port:443,servername:'api.test'},()=>t.write("
        "'GET /x HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\n'"
        "+'Authorization: Bearer '+process.env.CANARY+'\\r\\n\\r\\n'));"
        "t.on('data',d=>process.stdout.write(d));t.on('error',e=>console.log(e))"
    )
    sandbox.files.write("/workspace/ask.js", script)
    return "chmod +x /workspace/node; /workspace/node /workspace/ask.js"


@pytest.mark.parametrize("program", ["curl", "curl without a proxy", "urllib", "requests", "httpx", "git", "node"])
def test_the_value_arrives_and_the_program_never_sees_it(holder: Sandbox, world: TestWorld, program: str) -> None:
    said = run(holder, programs(holder, program))
    got = world.last_request("api.test")

    if program == "git":
        basic = base64.b64encode(f"someone:{CANARY}".encode())
        assert basic in got, said
    else:
        assert f"Bearer {CANARY}".encode() in got and "hello from api.test" in said, said
    assert CANARY not in said
    assert CANARY not in run(holder, "printenv CANARY") and "rtsec_" in run(holder, "printenv CANARY")


def test_the_value_is_put_into_the_url_and_into_basic_credentials(holder: Sandbox, world: TestWorld) -> None:
    run(holder, 'curl -sS -m 30 -u "someone:$CANARY" "https://api.test/x?key=$CANARY"')
    got = world.last_request("api.test")

    assert base64.b64encode(f"someone:{CANARY}".encode()) in got
    assert b"key=canary%2F" in got and b"%2Bx%3D" in got


PRESIGN = """
import hashlib, hmac, os

def url(key):
    scope, date = "20261129/eu-central-1/s3/aws4_request", "20261129T120000Z"
    query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F" + scope.replace("/", "%2F")
    query += "&X-Amz-Date=" + date + "&X-Amz-Expires=900&X-Amz-SignedHeaders=host"
    asked = "\\n".join(["GET", "/bucket/x", query, "host:api.test", "", "host", "UNSIGNED-PAYLOAD"])
    text = "\\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(asked.encode()).hexdigest()])
    made = ("AWS4" + key).encode()
    for part in (*scope.split("/"), text):
        made = hmac.new(made, part.encode(), "sha256").digest()
    return "/bucket/x?" + query + "&X-Amz-Signature=" + made.hex()
"""


def test_a_url_presigned_inside_arrives_as_the_real_key_signs_it(holder: Sandbox, world: TestWorld) -> None:
    here: dict = {}
    exec(PRESIGN, here)
    holder.files.write("/workspace/presign.py", PRESIGN + "print('https://api.test' + url(os.environ['CANARY']))")
    said = run(holder, 'curl -sS -m 30 "$(python3 /workspace/presign.py)"')

    assert world.last_request("api.test").startswith(f"GET {here['url'](CANARY)} HTTP/1.1".encode()), said


def test_se_01_an_echo_is_cut_and_told_and_the_value_does_not_come_back(holder: Sandbox) -> None:
    for where in ("-H \"X-Key: $CANARY\" 'https://api.test/echo'", '"https://api.test/echo?k=$CANARY"'):
        said = run(holder, f"curl -sS -m 30 {where}")
        assert CANARY not in said and base64.b64encode(CANARY.encode()).decode() not in said
    records = holder.network.records(limit=1000)["data"]

    assert [r for r in records if r["what"] == "secret" and not r["allowed"]]
    assert CANARY not in str(records)


def test_se_03_bodies_are_byte_identical_and_carry_placeholders_only(holder: Sandbox, world: TestWorld) -> None:
    run(holder, "printf 'k=%s' \"$CANARY\" | gzip > /tmp/b.gz; head -c 100000 /dev/urandom >> /tmp/b.gz")
    run(holder, "curl -sS -m 30 -H 'Content-Encoding: gzip' --data-binary @/tmp/b.gz https://api.test/x")
    sent = holder.files.read("/tmp/b.gz")
    assert world.last_request("api.test").endswith(b"\r\n\r\n" + sent)

    run(holder, 'curl -sS -m 30 -H "Transfer-Encoding: chunked" -d "$CANARY" https://api.test/x')
    got = world.last_request("api.test")
    assert b"rtsec_" in got and CANARY.encode() not in got


def test_se_05_the_value_goes_nowhere_else(holder: Sandbox, world: TestWorld) -> None:
    holder.files.write("/tmp/roots.pem", world.roots.read_bytes())
    auth = '-H "Authorization: Bearer $CANARY"'
    world.forget()
    for command in (
        f"curl -sS -m 30 {auth} http://api.test/x",
        f"curl -sS -m 30 {auth} --cacert /tmp/roots.pem https://api.test:8443/x",
        f"curl -sS -m 30 {auth} --cacert /tmp/roots.pem https://second.test/x",
        f"curl -sS -m 30 -L --location-trusted {auth} -k https://api.test/redirect",
    ):
        run(holder, command)
        for name in ("api.test", "second.test"):
            assert CANARY.encode() not in world.last_request(name), command

    assert b"rtsec_" in world.last_request("second.test")


def test_trace_is_refused(holder: Sandbox) -> None:
    assert "TRACE" in run(holder, "curl -sS -m 30 -X TRACE https://api.test/x")


def test_a_secret_with_a_header_and_rules(holder: Sandbox, egress_service: EgressService, world: TestWorld) -> None:
    egress_service.client.secrets.set(
        "CANARY", value=CANARY, hosts=["api.test"], header="X-Key", format="v {value}",
        rules=[{"methods": ["GET"], "paths": ["/ok/*"]}],
    )  # fmt: skip
    for path, carries in (("/ok/a", True), ("/no", False), ("/ok/../no", False), ("/ok/%2e%2e/no", False)):
        run(holder, f"curl -sS -m 30 --path-as-is https://api.test{path}")
        assert (f"X-Key: v {CANARY}".encode() in world.last_request("api.test")) is carries, path


def test_a_new_value_reaches_a_running_sandbox_within_three_seconds(
    holder: Sandbox, egress_service: EgressService, world: TestWorld
) -> None:
    ask = 'curl -sS -m 30 -H "Authorization: Bearer $CANARY" https://api.test/x'
    before = run(holder, "printenv CANARY")
    run(holder, ask)
    began = time.monotonic()
    egress_service.client.secrets.set("CANARY", value="second-" + CANARY, hosts=["api.test"])
    took_s = time.monotonic() - began
    run(holder, ask)

    assert b"Bearer second-canary/" in world.last_request("api.test") and took_s < 3
    assert run(holder, "printenv CANARY") == before


def test_a_deleted_secret_is_a_placeholder_without_a_meaning(
    holder: Sandbox, egress_service: EgressService, world: TestWorld
) -> None:
    mark = run(holder, "printenv CANARY").strip()
    egress_service.client.secrets.delete("CANARY")
    holder.files.write("/tmp/roots.pem", world.roots.read_bytes())
    run(holder, f"curl -sS -m 30 --cacert /tmp/roots.pem -H 'X-Key: {mark}' https://api.test/x")

    assert mark.encode() in world.last_request("api.test")
    with pytest.raises(NotFoundError):
        egress_service.client.secrets.delete("CANARY")
    egress_service.client.secrets.set("CANARY", value=CANARY, hosts=["api.test"])


def test_a_sandbox_may_be_made_without_the_use_of_secrets(
    holder: Sandbox, egress_service: EgressService, world: TestWorld
) -> None:
    mark = run(holder, "printenv CANARY").strip()
    with egress_service.sandbox(secrets=[]) as other:
        assert run(other, "printenv CANARY") == ""
        run(other, f"curl -sS -k -m 30 -H 'X-Key: {mark}' https://api.test/x")

    assert mark.encode() in world.last_request("api.test")


@pytest.mark.parametrize(("change", "field"), BAD, ids=lambda v: str(v)[:30])
def test_a_wrong_secret_is_a_400_that_names_the_field(egress_service: EgressService, change: dict, field: str) -> None:
    given = {"value": "v" * 20, "hosts": ["api.test"], **change}
    with pytest.raises(InvalidRequestError) as refused:
        egress_service.client.secrets.set("WRONG", **given)

    assert field in {issue["field"] for issue in refused.value.details["issues"]}
    assert "v" * 20 not in str(refused.value) or change.get("value")


def test_the_value_is_nowhere_on_the_host_and_nowhere_in_the_guest(
    holder: Sandbox, egress_service: EgressService, world: TestWorld
) -> None:
    run(holder, 'curl -sS -m 30 -H "Authorization: Bearer $CANARY" https://api.test/x')
    assert CANARY.encode() in world.last_request("api.test")
    needles = (CANARY.encode(), base64.b64encode(CANARY.encode()).rstrip(b"=")[:-2])
    found = [str(path) for path in egress_service.state.rglob("*") if path.is_file() and _holds(path, needles)]
    database = sqlite3.connect(f"file:{next(egress_service.state.glob('*.db'))}?mode=ro", uri=True)
    rows = "".join(str(row) for row in database.execute("select * from egress_secrets"))
    inside = run(holder, "sudo grep -rslF canary/ /tmp /workspace /etc /var /root /run 2>/dev/null; true")

    assert found == [] and CANARY not in rows
    assert "canary/" not in inside
    assert CANARY not in str(egress_service.client.secrets.list())
    for pid in _machines_of(egress_service.state):
        assert not _memory_holds(pid, needles[0]), f"the memory of machine process {pid} holds the value"


def _holds(path: Path, needles: tuple[bytes, ...]) -> bool:
    before = b""
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            if any(needle in before + piece for needle in needles):
                return True
            before = piece[-4096:]
    return False


def _machines_of(state: Path) -> list[int]:
    """Processes of the service's machines: everything whose command line names a machine's folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes()
        except OSError:
            continue
        if b"qemu" in line and str(state / "machines").encode() in line:
            found.append(int(place.parent.name))
    return found


def _memory_holds(pid: int, needle: bytes) -> bool:
    """Whether memory that the process has written holds these bytes."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps.readlines():
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            at = start
            while at < end:
                try:
                    memory.seek(at)
                    piece = memory.read(min(1 << 24, end - at))
                except OSError:
                    break
                if needle in piece:
                    return True
                at += max(len(piece) - len(needle), 1) if len(piece) < end - at else len(piece)
    return False
