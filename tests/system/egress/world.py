"""Makes the world of the egress tests: a namespace with documentation addresses, certificates, and what arrived."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .world_server import ADDRESSES, RESOLVER

HOST, HOST6 = "198.51.100.1", "2001:db8:1::1"
RANGES = ("198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
READY_WITHIN_S = 20.0


@dataclass
class TestWorld:
    """Started; `packets` and `questions` are what has arrived since the last `forget`."""

    __test__ = False

    folder: Path
    name: str
    link: str
    process: subprocess.Popen[bytes] | None = None
    _marks: int = 0
    _packets_from: int = 0
    _questions_from: int = 0
    roots: Path = field(default_factory=Path)

    def start(self) -> None:
        self.roots = make_certificates(self.folder)
        make_wheel(self.folder)
        inside = ("ip", "netns", "exec", self.name)
        for command in (
            ("ip", "netns", "add", self.name),
            ("ip", "link", "add", self.link, "type", "veth", "peer", "name", "world0", "netns", self.name),
            ("ip", "addr", "add", f"{HOST}/24", "dev", self.link),
            ("ip", "-6", "addr", "add", f"{HOST6}/64", "dev", self.link, "nodad"),
            ("ip", "link", "set", self.link, "up"),
            (*inside, "ip", "link", "set", "lo", "up"),
            (*inside, "ip", "link", "set", "world0", "up"),
            *((*inside, "ip", "addr", "add", f"{a}/24", "dev", "world0") for a in self.addresses(4)),
            *((*inside, "ip", "-6", "addr", "add", f"{a}/64", "dev", "world0", "nodad") for a in self.addresses(6)),
        ):
            subprocess.run(command, check=True, capture_output=True)
        script = Path(__file__).with_name("world_server.py")
        log = (self.folder / "world.log").open("wb")
        self.process = subprocess.Popen(
            [*inside, sys.executable, str(script), str(self.folder)], stdout=log, stderr=log
        )
        until("the world being ready", lambda: (self.folder / "ready").exists(), READY_WITHIN_S)

    @staticmethod
    def addresses(version: int) -> list[str]:
        found = {a for known in ADDRESSES.values() for a in known if a.startswith(("198.51.100.", "2001:db8:1:"))}
        found |= {RESOLVER}
        return sorted(a for a in found if (":" in a) == (version == 6))

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        subprocess.run(("ip", "link", "del", self.link), check=False, capture_output=True)
        subprocess.run(("ip", "netns", "del", self.name), check=False, capture_output=True)

    def settle(self) -> None:
        """Every packet that was sent before this has been written down when it returns."""
        self._marks += 1
        mark = f"mark {self._marks}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(mark.encode(), ("198.51.100.10", 9))
        until("the mark arriving", lambda: mark in (self.folder / "packets").read_text(), 5.0)

    def forget(self) -> None:
        self.settle()
        self._packets_from = len(self._lines("packets"))
        self._questions_from = len(self._lines("questions"))

    def packets(self) -> list[dict]:
        """What arrived for somebody, without what the host's own kernel says to its neighbours."""
        self.settle()
        found = [json.loads(line) for line in self._lines("packets")[self._packets_from :]]
        ours = [p for p in found if not p["mark"] and p["kind"] in (1, 6, 17)]
        return [p for p in ours if not (p["port"] == 53 and p["to"] == RESOLVER)]

    def questions(self) -> list[str]:
        return [json.loads(line)["name"] for line in self._lines("questions")[self._questions_from :]]

    def last_request(self, name: str) -> bytes:
        path = self.folder / f"last-{name}"
        return path.read_bytes() if path.exists() else b""

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def until(what: str, probe, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not probe():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s} s"
        time.sleep(0.02)


NAME, LINK = "rt-world-", "rtw"
"""Before the process id of the run that made it."""


def named(pid: int) -> tuple[str, str]:
    """The names of the namespace and of the link that a run makes."""
    return f"{NAME}{pid}", f"{LINK}{pid}"


def remove_left_over() -> None:
    """End the worlds of runs that were killed: their addresses would be taken."""
    listed = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(NAME)):
        pid = name.removeprefix(NAME)
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        servers = subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True, check=False).stdout
        for server in servers.split():
            os.kill(int(server), signal.SIGTERM)
        subprocess.run(("ip", "link", "del", named(int(pid))[1]), check=False, capture_output=True)
        subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def why_not() -> str | None:
    """The reason for which there can be no world on this machine."""
    if os.getuid() != 0:
        return "network namespaces are made by root only"
    if shutil.which("ip") is None:
        return "there is no ip command on this machine"
    remove_left_over()
    routes = subprocess.run(("ip", "route"), capture_output=True, text=True, check=False)
    if "198.51.100." in routes.stdout:
        return "this machine uses the documentation addresses itself"
    made = subprocess.run(("ip", "netns", "add", "rt-probe"), capture_output=True, text=True, check=False)
    subprocess.run(("ip", "netns", "del", "rt-probe"), capture_output=True, check=False)
    return f"network namespaces cannot be made here: {made.stderr.strip()}" if made.returncode else None


def make_certificates(folder: Path) -> Path:
    """A certificate of the test's authority for every name; answers the authority's own file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The tests' own authority")])

    def signed(subject: x509.Name, public, names: list[str], ends: datetime.datetime, *, ca: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * day)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
        return builder.sign(key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    root = signed(root_name, key.public_key(), [], now + 30 * day, ca=True).public_bytes(pem)
    (folder / "roots.pem").write_bytes(root)
    for name in ADDRESSES:
        own = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ends = now - day if name == "expired.test" else now + 10 * day
        chain = signed(subject, own.public_key(), [name], ends, ca=False).public_bytes(pem) + root
        plain = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.pem").write_bytes(plain + chain)
    return folder / "roots.pem"


def make_wheel(folder: Path) -> None:
    """A package that can be installed."""
    info = "runtime_sample-1.0.dist-info"
    with zipfile.ZipFile(folder / "runtime_sample-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("runtime_sample.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: runtime-sample\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"runtime_sample.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
