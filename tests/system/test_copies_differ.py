"""What a copy of a machine must not share with its siblings, and what one that slept must not believe."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from withruntime import Sandbox

from .test_outliving import SESSION, Outliving, nth_line

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

COPIES = 8
RANDOM_AT = slice(11, 43)
"""Of a TLS record with a ClientHello (RFC 8446, 4.1.2): after 5 bytes of record, 4 of handshake, 2 of version."""
ALIVE = "import os, random, ssl, uuid, socket, numpy as n; a = n.random.default_rng(); b = n.random.default_rng(5); "
ALIVE += "c = ssl.create_default_context(); n.random.randn(); ssl.RAND_bytes(4); random.random()\n"
"""Generators of every kind, each used before the copies are made; `b` was given a seed."""
TELL = "print(os.urandom(8).hex(), uuid.uuid4(), a.integers(1 << 62), n.random.randn(), random.random(), "
TELL += "ssl.RAND_bytes(8).hex(), b.integers(1 << 62))\n"


def own_address() -> str:
    """An address of this host that is no loopback: a guest's loopback is its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.connect(("198.51.100.1", 9))  # sends nothing
        address = probe.getsockname()[0]
    if address.startswith(("0.", "127.")):
        pytest.skip("this host has no address but its loopback")
    return str(address)


@dataclass
class Greeter:
    """A TLS server of the test's own authority; it notes each ClientHello's random."""

    folder: Path
    address: str
    hellos: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The test's own authority")])
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        self.root = self._signed(self._issuer, self._key.public_key(), yesterday, ca=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._listener = socket.create_server((self.address, 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def mint(self) -> datetime.datetime:
        """A certificate that is valid from this second on, and that later connections get; answers that second."""
        own = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.address)])
        chain = self._signed(subject, own.public_key(), now, ca=False)
        plain = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self.folder / "minted.pem").write_bytes(plain + chain)
        self._context.load_cert_chain(self.folder / "minted.pem")
        return now

    def _signed(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, begins: datetime.datetime, *, ca: bool
    ) -> bytes:
        builder = (
            x509.CertificateBuilder(self._issuer, subject, public, x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        usage |= {"decipher_only": False, "digital_signature": not ca, "key_cert_sign": ca, "crl_sign": ca}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        if not ca:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(self.address))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(30)
                    self.hellos.append(connection.recv(43, socket.MSG_PEEK | socket.MSG_WAITALL)[RANDOM_AT])
                    with self._context.wrap_socket(connection, server_side=True) as secure:
                        secure.recv(4096)
                        secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nminted")


@pytest.fixture(scope="module")
def greeter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Greeter]:
    made = Greeter(tmp_path_factory.mktemp("greeter"), own_address())
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, greeter: Greeter) -> Iterator[Outliving]:
    """A service whose operator opened the greeter's address."""
    made = Outliving(tmp_path_factory.mktemp("copies"))
    (made.state / "config.toml").write_text(f'egress_open_ranges = "{greeter.address}"\n')
    made.start()
    try:
        yield made
    finally:
        made.end()
    assert made.doctor() == []


@pytest.fixture
def sandbox(service: Outliving, greeter: Greeter) -> Iterator[Sandbox]:
    made = service.create()
    made.files.write("/workspace/root.pem", greeter.root)
    yield made
    service.again(made).delete()


def test_sn_07_a_certificate_minted_while_it_slept_is_accepted(
    service: Outliving, greeter: Greeter, sandbox: Sandbox
) -> None:
    sandbox.pause()
    paused_at = datetime.datetime.now(datetime.UTC)
    service.kill()
    service.start()
    minted_at = greeter.mint()
    ask = f"curl -sS -m 30 --cacert root.pem https://{greeter.address}:{greeter.port}/"

    answer = service.again(sandbox).exec(ask)  # which wakes it

    assert minted_at > paused_at  # with the clock of its pause it would not be valid yet
    assert (answer.stdout, answer.stderr, answer.exit_code) == ("minted", "", 0)
    assert service.again(sandbox).starts()[-1]["cause"] == "wake"


def test_sn_09_eight_forks_share_no_random_number_of_any_generator_that_was_alive(
    service: Outliving, greeter: Greeter, sandbox: Sandbox
) -> None:
    """And one that was given a seed goes on with it, in each of them."""
    greeter.mint()
    session = sandbox.spawn(["python3", "-uc", SESSION], stdin="pipe")
    session.write(ALIVE + "print('ready')\n")
    assert nth_line(sandbox, session.id, 0) == "ready"
    told = []
    greeter.hellos.clear()

    for copy in sandbox.fork(COPIES):
        process = copy.process(session.id)
        process.write(TELL)
        told.append(nth_line(copy, session.id, 1).split())
        process.write(
            f"c.load_verify_locations('/workspace/root.pem'); s = c.wrap_socket(socket.create_connection(("
            f"'{greeter.address}', {greeter.port})), server_hostname='{greeter.address}'); print(s.version())\n"
        )
        assert nth_line(copy, session.id, 2) == "TLSv1.3"
        copy.delete()

    names = ("os.urandom", "uuid4", "default_rng", "numpy.random.randn", "random.random", "ssl.RAND_bytes")
    for at, name in enumerate(names):
        assert len({line[at] for line in told}) == COPIES, (name, told)
    assert len({line[len(names)] for line in told}) == 1, told
    assert len(set(greeter.hellos)) == len(greeter.hellos) == COPIES
