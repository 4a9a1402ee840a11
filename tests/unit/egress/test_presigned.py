"""A URL that was signed in advance with placeholders goes out signed with the real key.

The URLs are what botocore 1.44.8 makes of each key, but for the first, which is the example of AWS's documentation.
"""

from __future__ import annotations

import hashlib

import pytest

from runtimed.core.secrets import RequestRule, SecretPlan, host_targets
from runtimed.egress.http1 import RequestHead
from runtimed.egress.secrets import sigv4
from runtimed.egress.secrets.substitute import OpenSecret, apply

MARK, KEY = "rtsec_0123456789abcdefghij", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN_MARK, TOKEN = "rtsec_token0123456789abcd", "IQoJb3JpZ2luX2VjEJr//////+Example=="
ENCODED_TOKEN = "IQoJb3JpZ2luX2VjEJr%2F%2F%2F%2F%2F%2F%2BExample%3D%3D"


def secret(name: str, mark: str, value: str, **plan) -> OpenSecret:
    full = SecretPlan(name=name, hosts=("api.test",), **plan)
    return OpenSecret(plan=full, targets=host_targets(full.hosts), placeholder=mark, value=value)


SECRETS = [secret("AWS_SECRET_ACCESS_KEY", MARK, KEY), secret("AWS_SESSION_TOKEN", TOKEN_MARK, TOKEN)]


def request(url: str, method: str = "GET", *, host: str = "api.test", **headers: str) -> RequestHead:
    named = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    pairs = tuple((name.encode(), value.encode()) for name, value in named.items())
    return RequestHead(method=method.encode(), target=url.encode(), minor=1, headers=pairs)


def presigned(path: str, service: str, names: str = "host", *, token: str = "") -> str:
    """Up to the signature, in botocore's order."""
    return (
        f"{path}{'&' if '?' in path else '?'}X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE0000001"
        f"%2F20261129%2Feu-central-1%2F{service}%2Faws4_request&X-Amz-Date=20261129T120000Z&X-Amz-Expires=900"
        f"&X-Amz-SignedHeaders={names}{'&X-Amz-Security-Token=' + token if token else ''}&X-Amz-Signature="
    )


S3_PATH = "/b/a%20key%2Bplus/%C3%BC.txt?versionId=3%2F4&response-content-type=text%2Fplain"
STS_PATH = "/?Action=GetCallerIdentity&Version=2011-06-15"
META = {"method": "PUT", "Content_Type": "text/plain", "x_amz_meta_a": "b  c"}
EKS = {"x_k8s_aws_id": "cluster"}
MADE = {
    "S3, with an odd key": (
        (S3_PATH, "s3"),
        {},
        "488bd1f6c828680146b6c8ae181e3a0701c7c08795e51622339333ac19a15720",
        "2a1bb76faa7d097ac654998242bde10b210303f0b7f7b5df48c8d6177cedebb3",
        "41b27fd24887f7bc1e99ccbbf566561342cd80ffb344271f71ec10f8852f0059",
        "63a4d7160ea8707b4be3f25f687ea09d436531b8f541969a832dec24cab566f5",
    ),
    "S3, with headers that are signed": (
        ("/k", "s3", "content-type%3Bhost%3Bx-amz-meta-a"),
        META,
        "ae44bda7f3ea5b928d904ba68babbe5fba24b3a4298179a0dd6c8521d703ee60",
        "c07e1229d422e0e0301478b9e279ac287c4a9a5d605b5c47e447567581d3079f",
        "ae7dee1df671859b6403901353be68c701022aaf8b1de3364eb9a86b7c53a236",
        "497fed6a35fd277475670b64c70027d86c4476ab01e22c54684170e93a9a78d2",
    ),
    "STS, as a cluster's token": (
        (STS_PATH, "sts", "host%3Bx-k8s-aws-id"),
        EKS,
        "b4d688ffaa002ba94c20986e77c1d97d68df171011e132f7afff6f453c8d8f7d",
        "0c91d237fee78287e8f28fdc7f6a49e78167b2e492b2667b02198a6181fba9a5",
        "abe67ea64e994c3dd74fa28e63fc90334c86aa42c1b1ed0380f1171599a99dd1",
        "7ff96c4d8a67a630d1fd13e9f82d8968ed9475f2352ffef43f46d905990a7c7a",
    ),
    "another service, whose path is encoded twice": (
        ("/a%20b/c", "execute-api"),
        {},
        "1fcaaf0b898b884627a76d04c4a7824d2e923c7da73c2802c7c9dffe47b6cce2",
        "c7fd9df3d874ee8ec1734b514b071da34cc964cc025790b698b065038e42752c",
        "c8573795e3186724179532d82823e34a3d96d213fb5d91492dcc8663046e4695",
        "f418594f368e0db97b3e334eb95ee53a7dc8a0ccf8397d96199ca996b190c8ee",
    ),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_presigned_url_goes_out_as_the_real_key_signs_it(made) -> None:
    url, headers, marked, real, *_ = made
    applied = apply(request(presigned(*url) + marked, **headers), SECRETS)

    assert applied.head == request(presigned(*url) + real, **headers)
    assert [s.plan.name for s in applied.used] == ["AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_session_token_in_the_url_is_put_in_before_it_is_signed(made) -> None:
    url, headers, *_, marked, real = made
    applied = apply(request(presigned(*url, token=TOKEN_MARK) + marked, **headers), SECRETS)

    assert applied.head == request(presigned(*url, token=ENCODED_TOKEN) + real, **headers)
    assert {s.plan.name for s in applied.used} == {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}


def test_the_published_example_is_what_comes_out() -> None:
    url = (
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3"
        "%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
    )
    key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    published = url + "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    example = request(published, host="examplebucket.s3.amazonaws.com")
    signed = sigv4.read(example)
    assert signed is not None
    signer = sigv4.Signer(key=MARK, path_encoded_twice=False, payload="UNSIGNED-PAYLOAD")
    by_mark = request(url + sigv4.signature(example, signed, signer, MARK), host="examplebucket.s3.amazonaws.com")

    assert by_mark != example
    assert apply(by_mark, [secret("KEY", MARK, key)]).head == example


def test_a_url_signed_by_another_key_is_left_alone() -> None:
    url = request(presigned(S3_PATH, "s3") + "0" * 64)

    assert apply(url, SECRETS).head == url and apply(url, SECRETS).used == ()


@pytest.mark.parametrize("extra", ["X-Amz-Signature=" + "0" * 64, "X-Amz-Date=20261129T120001Z", "%58-Amz-Expires=9"])
def test_a_url_that_says_a_part_of_its_signature_twice_is_left_alone(extra: str) -> None:
    marked = MADE["S3, with an odd key"][2]
    url = request(presigned(S3_PATH, "s3") + marked + "&" + extra)

    assert sigv4.read(url) is None and apply(url, SECRETS).head == url


def test_a_url_whose_path_the_rules_of_its_key_refuse_is_not_signed() -> None:
    ruled = secret("KEY", MARK, KEY, rules=(RequestRule(methods=("GET",), paths=("/other/*",)),))
    url = request(presigned("/a%20b/c", "execute-api") + MADE["another service, whose path is encoded twice"][2])

    assert apply(url, [ruled]).head == url and apply(url, [ruled]).used == ()


def test_the_signature_of_a_url_is_watched_for_in_the_answer() -> None:
    url, headers, marked, real, *_ = MADE["STS, as a cluster's token"]

    assert apply(request(presigned(*url) + marked, **headers), SECRETS).watched == (real,)


def test_a_body_needs_to_be_read_for_services_that_sign_it_and_not_for_s3() -> None:
    assert sigv4.needs_body_hash(request(presigned("/", "sts") + "0" * 64))
    assert not sigv4.needs_body_hash(request(presigned("/", "s3") + "0" * 64, "PUT"))


def test_what_goes_out_instead_is_what_is_signed() -> None:
    """The gateway asks for an answer that it can read: a signature over Accept-Encoding must be over that one."""
    url = "/?" + presigned("", "s3", "accept-encoding%3Bhost").removeprefix("?")
    sent = request(url + "0" * 64, Accept_Encoding="gzip")
    signed = sigv4.read(sent)
    assert signed is not None
    signer = sigv4.Signer(key=MARK, path_encoded_twice=False, payload="UNSIGNED-PAYLOAD")
    by_mark = request(url + sigv4.signature(sent, signed, signer, MARK), Accept_Encoding="gzip")
    instead = request(by_mark.target.decode(), Accept_Encoding="identity")
    out = apply(by_mark, SECRETS, changed=instead).head

    assert out.target.decode() == url + sigv4.signature(instead, signed, signer, KEY)
    assert out.all(b"accept-encoding") == [b"identity"]


def test_the_refusal_of_a_body_signed_chunk_by_chunk_says_what_to_do() -> None:
    content = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    head = request(
        "/k",
        "PUT",
        X_Amz_Date="20261129T120000Z",
        X_Amz_Content_Sha256=content,
        Authorization="AWS4-HMAC-SHA256 Credential=AK/20261129/eu-central-1/s3/aws4_request, SignedHeaders=host, "
        "Signature=" + "0" * 64,
    )
    signed = sigv4.read(head)
    assert signed is not None
    by_mark = sigv4.sign_again(head, signed, sigv4.Signer(key=MARK, path_encoded_twice=False, payload=content), MARK)

    with pytest.raises(sigv4.CannotSign, match=r"turn chunked encoding off.*UNSIGNED-PAYLOAD"):
        apply(by_mark, SECRETS)


def test_a_hash_of_the_body_that_the_url_was_signed_with_counts() -> None:
    digest = hashlib.sha256(b"body").hexdigest()
    url = presigned("/", "sqs")
    signed = sigv4.read(request(url + "0" * 64, "POST"))
    assert signed is not None
    signer = sigv4.Signer(key=MARK, path_encoded_twice=False, payload=digest)
    by_mark = request(url + sigv4.signature(request(url, "POST"), signed, signer, MARK), "POST")

    assert apply(by_mark, SECRETS, body_sha256=digest).used
    assert not apply(by_mark, SECRETS).used
