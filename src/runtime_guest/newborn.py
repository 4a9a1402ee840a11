"""Makes a child process that only makes the system calls of a list, of which the last that works is exec.

Python's own fork copies the agent's page tables and then every page that either side touches: 30 ms under emulation,
three times what the program itself needs to start. Here the child borrows the parent's memory until exec, as vfork's
does (10 ms), and is born in its cgroup. So it can have no Python in it: it is 18 instructions that walk a table of
calls. Where they are not known (another processor, a kernel that refuses clone3) os.fork serves, with the same table.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import threading
from typing import NamedTuple, NoReturn

_X86_64 = {
    "write": 1, "close": 3, "rt_sigaction": 13, "rt_sigprocmask": 14, "ioctl": 16, "execve": 59, "chdir": 80,
    "umask": 95, "setsid": 112, "setgroups": 116, "setresuid": 117, "setresgid": 119, "exit_group": 231,
    "openat": 257, "dup3": 292,
}  # fmt: skip
_AARCH64 = {
    "dup3": 24, "ioctl": 29, "chdir": 49, "openat": 56, "close": 57, "write": 64, "exit_group": 94,
    "rt_sigaction": 134, "rt_sigprocmask": 135, "setresuid": 147, "setresgid": 149, "setsid": 157, "setgroups": 159,
    "umask": 166, "execve": 221,
}  # fmt: skip
_NUMBERS = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})

_CLONE3 = 435
_CLONE_VM, _CLONE_VFORK, _CLONE_CLEAR_SIGHAND, _CLONE_INTO_CGROUP = 0x100, 0x4000, 0x1_0000_0000, 0x2_0000_0000
_MASK = (1 << 64) - 1
AT_FDCWD = -100 & _MASK
_TO_THE_END = 1
"""Stands for the distance to the last entry until the list is complete."""
_NOT_MADE = 1 << 62
"""In the place of a result: the call was not made, or it was the exec that worked."""
_TABLES_KEPT = 8
_ENTRY = struct.Struct("<8Q")
"""Number, five arguments, how many bytes further the next entry is when this call fails, result."""

# long f(struct clone_args *rdi, size_t rsi, entry *rdx)
_CODE = bytes.fromhex(
    "4989d1"  # mov  r9, rdx
    "b8b3010000"  # mov  eax, 435      clone3(rdi, rsi)
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "7401"  # jz   child
    "c3"  # ret                the parent, once the child has made its exec or ended
    # child: it shares the parent's stack and never touches it
    "498b01"  # mov  rax, [r9]
    "498b7908"  # mov  rdi, [r9+8]
    "498b7110"  # mov  rsi, [r9+16]
    "498b5118"  # mov  rdx, [r9+24]
    "4d8b5120"  # mov  r10, [r9+32]
    "4d8b4128"  # mov  r8, [r9+40]
    "0f05"  # syscall
    "49894138"  # mov  [r9+56], rax
    "483d01f0ffff"  # cmp  rax, -4095
    "7206"  # jb   worked
    "4d034930"  # add  r9, [r9+48]
    "ebd5"  # jmp  child
    "4983c140"  # worked: add r9, 64
    "ebcf"  # jmp  child
)


class Failed(NamedTuple):
    """A call that did not work."""

    name: str
    errno: int


class Calls:
    """The list that a child will work through. Whatever the arguments point at stays alive with it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._words: list[int] = []
        self._kept: list[object] = []

    def add(self, name: str, *arguments: int, must: bool = True) -> None:
        """Append a call. Where a call that `must` work fails, the child makes the last call of the list: it ends."""
        self._names.append(name)
        self._words += (_NUMBERS[name], *arguments, 0, 0, 0, 0, 0)[:6]
        self._words += (_TO_THE_END if must else _ENTRY.size, _NOT_MADE)

    def text(self, data: bytes) -> int:
        """Where the child finds these bytes, with a zero behind them."""
        return self._pointer(ctypes.c_char_p(data))

    def numbers(self, values: tuple[int, ...]) -> int:
        """Where the child finds these as 32-bit numbers."""
        array = (ctypes.c_uint32 * len(values))(*values)
        self._kept.append(array)
        return ctypes.addressof(array)

    def strings(self, items: list[bytes]) -> int:
        """Where the child finds a null-terminated array of these, for exec."""
        array = (ctypes.c_char_p * (len(items) + 1))(*items, None)
        self._kept.append(array)
        return ctypes.addressof(array)

    def _pointer(self, text: ctypes.c_char_p) -> int:
        self._kept.append(text)
        return ctypes.cast(text, ctypes.c_void_p).value or 0

    @property
    def size(self) -> int:
        """Bytes of its table."""
        return len(self._words) * 8

    def write(self, table: mmap.mmap) -> None:
        """Put the list there as the child reads it."""
        words, last = self._words, len(self._names) - 1
        for index in range(last + 1):
            if words[index * 8 + 6] == _TO_THE_END:
                words[index * 8 + 6] = (last - index) * _ENTRY.size
        struct.pack_into(f"<{len(words)}Q", table, 0, *words)

    def failures(self, table: mmap.mmap) -> list[Failed]:
        """What did not work, in the order of the list."""
        results = struct.unpack_from(f"<{len(self._words)}Q", table)[7::8]
        return [Failed(self._names[at], _MASK + 1 - value) for at, value in enumerate(results) if value > _MASK - 4095]


class Newborn(NamedTuple):
    pid: int
    failures: list[Failed]


class Midwife:
    """Starts children. One for the process; its threads may call it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._page: mmap.mmap | None = None
        self._tables: list[mmap.mmap] = []
        """Memory for lists of calls, which both sides see also after a fork; kept, because making it costs a start."""
        if platform.machine() == "x86_64" and struct.calcsize("P") == 8:
            self._prepare()

    def _prepare(self) -> None:
        try:
            page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        except OSError:  # A system that allows no memory to be both written and run.
            return
        page.write(_CODE)
        self._page = page
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self._code = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(address)

    @property
    def borrows(self) -> bool:
        """Whether children borrow memory, and not copy it."""
        return self._page is not None

    def start(self, calls: Calls, cgroup_fd: int) -> Newborn:
        """Blocks until the child's exec worked or it has ended. Raises OSError when there is no child.

        `cgroup_fd` is the folder of the child's cgroup, or -1. Call it from a thread with every signal blocked: none
        may be handled while the child is in our memory.
        """
        table = self._table(calls.size)
        calls.write(table)
        pid = self._borrowed(table, cgroup_fd) if self._page is not None else None
        if pid is None:
            pid = self._forked(calls, table, cgroup_fd)
        failures = calls.failures(table)
        if len(table) == mmap.PAGESIZE and len(self._tables) < _TABLES_KEPT:
            self._tables.append(table)
        return Newborn(pid, failures)

    def _table(self, size: int) -> mmap.mmap:
        if size <= mmap.PAGESIZE:
            try:
                return self._tables.pop()
            except IndexError:
                return mmap.mmap(-1, mmap.PAGESIZE)
        return mmap.mmap(-1, size)

    def _borrowed(self, table: mmap.mmap, cgroup_fd: int) -> int | None:
        flags = _CLONE_VM | _CLONE_VFORK | _CLONE_CLEAR_SIGHAND | (_CLONE_INTO_CGROUP if cgroup_fd >= 0 else 0)
        arguments = struct.pack("<11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, max(cgroup_fd, 0))
        block = ctypes.create_string_buffer(arguments, len(arguments))
        first = ctypes.c_char.from_buffer(table)
        pid: int = self._code(ctypes.addressof(block), len(arguments), ctypes.addressof(first))
        del first
        if pid in (-errno.ENOSYS, -errno.EPERM):  # A kernel or a filter that knows no clone3, and will not learn it.
            self._page = None
            return None
        if pid == -errno.EAGAIN:  # No process more may be born in the cgroup, but one may still join it.
            return None
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def _forked(self, calls: Calls, table: mmap.mmap, cgroup_fd: int) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            with self._lock:
                pid = os.fork()
            if pid == 0:
                self._walk(table, cgroup_fd)
        except BaseException:
            os.close(read_fd)
            os.close(write_fd)
            raise
        os.close(write_fd)
        os.read(read_fd, 1)  # Until exec, or the end, closes the child's copy.
        os.close(read_fd)
        return pid

    def _walk(self, table: mmap.mmap, cgroup_fd: int) -> NoReturn:
        """The same walk, in Python."""
        try:
            if cgroup_fd >= 0:
                procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
                os.write(procs, b"0")
            at = 0
            while True:
                number, *arguments, further, _ = _ENTRY.unpack_from(table, at)
                result = self._libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(value) for value in arguments))
                value = _MASK + 1 - ctypes.get_errno() if result == -1 else result
                struct.pack_into("<Q", table, at + 56, value)
                at += further if result == -1 else _ENTRY.size
        finally:
            os._exit(127)
