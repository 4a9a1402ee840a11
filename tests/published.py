"""Environments with published packages in them, made once in the user's cache and shared by every run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from runtimed.core import file_lock
from runtimed.settings import default_cache_dir

CLIENT = "withruntime==0.35.0"
FETCH_S = 400


def python_with(name: str, *pins: str) -> Path:
    """The interpreter of an environment with these packages, in these versions, beside the public client.

    Skips the test where they cannot be fetched. Run it with `-I`: with our own sources in its path, it would be our
    own client that is tried.
    """
    key = hashlib.sha256("\n".join((*pins, CLIENT, sys.version)).encode()).hexdigest()[:12]
    folder = default_cache_dir() / f"published-{name}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with file_lock.held(folder.parent / ".published.lock"):
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
            _fetch(python, pins)
            (folder / "ready").touch()
    return python


def _fetch(python: Path, pins: tuple[str, ...]) -> None:
    # Compiled when they are used: most of these packages never are.
    pip = ("-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    wanted = pins[0] if pins else CLIENT
    try:
        # With the caller's proxies: this one download may need them.
        fetched = subprocess.run([sys.executable, *pip, *pins, CLIENT], capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{wanted} cannot be fetched here within {FETCH_S} s")
    if fetched.returncode != 0:
        pytest.skip(f"{wanted} cannot be fetched here: {fetched.stderr.strip()[-300:]}")
