"""Secrets go only where they may, and come back from nowhere."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import tracemalloc
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.core.network import read_target
from runtimed.core.secrets import RequestRule, SecretPlan, canonical_path, check_secret, covers, host_targets
from runtimed.egress.answers import GuardedAnswer, readable_only
from runtimed.egress.http1 import Body, End, RequestReader, ResponseReader, request_bytes
from runtimed.egress.secrets import sealing, sigv4
from runtimed.egress.secrets.guard import CannotLook, Guard, SecretFound
from runtimed.egress.secrets.substitute import OpenSecret, apply

MARK = "rtsec_0123456789abcdefghij"
VALUE = "sk-live/Zm9v+ba r=%?#"
visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8, max_size=60)


def secret(value: str = VALUE, mark: str = MARK, **plan) -> OpenSecret:
    full = SecretPlan(name="KEY", hosts=("api.test",), **plan)
    return OpenSecret(plan=full, targets=host_targets(full.hosts), placeholder=mark, value=value)


def request(target: str = "/", method: str = "GET", **headers: str):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    reader = RequestReader()
    reader.feed(f"{method} {target} HTTP/1.1\r\nHost: api.test\r\n{lines}\r\n".encode())
    head = reader.head()
    assert head is not None
    return head


def header(head, name: str) -> str | None:
    value = head.one(name.encode())
    return None if value is None else value.decode()


def test_the_value_is_put_into_headers_as_it_is_and_into_the_url_encoded() -> None:
    applied = apply(request(f"/v1?key={MARK}", Authorization=f"Bearer {MARK}", X_Other=MARK), [secret()])

    assert header(applied.head, "authorization") == f"Bearer {VALUE}" and header(applied.head, "x-other") == VALUE
    assert applied.head.target.decode() == "/v1?key=" + urllib.parse.quote(VALUE, safe="")
    assert [s.plan.name for s in applied.used] == ["KEY"]


def test_the_value_is_put_inside_basic_credentials() -> None:
    coded = base64.b64encode(f"user:{MARK}".encode()).decode()
    applied = apply(request(Authorization=f"Basic {coded}"), [secret()])

    assert header(applied.head, "authorization") == "Basic " + base64.b64encode(f"user:{VALUE}".encode()).decode()


def test_a_secret_with_a_header_goes_there_and_nowhere_else() -> None:
    applied = apply(
        request(f"/?k={MARK}", Authorization="mine", X_Other=MARK),
        [secret(header="Authorization", format="token {value}")],
    )

    assert applied.head.all(b"authorization") == [f"token {VALUE}".encode()]
    assert MARK in applied.head.target.decode() and header(applied.head, "x-other") == MARK


def test_host_and_framing_headers_are_never_touched() -> None:
    reader = RequestReader()
    reader.feed(f"GET / HTTP/1.1\r\nHost: {MARK}.test\r\n\r\n".encode())
    head = reader.head()
    assert head is not None

    assert apply(head, [secret()]).used == ()


RULES = (RequestRule(methods=("GET",), paths=("/repos/acme/*", "/user")),)


@pytest.mark.parametrize(
    "path",
    ["/repos/acme/x", "/repos/acme/a/b?c=../d", "/user", "/%75ser", "/repos/acme/a%20b", "/repos/acme/%c3%bc.v1"],
)
def test_a_rule_lets_its_requests_carry_the_value(path: str) -> None:
    assert apply(request(path, Authorization=MARK), [secret(rules=RULES)]).used


@pytest.mark.parametrize(
    "path",
    [
        *("/repos/other/x", "/users", "/user/", "/repos/acme", "/repos/acme/../other/x", "/repos/acme/%2e%2e/other"),
        *(
            "/repos/acme/..%2fother",
            "/repos/acme//x",
            "//repos/acme/x",
            "/repos/acme/x;y",
            "/repos/acme/x\\y",
            "/repos/acme/x#/../y",
            "/repos/acme/..%20/other",
            "/repos/acme/%20../other",
            "/repos/acme/.../other",
            "/repos/acme/%ef%bc%8e%ef%bc%8e/other",
            "/repos/acme/x%ef%bc%8f..",
            "/repos/acme/%e2%80%a5/other",
            "/./user",
        ),
        *("/repos/acme/%252e%252e/x", "/repos/acme/%5c", "/repos/acme/%00", "/repos/acme/%zz", "/repos/acme/%e4", "*"),
        *("/repos/acme/%2F..%2Fother", "/REPOS/ACME/x", "http://api.test/user"),
    ],
)
def test_a_path_that_is_not_ruled_in_or_has_two_readings_gets_no_secret(path: str) -> None:
    head = request(path, Authorization=MARK)
    applied = apply(head, [secret(rules=RULES)])

    assert applied.used == () and applied.head == head


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "x-http-method", "X_Method_Override", "X-Original-URL", "X-Rewrite-Url"]
)
def test_a_request_that_names_another_method_or_path_in_a_header_gets_no_ruled_secret(name: str) -> None:
    head = request("/user", Authorization=MARK, **{name: "DELETE"})

    assert apply(head, [secret(rules=RULES)]).head.all(b"authorization") == [MARK.encode()]
    assert apply(head, [secret()]).used


def test_a_rule_is_for_its_methods() -> None:
    assert apply(request("/user", "POST", Authorization=MARK), [secret(rules=RULES)]).used == ()


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30))
def test_a_canonical_path_has_no_dots_and_no_double_slashes(text: str) -> None:
    path = canonical_path("/" + text)

    assert path is None or ("//" not in path and not {".", ".."} & set(path.split("/")))


def test_a_secret_goes_to_port_443_unless_its_host_says_another() -> None:
    targets = host_targets(["api.test", "*.cdn.test", "db.test:8443"])

    assert covers(targets, "api.test", 443) and not covers(targets, "api.test", 8443)
    assert covers(targets, "x.cdn.test", 443) and not covers(targets, "cdn.test", 443)
    assert covers(targets, "db.test", 8443) and not covers(targets, "db.test", 443)


@pytest.mark.parametrize(
    ("change", "value", "field"),
    [
        ({"hosts": ()}, "v", "hosts"),
        ({"hosts": ("api.test/path",)}, "v", "hosts.0"),
        ({"hosts": ("https://api.test",)}, "v", "hosts.0"),
        ({"hosts": ("1.2.3.4",)}, "v", "hosts.0"),
        ({"name": "1A"}, "v", "name"),
        ({}, "", "value"),
        ({}, "a\nb", "value"),
        ({}, "\u00e4", "value"),
        ({}, "x" * 8193, "value"),
        ({"header": "Host"}, "v", "header"),
        ({"header": "a b"}, "v", "header"),
        ({"format": "x"}, "v", "format"),
        ({"header": "X", "format": "no place"}, "v", "format"),
        ({"rules": ()}, "v", "rules"),
        ({"rules": (RequestRule(paths=("/a/../b",)),)}, "v", "rules.0.paths.0"),
        ({"rules": (RequestRule(methods=("get",), paths=("/a",)),)}, "v", "rules.0.methods"),
    ],
)
def test_a_wrong_secret_is_named_by_its_field(change: dict, value: str, field: str) -> None:
    plan = SecretPlan(**{"name": "KEY", "hosts": ("api.test",), **change})
    wrong = check_secret(plan, value)

    assert field in {issue["field"] for issue in wrong}
    assert not value or value == "v" or all(value not in issue["message"] for issue in wrong)


def forms(value: str) -> list[bytes]:
    raw = value.encode()
    return [
        raw,
        base64.b64encode(raw),
        base64.b64encode(b"x" + raw + b"yz"),
        base64.urlsafe_b64encode(b"user:" + raw),
        urllib.parse.quote(value, safe="").encode(),
        urllib.parse.quote_plus(value).encode(),
        json.dumps(value).encode(),
        raw.hex().encode(),
        urllib.parse.quote(urllib.parse.quote(value, safe="")).encode(),
        *(
            re.sub("%..", lambda found: found[0].lower(), urllib.parse.quote(value, safe=safe)).encode()
            for safe in ("", "!*'()")
        ),
        *("".join(f"{before}{byte:{digits}}" for byte in raw).encode() for before, digits in WHOLE),
        re.sub("[<>&'+]", lambda found: f"\\u00{ord(found[0]):02X}", json.dumps(value)).encode(),
        json.dumps(base64.b64encode(raw).decode()).replace("/", "\\/").encode(),
        html.escape(value).encode(),
        value.encode("utf-16-le"),
    ]


WHOLE = [("%", "02x"), ("%", "02X"), ("\\u00", "02x"), ("\\u00", "02X"), ("\\x", "02x")]


@given(visible, st.integers(0, 19), st.lists(st.integers(1, 30), max_size=20), st.binary(max_size=50))
def test_no_form_of_the_value_passes_the_guard_in_pieces_of_any_size(value, which, sizes, around) -> None:
    text = around + forms(value)[which] + around
    guard, passed, at = Guard([value]), b"", 0
    with pytest.raises(SecretFound):
        for size in [*sizes, len(text)]:
            passed += guard.passes(text[at : at + size])
            at += size

    assert forms(value)[which] not in passed
    assert value.encode() not in passed


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_what_holds_no_secret_passes_unchanged(pieces: list[bytes]) -> None:
    guard = Guard(["a secret value that is long enough to be no chance"])

    assert b"".join([*(guard.passes(piece) for piece in pieces), guard.ends()]) == b"".join(pieces)


def answered(head: bytes, body: bytes, *, value: str = VALUE, method: str = "GET") -> bytes:
    reader, answer = ResponseReader(), GuardedAnswer(Guard([value]), request("/", method))
    reader.feed(head + body)
    out = b""
    while True:
        found = reader.head(method.encode())
        assert found is not None
        out += answer.head(found)
        while not isinstance(event := reader.body_event(), End):
            if event is None:
                reader.close()
            else:
                out += b"".join(answer.body(event))
        if found.status >= 200:
            return out + b"".join(answer.body(event))


def test_a_compressed_answer_is_looked_into_and_goes_on_unpacked() -> None:
    packed = gzip.compress(b"nothing to hide" * 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)

    out = answered(head, packed)

    assert b"Content-Encoding" not in out and out.count(b"nothing to hide") == 1000
    with pytest.raises(SecretFound):
        answered(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden := gzip.compress(b"ab" + VALUE.encode())), hidden),
        )


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def test_a_coding_twice_hides_nothing() -> None:
    packed = gzip.compress(gzip.compress(VALUE.encode()))
    for codings in (b"Content-Encoding: gzip, gzip", b"Content-Encoding: gzip\r\nContent-Encoding: gzip"):
        with pytest.raises(CannotLook):
            answered(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n" % (codings, len(packed)), packed)


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"compress", b"dcb"])
def test_a_coding_that_cannot_be_opened_lets_nothing_through(coding: bytes) -> None:
    with pytest.raises(CannotLook):
        answered(b"HTTP/1.1 200 OK\r\nContent-Encoding: " + coding + b"\r\nContent-Length: 1\r\n\r\n", b"x")


def test_nothing_is_asked_for_that_cannot_be_looked_into() -> None:
    asked = readable_only(request(Accept_Encoding="gzip, br", Sec_WebSocket_Extensions="permessage-deflate"))

    assert asked.all(b"accept-encoding") == [b"identity"] and not asked.all(b"sec-websocket-extensions")


@pytest.mark.parametrize("size", [65535, 65536, 65537, 3 * 65536, 200_001])
def test_a_compressed_answer_comes_out_whole_at_any_size(size: int) -> None:
    packed = gzip.compress(bytes(size))
    out = answered(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed), packed)
    reader = ResponseReader()
    reader.feed(out)
    assert reader.head(b"GET") is not None
    content = 0
    while not isinstance(event := reader.body_event(), End):
        assert event is not None
        content += len(event.content)

    assert content == size


def test_a_compressed_answer_that_ends_too_early_does_not_look_whole() -> None:
    packed = gzip.compress(b"nothing to hide" * 1000)[:-9]
    with pytest.raises(CannotLook, match="too early"):
        answered(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed), packed)


def test_an_answer_that_unpacks_without_end_is_made_in_small_pieces() -> None:
    packed = gzip.compress(bytes(64 << 20))
    reader, answer = ResponseReader(), GuardedAnswer(Guard([VALUE]), request())
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)
    head = reader.head(b"GET")
    assert head is not None
    answer.head(head)
    event = reader.body_event()
    assert isinstance(event, Body)
    tracemalloc.start()
    try:
        total = sum(len(piece) for piece in answer.body(event))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert total > 60 << 20 and peak < 2 << 20


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", b"200 OK"), ("GET", b"304 Not Modified"), ("GET", b"204 None")]
)
@pytest.mark.parametrize("header", [b"Transfer-Encoding: chunked", b"Content-Encoding: gzip"])
def test_an_answer_without_a_body_has_nothing_after_its_head(method: str, status: bytes, header: bytes) -> None:
    head = b"HTTP/1.1 %b\r\n%b\r\n\r\n" % (status, header)

    assert answered(head, b"", method=method) == head


def test_an_early_answer_changes_nothing_of_the_answer_that_follows() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nContent-Encoding: gzip\r\n\r\n"

    assert answered(early, PLAIN + b"plain") == early + PLAIN + b"plain"
    with pytest.raises(SecretFound):
        answered(b"HTTP/1.1 103 Early Hints\r\nLink: " + VALUE.encode() + b"\r\n\r\n", PLAIN + b"plain")


def test_trailers_and_chunk_extensions_of_a_server_are_left_behind() -> None:
    value = VALUE.replace(" ", "").encode()
    chunks = b"5;" + value + b"\r\nplain\r\n0\r\nX-Echo: " + value + b"\r\n\r\n"
    out = answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, value=value.decode())

    assert value not in out and out.endswith(b"\r\n\r\n5\r\nplain\r\n0\r\n\r\n")


def test_a_value_cut_by_chunk_borders_is_found() -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b"..." + VALUE.encode() + b"...") + b"0\r\n\r\n"

    with pytest.raises(SecretFound):
        answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks)


def test_a_value_in_a_header_of_the_answer_is_found() -> None:
    with pytest.raises(SecretFound):
        answered(b"HTTP/1.1 200 OK\r\nX-Echo: " + VALUE.encode() + b"\r\nContent-Length: 0\r\n\r\n", b"")


def test_sealed_values_open_only_in_their_place_and_under_their_key(tmp_path) -> None:
    key = sealing.load_key(tmp_path / "key")
    sealer = sealing.Sealer(key)
    sealed = sealer.seal(b"value", purpose="one")

    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600 and sealing.load_key(tmp_path / "key") == key
    assert sealer.open(sealed, purpose="one") == b"value" and b"value" not in sealed
    for other in (
        lambda: sealer.open(sealed, purpose="two"),
        lambda: sealing.Sealer(bytes(32)).open(sealed, purpose="one"),
    ):
        with pytest.raises(sealing.CannotOpen):
            other()


def signed(key: str, *, body_hash: str | None = "UNSIGNED-PAYLOAD", target: str = "/b/k?list-type=2&x=a%20b"):
    """A request signed as AWS documents it, by this file's own reading of the documents."""
    import hashlib
    import hmac

    headers = {"host": "api.test", "x-amz-date": "20261129T120000Z"}
    if body_hash:
        headers["x-amz-content-sha256"] = body_hash
    names = ";".join(sorted(headers))
    path, _, query = target.partition("?")
    canonical = "\n".join(
        [
            *("PUT", path, query, *(f"{n}:{headers[n]}" for n in sorted(headers)), "", names),
            body_hash or hashlib.sha256(b"body").hexdigest(),
        ]
    )
    scope = "20261129/eu-central-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n20261129T120000Z\n{scope}\n" + hashlib.sha256(canonical.encode()).hexdigest()
    made = ("AWS4" + key).encode()
    for part in scope.split("/"):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(made, text.encode(), hashlib.sha256).hexdigest()
    auth = f"AWS4-HMAC-SHA256 Credential=AKID/{scope}, SignedHeaders={names}, Signature={signature}"
    extra = {"X-Amz-Date": "20261129T120000Z", "Authorization": auth}
    if body_hash:
        extra["X-Amz-Content-Sha256"] = body_hash
    return request(target, "PUT", **extra)


@pytest.mark.parametrize("body_hash", ["UNSIGNED-PAYLOAD", None])
def test_a_request_signed_with_a_placeholder_is_signed_again_with_the_key(body_hash: str | None) -> None:
    import hashlib

    head = signed(MARK, body_hash=body_hash)
    applied = apply(head, [secret("real+key/value")], body_sha256=hashlib.sha256(b"body").hexdigest())

    assert sigv4.needs_body_hash(head) == (body_hash is None)
    assert request_bytes(applied.head) == request_bytes(signed("real+key/value", body_hash=body_hash))
    assert len(applied.used) == 1


def test_a_signature_by_another_key_is_left_alone() -> None:
    head = signed("the guest's own key")

    assert apply(head, [secret()]).head == head


def test_a_body_signed_chunk_by_chunk_is_refused() -> None:
    with pytest.raises(sigv4.CannotSign):
        apply(signed(MARK, body_hash="STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), [secret()])


def test_a_rule_target_is_no_secret_host() -> None:
    assert read_target("1.2.3.4").name is None
