"""`pip install` through an allow list of exactly the hosts of this machine's own package index, whatever that is."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from withruntime import Runtime

from .fixtures import start_service, stop_service

pytestmark = [pytest.mark.system, pytest.mark.slow]

PACKAGE = "iniconfig"
"""Small, pure Python, without dependencies."""
BUNDLES = (os.environ.get("PIP_CERT", ""), "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def index_url() -> str:
    """What pip on this machine uses: its setting, else its own default."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    url = os.environ.get("PIP_INDEX_URL") or told
    return (
        url
        or subprocess.run([sys.executable, "-c", default], capture_output=True, text=True, check=True).stdout.strip()
    )


def hosts_of(url: str) -> set[str]:
    """The index's host and those of the package's files."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        pytest.skip("this machine's package index is not on the network")
    page_url = f"{url.rstrip('/')}/{PACKAGE}/"
    try:
        page = urllib.request.urlopen(page_url, timeout=20).read().decode()
    except OSError as failure:
        pytest.skip(f"this machine's package index cannot be reached: {type(failure).__name__}")
    links = [urllib.parse.urljoin(page_url, link) for link in re.findall(r'href="([^"#]+)', page)]
    return {host for link in (url, *links) if (host := urllib.parse.urlsplit(link).hostname)}


def addresses_of(hosts: set[str]) -> set[str]:
    """Those that are not public, such as a mirror's: an operator opens them."""
    found = {info[4][0] for host in hosts for info in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)}
    return {str(address) for address in found if not ipaddress.ip_address(address).is_global}


def test_pip_installs_from_this_machines_own_index_and_reaches_nothing_else(tmp_path) -> None:
    url = index_url()
    hosts = hosts_of(url)
    (tmp_path / "config.toml").write_text(f'spares = 0\negress_open_ranges = "{",".join(addresses_of(hosts))}"\n')
    bundle = next(Path(place) for place in BUNDLES if place and Path(place).exists())
    process, known = start_service(tmp_path)
    try:
        key = (tmp_path / "key").read_text().strip()
        rules = {"internet": True, "allow": sorted(hosts)}
        with Runtime(api_key=key, base_url=known["url"]) as client, client.sandboxes.create(network=rules) as sandbox:
            sandbox.files.write("/tmp/bundle.pem", bundle.read_bytes())
            env = {"REQUESTS_CA_BUNDLE": "/tmp/bundle.pem", "PIP_INDEX_URL": url}
            command = f"pip install --no-cache-dir {PACKAGE} && python3 -c 'import {PACKAGE}; print(\"imported\")'"
            done = sandbox.exec(command, env=env, timeout_ms=240_000)
            other = sandbox.exec("curl -s -m 20 http://other.test/", timeout_ms=60_000)

            assert done.exit_code == 0 and done.stdout.rstrip().endswith("imported"), done.stdout + done.stderr
            assert other.stdout == "Runtime: other.test:80 is refused: not in allow\n"
            reached = {r["host"] for r in sandbox.network.records(limit=1000)["data"] if r["allowed"]}
            assert reached and reached <= hosts
    finally:
        stop_service(process)
