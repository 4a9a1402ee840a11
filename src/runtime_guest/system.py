"""Brings a machine up as its PID 1 (mounts, loopback, limits, the user that commands run as) and powers it off."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable

from runtime_guest import users
from runtime_guest.cgroups import ROOT as CGROUP_ROOT
from runtime_guest.identity import log, mount

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_MOUNTS = (
    ("/proc", "proc", _NOSUID | _NODEV | _NOEXEC, None),
    ("/sys", "sysfs", _NOSUID | _NODEV | _NOEXEC, None),
    ("/dev", "devtmpfs", _NOSUID, "mode=755"),
    ("/dev/pts", "devpts", _NOSUID | _NOEXEC, "mode=620,ptmxmode=666,gid=5"),
    ("/dev/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777"),
    ("/run", "tmpfs", _NOSUID | _NODEV, "mode=755,size=25%"),
)
_SIOCSIFFLAGS, _SIOCGIFFLAGS, _IFF_UP = 0x8914, 0x8913, 1
_OPEN_FILES = (65_536, 524_288)
"""Soft and hard: programs that close every possible descriptor stay fast, those that need many can ask."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def bring_up() -> None:
    """Every step is tried, whatever became of the one before: a machine that answers can be looked into."""
    os.environ["PATH"] = _PATH
    for step in (_mount_all, _loopback, _limits, _protect, _make_user, _ignore_signals):
        attempt(step.__name__.strip("_"), step)


def attempt(what: str, step: Callable[[], object]) -> None:
    """Do it; a failure is a line on the console and nothing more."""
    try:
        step()
    except (OSError, ValueError) as failure:
        log(f"{what}: {failure}")


def _mount_all() -> None:
    for target, kind, flags, data in _MOUNTS:
        if _is_mounted(target):
            continue
        os.makedirs(target, exist_ok=True)
        attempt(f"mount {target}", lambda t=target, k=kind, f=flags, d=data: mount(k, t, k, f, d))  # type: ignore[misc]
    if not os.path.exists(f"{CGROUP_ROOT}/cgroup.procs"):
        try:
            mount("cgroup2", CGROUP_ROOT, "cgroup2", _NOSUID | _NODEV | _NOEXEC, "favordynmods")
        except OSError:  # A kernel before 6.0 does not know the option, which only makes starts cheaper.
            attempt("cgroup2", lambda: mount("cgroup2", CGROUP_ROOT, "cgroup2", _NOSUID | _NODEV | _NOEXEC))
    for path, target in (("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0"),
                         ("/dev/stdout", "/proc/self/fd/1"), ("/dev/stderr", "/proc/self/fd/2")):  # fmt: skip
        if not os.path.lexists(path):
            os.symlink(target, path)
    for path in ("/tmp", "/var/tmp"):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o1777)


def _is_mounted(path: str) -> bool:
    try:
        return os.stat(path).st_dev != os.stat(os.path.dirname(path)).st_dev
    except OSError:
        return False


def _loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _limits() -> None:
    """What PID 1 has, every command inherits."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))


def _protect() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("-1000")


def _make_user() -> None:
    """An image that we did not build has no user of ours; its own uid 1000, if any, serves."""
    os.makedirs(users.HOME, exist_ok=True)
    if os.stat(users.HOME).st_uid == 0:
        os.chown(users.HOME, users.SANDBOX_UID, users.SANDBOX_UID)
    with open("/etc/passwd", "a+", encoding="utf-8", errors="surrogateescape") as file:
        file.seek(0)
        if any(line.split(":")[2:3] == [str(users.SANDBOX_UID)] for line in file):
            return
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        name, uid = users.SANDBOX_LOGIN, users.SANDBOX_UID
        file.write(f"{name}:x:{uid}:{uid}::{users.HOME}:{shell}\n")
    with open("/etc/group", "a", encoding="utf-8") as file:
        file.write(f"{users.SANDBOX_LOGIN}:x:{users.SANDBOX_UID}:\n")


def _ignore_signals() -> None:
    """PID 1 ends only by its own will. Handled and not ignored: what is ignored would be inherited by every command."""
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda *_: None)


def power_off() -> None:
    """Flush the disks and end the machine. Does not return on one."""
    os.sync()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.reboot(0x4321FEDC)
    libc.reboot(0x01234567)  # A machine without power management: restarting ends it too, its monitor does not reboot.
