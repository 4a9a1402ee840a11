"""Makes a restored copy of a machine one of its own, before any user code runs: clock, entropy, host name, ids."""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import random
import struct
import time
from typing import Any

from runtime_guest.errors import GuestError

_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_MS_BIND = 4096
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_names = ("", "")
"""Host name and machine id that this machine has."""


def become(params: dict[str, Any], *, machine: bool) -> dict[str, Any]:
    """Take the identity. Repeatable: the last one counts. Where we are no machine (tests), only say what was asked.

    Raises GuestError when a value is missing or malformed.
    """
    try:
        clock_ns = int(params["clock_ns"])
        seed = base64.b64decode(params["entropy"], validate=True)
        hostname, machine_id = str(params["hostname"]), str(params["machine_id"])
    except (KeyError, ValueError, TypeError) as wrong:
        raise GuestError("invalid_request", f"identify: {wrong}", field=str(wrong)) from wrong
    if len(seed) < 32:
        raise GuestError("invalid_request", "identify: at least 32 bytes of entropy", field="entropy")
    before_ns = time.monotonic_ns()
    reseeded = False
    if machine:
        time.clock_settime_ns(time.CLOCK_REALTIME, clock_ns)
        reseeded = _reseed(seed)
        _set_names(hostname, machine_id, params.get("boot_id"))
    random.seed(int.from_bytes(os.urandom(32) + seed, "little"))
    late_ns = time.monotonic_ns() - before_ns
    return {"clock_ns": time.time_ns(), "worked_ns": late_ns, "entropy_reseeded": reseeded}


def _reseed(seed: bytes) -> bool:
    """Mix the host's bytes into the kernel's pool, count them as entropy, and make every generator start anew."""
    try:
        fd = os.open("/dev/random", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.ioctl(fd, _RNDADDENTROPY, struct.pack("ii", len(seed) * 8, len(seed)) + seed)
        fcntl.ioctl(fd, _RNDRESEEDCRNG, 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _set_names(hostname: str, machine_id: str, boot_id: object) -> None:
    """What is the same already is left alone: a machine that goes on has it, and may have changed its files itself."""
    global _names
    if (hostname, machine_id) != _names:
        try:
            overwrite("/proc/sys/kernel/hostname", hostname)
            overwrite("/etc/hostname", hostname + "\n")
            overwrite("/etc/hosts", _hosts(hostname))
            overwrite("/etc/machine-id", machine_id + "\n")
        except OSError as failure:  # A read-only or full disk: the name in the kernel is what counts.
            log(f"identity files: {failure}")
        _names = (hostname, machine_id)
    if isinstance(boot_id, str):
        _set_boot_id(boot_id)


def _hosts(hostname: str) -> str:
    """The image's own lines, with the loopback and our name before them."""
    try:
        fd = os.open("/etc/hosts", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        lines = []
    else:
        try:
            lines = os.read(fd, os.fstat(fd).st_size).decode("utf-8", "surrogateescape").splitlines()
        finally:
            os.close(fd)
    ours = ("127.0.0.1", "127.0.1.1")
    kept = [line for line in lines if line.split()[:1] not in ([ours[0]], [ours[1]]) or line.endswith("# kept")]
    return "\n".join(["127.0.0.1\tlocalhost", f"127.0.1.1\t{hostname}", *kept]) + "\n"


def _set_boot_id(boot_id: str) -> None:
    """The kernel chose it before the template was saved; every clone would show the same."""
    path = "/run/runtime/boot_id"
    try:
        os.makedirs("/run/runtime", exist_ok=True)
        overwrite(path, boot_id + "\n")
        if not os.path.samefile(path, _BOOT_ID):
            mount(path, _BOOT_ID, None, _MS_BIND)
    except OSError as failure:
        log(f"boot id: {failure}")


def overwrite(path: str, text: str) -> None:
    """Write a file in place: these may be bind mounts, which cannot be renamed over.

    What is too long is cut off after the write: a file that was empty in between is one that ext4 writes to the disk
    when it is closed, which a start would wait for.
    """
    data = text.encode("utf-8", "surrogateescape")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
        if os.fstat(fd).st_size > len(data):
            os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags),
        data.encode() if data else None,
    )  # fmt: skip
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def log(text: str) -> None:
    """A line on the machine's console, for whoever looks at a machine that does not come up."""
    try:
        fd = os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        fd = os.dup(2)  # No machine, no console.
    try:
        os.write(fd, f"runtime-agent: {text}\n".encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        os.close(fd)
