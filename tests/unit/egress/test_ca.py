"""Certificates of the installation's authority satisfy strict verifiers, and are made once."""

from __future__ import annotations

import ssl

from cryptography import x509

from runtimed.core.clock import ManualClock, SystemClock
from runtimed.egress.ca import LEAF_LASTS, load_authority


def test_se_07_the_authority_and_its_leaves_have_what_strict_verifiers_want(tmp_path) -> None:
    authority = load_authority(tmp_path, SystemClock())
    ca = x509.load_pem_x509_certificate(authority.pem)
    leaf = authority.leaf("api.example.test")

    ski = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.key_encipherment
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).critical
    aki = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert aki.key_identifier == ski.digest
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["api.example.test"]
    assert leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert leaf.not_valid_before_utc < ca.not_valid_before_utc + LEAF_LASTS


def test_a_strict_client_takes_a_leaf(tmp_path) -> None:
    authority = load_authority(tmp_path, SystemClock())
    client_context = ssl.create_default_context(cadata=authority.pem.decode())
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = authority.context("api.test").wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname="api.test")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass

    assert client.version() in ("TLSv1.3", "TLSv1.2")


def test_the_authority_is_made_once_and_its_key_is_private(tmp_path) -> None:
    first, second = load_authority(tmp_path, SystemClock()), load_authority(tmp_path, SystemClock())

    assert first.pem == second.pem and (tmp_path / "egress-ca.key").stat().st_mode & 0o777 == 0o600


async def test_a_leaf_is_kept_until_it_is_near_its_end(tmp_path) -> None:
    clock = ManualClock()
    authority = load_authority(tmp_path, clock)
    first = authority.context("a.test")

    assert authority.context("a.test") is first
    await clock.advance(LEAF_LASTS.total_seconds() - 3600)
    assert authority.context("a.test") is not first
