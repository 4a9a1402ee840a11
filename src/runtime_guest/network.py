"""Gives the machine, which has no network card, a network that leads to the agent: a dummy interface, rules, settings.

Done once, before the machine is saved as a template. Every step is tried, whatever became of the one before: what
fails leaves programs without a way out, never with another one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess

from runtime_guest.identity import log, overwrite

PROXY_PORT, TRANSPARENT_PORT, DNS_PORT = 10800, 10802, 10853
_INTERFACE, _ADDRESS, _MASK, _RESOLVER = b"dummy0", "198.18.255.1", "255.254.0.0", "198.18.255.53"
_TOOLS = "/run/runtime/guest"
_FOLDER = "/run/runtime/certs"
_BUNDLE, _OURS = _FOLDER + "/bundle.pem", _FOLDER + "/runtime.pem"
_IMAGE_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_NO_ROUTERS = "/proc/sys/net/ipv6/conf/dummy0/router_solicitations"
"""Nobody is there to answer: every clone would ask again for IPv6 routers."""
_PROXY = "http://127.0.0.1:%d" % PROXY_PORT
_DIRECT = "localhost,127.0.0.1,::1"
_VARIABLES = {
    "HTTP_PROXY": _PROXY,
    "HTTPS_PROXY": _PROXY,
    "http_proxy": _PROXY,
    "https_proxy": _PROXY,
    "NO_PROXY": _DIRECT,
    "no_proxy": _DIRECT,
    "SSL_CERT_FILE": _BUNDLE,
    "REQUESTS_CA_BUNDLE": _BUNDLE,
    "CURL_CA_BUNDLE": _BUNDLE,
    "NODE_EXTRA_CA_CERTS": _OURS,
    "NODE_USE_ENV_PROXY": "1",
    "GIT_SSL_CAINFO": _BUNDLE,
}
of_image: dict[str, str] = {}
"""What the image's own /etc/environment sets for every command, under all else."""
environment: dict[str, str] = {}
"""Under every command, process, terminal and login shell. Empty where the agent is no machine's (tests)."""
_RULES = """
table ip runtime {
  chain first_out {
    type filter hook output priority -300; policy accept;
    ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 notrack
  }
  chain first_in {
    type filter hook prerouting priority -300; policy accept;
    ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 notrack
  }
  chain out {
    type nat hook output priority -100; policy accept;
    oif "lo" accept
    ip daddr 127.0.0.0/8 accept
    udp dport 53 redirect to :%(dns)d
    tcp dport 53 redirect to :%(dns)d
    meta l4proto tcp redirect to :%(tcp)d
  }
}
table inet rest {
  chain out {
    type filter hook output priority 0; policy accept;
    ip daddr 127.0.0.0/8 accept
    oifname "dummy0" reject with icmpx type admin-prohibited
  }
}
""" % {"dns": DNS_PORT, "tcp": TRANSPARENT_PORT}
"""What is local anyway, such as connections to the proxy, is not tracked: that costs, most of all under emulation.
A redirected packet still shows dummy0 as its way out in the second hook, with a loopback address."""
_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x890B, 0x8913, 0x8914, 0x8916, 0x891C
_IFF_UP, _RTF_UP = 1, 1
_FINIT_MODULE = 313
_NFT_WITHIN_S = 60
_bundle_bytes = 0
_trusted = ""
"""The certificate that programs trust already."""


def bring_up() -> None:
    """Blocks for a fraction of a second, or some seconds without hardware virtualisation."""
    environment.update(_VARIABLES)
    for step in (_insert_modules, _make_interface, _load_rules, _name_resolver, _keep_certificates, _tell_shells):
        try:
            step()
        except (OSError, ValueError, subprocess.SubprocessError) as failure:
            log("network: %s: %s" % (step.__name__.strip("_"), failure))


def _insert_modules() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(_TOOLS + "/modules/network.order", encoding="ascii") as file:
        names = file.read().split()
    for name in names:
        path = "%s/modules/%s" % (_TOOLS, name if name.endswith(".ko") else name + ".ko")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.syscall(ctypes.c_long(_FINIT_MODULE), fd, b"", 0) != 0 and ctypes.get_errno() != 17:
                log("network: module %s: %s" % (name, os.strerror(ctypes.get_errno())))
        finally:
            os.close(fd)


def _make_interface() -> None:
    """The module dummy brings dummy0 along; it takes whatever is sent to it and lets it vanish."""
    if os.path.exists(_NO_ROUTERS):
        overwrite(_NO_ROUTERS, "0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, address in ((_SIOCSIFADDR, _ADDRESS), (_SIOCSIFNETMASK, _MASK)):
            fcntl.ioctl(control, request, struct.pack("16s", _INTERFACE) + _sockaddr(address) + bytes(8))
        named = struct.pack("16sh14x", _INTERFACE, 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, named))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", _INTERFACE, flags | _IFF_UP))
        device = ctypes.create_string_buffer(_INTERFACE)
        route = struct.pack(
            "L16s16s16sHhLLhhhPLLH",
            0, _sockaddr("0.0.0.0"), bytes(16), _sockaddr("0.0.0.0"), _RTF_UP, 0, 0, 0, 0, 0, 0,
            ctypes.addressof(device), 0, 0, 0,
        )  # fmt: skip
        fcntl.ioctl(control, _SIOCADDRT, route)


def _sockaddr(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _load_rules() -> None:
    done = subprocess.run(
        [_TOOLS + "/bin/nft", "-f", "-"], input=_RULES.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=_NFT_WITHIN_S, check=False,
    )  # fmt: skip
    if done.returncode:
        log("network: nft: %s" % done.stdout.decode("utf-8", "replace")[:500])


def _name_resolver() -> None:
    if os.path.islink("/etc/resolv.conf"):
        os.unlink("/etc/resolv.conf")
    overwrite("/etc/resolv.conf", "nameserver %s\noptions timeout:10 attempts:2\n" % _RESOLVER)


def _keep_certificates() -> None:
    """The image's bundle, to which `trust` adds ours."""
    global _bundle_bytes
    os.makedirs(_FOLDER, exist_ok=True)
    data = b""
    for path in _IMAGE_BUNDLES:
        if os.path.exists(path):
            with open(path, "rb") as file:
                data = file.read().rstrip(b"\n") + b"\n"
            break
    with open(_BUNDLE, "wb") as file:
        file.write(data)
    overwrite(_OURS, "")
    _bundle_bytes = len(data)


def trust(ca_pem: str) -> None:
    """Add the installation's certificate to what programs trust; the one before is forgotten. Cheap, and repeatable."""
    global _trusted
    if ca_pem == _trusted or not os.path.exists(_BUNDLE):
        return
    overwrite(_OURS, ca_pem)
    fd = os.open(_BUNDLE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, _bundle_bytes)
        os.pwrite(fd, ca_pem.encode("ascii"), _bundle_bytes)
    finally:
        os.close(fd)
    _trusted = ca_pem


def _tell_shells() -> None:
    """Login shells read /etc/profile.d, and sudo and su, where they use PAM, /etc/environment."""
    os.makedirs("/etc/profile.d", exist_ok=True)
    exports = "".join("export %s='%s'\n" % pair for pair in environment.items())
    overwrite("/etc/profile.d/runtime-network.sh", exports)
    try:
        with open("/etc/environment", encoding="utf-8", errors="surrogateescape") as file:
            kept = [line for line in file.read().splitlines() if line.partition("=")[0] not in environment]
    except OSError:
        kept = []
    of_image.update(variables(kept))
    overwrite("/etc/environment", "\n".join([*kept, *("%s=%s" % pair for pair in environment.items())]) + "\n")


def variables(lines: list[str]) -> dict[str, str]:
    """What lines of /etc/environment set: a name, an equals sign, a value that may stand in quotes."""
    found = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.isidentifier():
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name] = value[1:-1] if quoted else value
    return found
