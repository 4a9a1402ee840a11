"""Says how QEMU is jailed: no network, no files but its own, no other processes in sight, no privileges.

As root the jail drops to a user id of the machine's own; as an ordinary user it stays that user in a user namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

JAIL_UID_FIRST = 1_900_000_000
JAIL_UIDS = 1 << 24
"""User ids that no distribution hands out (systemd's list ends at 1,879,048,191 for containers)."""

HOST_TREE = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/alternatives", "/etc/ld.so.cache")
"""What a jail needs where the host's own QEMU is used; only those that exist, only to read."""


_STANDARD_ERROR = 2


@dataclass(frozen=True, kw_only=True)
class Jail:
    """What one jailed process may see. Pairs are (on the host, inside)."""

    root: Path | None
    """A private tree that becomes `/`; None shows the host's programs and libraries instead."""
    read_only: Sequence[tuple[Path, str]]
    writable: Sequence[tuple[Path, str]]
    devices: Sequence[tuple[Path, str]]
    uid: int | None
    """User id to drop to, where the service is root; None stays the user that we are."""


def jail_uid(machine_id: str) -> int:
    """A user id for one machine, so that two machines never share one (but by a chance of 1 in 16 million)."""
    return JAIL_UID_FIRST + int(machine_id.replace("-", "")[:6], 16) % JAIL_UIDS


def probe_argv(*, as_root: bool) -> list[str]:
    """The same jail around a program that does nothing: whether this host allows it."""
    uid = JAIL_UID_FIRST if as_root else None
    empty = Jail(root=None, read_only=(), writable=(), devices=(), uid=uid)
    return jail_argv(empty, info_fd=_STANDARD_ERROR, command=["/usr/bin/env", "true"])


def _tree(root: Path | None) -> list[str]:
    if root is not None:
        argv: list[str] = []
        for entry in sorted(root.iterdir()):
            if entry.is_symlink():
                argv += ["--symlink", str(entry.readlink()), f"/{entry.name}"]
            elif entry.name not in ("dev", "proc", "tmp", "m", "t", "i", "run", "sys"):
                argv += ["--ro-bind", str(entry), f"/{entry.name}"]
        return argv
    argv = []
    for place in HOST_TREE:
        path = Path(place)
        if path.is_symlink() and path.is_dir():
            argv += ["--symlink", str(path.readlink()), place]
        elif path.exists():
            argv += ["--ro-bind", place, place]
    return argv


def jail_argv(jail: Jail, *, info_fd: int, command: Sequence[str]) -> list[str]:
    """The whole command line. bwrap writes the pid of the command as JSON to `info_fd`."""
    argv = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if jail.uid is None:
        argv += ["--unshare-user", "--disable-userns"]
    argv += ["--as-pid-1", "--new-session", "--clearenv", "--hostname", "machine", "--info-fd", str(info_fd)]
    argv += _tree(jail.root)
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for outside, inside in jail.devices:
        argv += ["--dev-bind", str(outside), inside]
    for folder in sorted({inside.rsplit("/", 1)[0] for _, inside in jail.read_only}):
        argv += ["--perms", "0755", "--dir", folder]  # a folder that bwrap makes by itself is closed to other users
    for outside, inside in jail.read_only:
        argv += ["--ro-bind", str(outside), inside]
    for outside, inside in jail.writable:
        argv += ["--bind", str(outside), inside]
    argv += ["--chdir", "/"]
    if jail.uid is None:
        return [*argv, "--", *command]
    uid = str(jail.uid)
    drop = ["--reuid", uid, "--regid", uid, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    caps = [arg for cap in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP") for arg in ("--cap-add", cap)]
    return [*argv, *caps, "--", "/usr/bin/setpriv", *drop, "--", *command]
