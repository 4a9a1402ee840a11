"""The installation's own certificate authority, and the certificates by which it speaks for hosts with a secret."""

from __future__ import annotations

import datetime
import os
import ssl
from collections import OrderedDict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtimed.core.clock import Clock

BACK_DATED = datetime.timedelta(days=2)
"""A guest whose clock is behind still takes a new certificate."""
CA_LASTS = datetime.timedelta(days=3650)
LEAF_LASTS = datetime.timedelta(days=30)
LEAF_RENEWED = datetime.timedelta(days=7)
LEAVES_MAX = 512


class Authority:
    """Signs certificates for names. Its key never leaves the host."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, clock: Clock) -> None:
        self._key, self._certificate, self._clock = key, certificate, clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, tuple[datetime.datetime, ssl.SSLContext]] = OrderedDict()

    @property
    def pem(self) -> bytes:
        """The certificate that guests trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, name: str) -> ssl.SSLContext:
        """A server context that speaks for this name: HTTP/1.1, kept until its certificate is near its end."""
        now = _now(self._clock)
        known = self._leaves.get(name)
        if known is not None and known[0] - LEAF_RENEWED > now:
            self._leaves.move_to_end(name)
            return known[1]
        leaf = self.leaf(name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, leaf.public_bytes(serialization.Encoding.PEM) + self.pem, _key_pem(self._leaf_key))
        self._leaves[name] = (leaf.not_valid_after_utc, context)
        if len(self._leaves) > LEAVES_MAX:
            self._leaves.popitem(last=False)
        return context

    def leaf(self, name: str) -> x509.Certificate:
        """A new certificate for the name, as strict verifiers want it."""
        now = _now(self._clock)
        public = self._leaf_key.public_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        issuer_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = _begin(subject, self._certificate.subject, public, now, now + LEAF_LASTS)
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def load_authority(folder: Path, clock: Clock) -> Authority:
    """The authority kept in this folder, made on first use. Raises ValueError where the files hold something else."""
    key_path, pem_path = folder / "egress-ca.key", folder / "egress-ca.pem"
    if not (key_path.exists() and pem_path.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        _write_private(key_path, _key_pem(key))
        pem_path.write_bytes(_self_signed(key, clock).public_bytes(serialization.Encoding.PEM))
    found = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key_path} does not hold the key of this installation's certificate authority")
    return Authority(found, x509.load_pem_x509_certificate(pem_path.read_bytes()), clock)


def _self_signed(key: ec.EllipticCurvePrivateKey, clock: Clock) -> x509.Certificate:
    now = _now(clock)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Runtime"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Runtime egress {os.urandom(4).hex()}"),
        ]
    )
    return (
        _begin(name, name, key.public_key(), now, now + CA_LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK_DATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _now(clock: Clock) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(clock.now_s()), datetime.UTC)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)


def _load(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """The standard library loads a chain from a file only: one in memory, so that no key touches a disk."""
    fd = os.memfd_create("egress-leaf", os.MFD_CLOEXEC)
    try:
        os.write(fd, key + chain)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
