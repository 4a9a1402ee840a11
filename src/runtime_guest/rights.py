"""Lets blocking file work run in threads that have one user's file rights and no others.

Linux keeps the ids that file access is checked with per thread. A thread of the sandbox user's pool gives up root's
once and for ever: its file-system ids and groups are the user's, and with them go root's overriding capabilities.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from runtime_guest.users import User, Users

T = TypeVar("T")

THREADS = 6
"""For each user. More do not make a disk faster, and each that hangs in a strange file system is lost."""
TRANSFERS = 4
"""Threads for each user that wait for the host in between: archives on their way in."""
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_libc = ctypes.CDLL(None, use_errno=True)


def _take_rights(user: User) -> None:
    """For the calling thread only; glibc's own setgroups would change all of them."""
    if os.getuid() != 0 or user.uid == 0:
        return
    number = _SETGROUPS.get(platform.machine())
    groups = (ctypes.c_uint32 * len(user.groups))(*user.groups)
    if number is None or _libc.syscall(ctypes.c_long(number), ctypes.c_long(len(user.groups)), groups) != 0:
        raise OSError(ctypes.get_errno(), "the thread could not take the user's groups")
    _libc.setfsgid(user.gid)
    _libc.setfsuid(user.uid)
    if _libc.setfsuid(-1) != user.uid:
        raise OSError(1, "the thread could not become the user")


class Workers:
    """Threads by user. A user that the image redefines gets new threads."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._pools: dict[tuple[User, bool], ThreadPoolExecutor] = {}

    async def run(self, user: str, work: Callable[[], T], *, transfer: bool = False) -> T:
        """Do blocking work with the rights of `sandbox` or `root`. Raises what the work raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool(user, transfer), work)

    def _pool(self, user: str, transfer: bool) -> ThreadPoolExecutor:
        known = self._users.get(user)
        pool = self._pools.get((known, transfer))
        if pool is None:
            pool = self._pools[known, transfer] = ThreadPoolExecutor(
                TRANSFERS if transfer else THREADS, initializer=_take_rights, initargs=(known,)
            )
        return pool
