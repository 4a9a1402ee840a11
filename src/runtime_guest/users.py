"""Knows the users that commands and files belong to, read from the image's own /etc/passwd and /etc/group."""

from __future__ import annotations

import os
from typing import NamedTuple

SANDBOX = "sandbox"
ROOT = "root"
SANDBOX_UID = 1000
SANDBOX_LOGIN = "runtime"
HOME = "/workspace"


class User(NamedTuple):
    name: str
    """What the host calls it: sandbox or root."""
    login: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def _lines(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _load(name: str) -> User:
    uid, login, gid, home, shell = (0, "root", 0, "/root", "") if name == ROOT else (
        SANDBOX_UID, SANDBOX_LOGIN, SANDBOX_UID, HOME, "")  # fmt: skip
    if os.getuid() != 0 or not _has_uid(uid):
        uid, gid = os.getuid(), os.getgid()  # A developer's host without root: every user is the one that we are.
    for fields in _lines("/etc/passwd"):
        if len(fields) >= 7 and fields[2] == str(uid):
            login, gid, home, shell = fields[0], int(fields[3]), fields[5], fields[6]
            break
    if name == SANDBOX:
        home = HOME
    groups = {gid}
    for fields in _lines("/etc/group"):
        if len(fields) >= 4 and login in fields[3].split(","):
            groups.add(int(fields[2]))
    return User(name, login, uid, gid, tuple(sorted(groups)), home, shell or _shell())


def _has_uid(uid: int) -> bool:
    """Whether our user namespace knows the uid (a machine's does; the fake driver's may hold one user only)."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            spans = [[int(x) for x in line.split()] for line in file]
    except OSError:
        return True
    return any(first <= uid < first + count for first, _, count in spans)


class Users:
    """Users by the host's names, read again when the image's files change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], User]] = {}
        self._names: tuple[tuple[int, int], dict[int, str], dict[int, str]] | None = None

    def get(self, name: str) -> User:
        """The user that the host calls `sandbox` or `root`."""
        stamp = self._stamp()
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = self._known[name] = (stamp, _load(name))
        return known[1]

    def owner(self, uid: int) -> str:
        return self._maps()[0].get(uid, str(uid))

    def group(self, gid: int) -> str:
        return self._maps()[1].get(gid, str(gid))

    def _maps(self) -> tuple[dict[int, str], dict[int, str]]:
        stamp = self._stamp()
        if self._names is None or self._names[0] != stamp:
            self._names = (stamp, _by_id("/etc/passwd"), _by_id("/etc/group"))
        return self._names[1], self._names[2]

    @staticmethod
    def _stamp() -> tuple[int, int]:
        return _changed("/etc/passwd"), _changed("/etc/group")


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _by_id(path: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for fields in _lines(path):
        if len(fields) >= 3 and fields[2].isdigit():
            found.setdefault(int(fields[2]), fields[0])
    return found
