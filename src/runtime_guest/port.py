"""Carries the channel's bytes: over the machine's virtio-serial port, or in tests over a Unix socket.

A virtio port whose host side is not connected reports a hang-up for ever, so a level-triggered poll would spin. The
port is therefore watched edge-triggered by an epoll of its own, and the loop watches that epoll.

    down --bytes or a connection--> up --read gives 0 / error--> down (peer told)
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Callable

PORT_NAME = "agent"
READ_BYTES = 256 * 1024
"""Taken in one turn of the loop, so that a bulk transfer leaves turns to others."""
WRITE_HIGH, WRITE_LOW = 512 * 1024, 128 * 1024
"""Unsent bytes at which senders stop, and at which they go on."""


class Wire:
    """One file descriptor that bytes come from and go to. Never raises: a broken peer is a `down`."""

    def __init__(
        self,
        *,
        received: Callable[[memoryview], None],
        down: Callable[[str], None],
        full: Callable[[], None],
        ready: Callable[[], None],
    ) -> None:
        self._received, self._down, self._full, self._ready = received, down, full, ready
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._fd = -1
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._is_full = False
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._closes = False

    def attach(self, fd: int, *, closes: bool) -> None:
        """Carry bytes over this non-blocking descriptor; one that `closes` (a socket) is closed when the peer goes."""
        self.detach("another connection came")
        if self._fd < 0:
            self._loop.add_reader(self._epoll.fileno(), self._turn)
        self._fd, self._closes = fd, closes
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        self._read()

    def detach(self, why: str) -> None:
        """Forget the descriptor, and close it if it is ours."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.unregister(fd)
        self._drop_queue()
        if self._closes:
            os.close(fd)
        self._down(why)

    def write(self, data: bytes) -> None:
        """Send, or keep what does not go now. While no peer is there, bytes are lost as on a cut wire."""
        if self._fd < 0:
            return
        view = memoryview(data)
        if not self._queue:
            view = self._push(view)
        if len(view):
            if not self._queue:
                self._watch(write=True)
            self._queue.append(view)
            self._queued += len(view)
            if self._queued >= WRITE_HIGH and not self._is_full:
                self._is_full = True
                self._full()

    def _turn(self) -> None:
        for _, what in self._epoll.poll(0):
            if what & select.EPOLLOUT and self._queue:
                self._drain()
            if what & ~select.EPOLLOUT and self._fd >= 0:
                self._read()

    def _read(self) -> None:
        """Read until there is nothing (the edge comes once only), or for one turn's worth."""
        fd, at, gone = self._fd, 0, ""
        while at < READ_BYTES:
            try:
                size = os.readv(fd, [self._view[at:]])
            except BlockingIOError:
                break
            except OSError as failure:
                gone = failure.strerror or "failed"
                break
            if size == 0:
                gone = "the host hung up"
                break
            at += size
        else:
            self._loop.call_soon(self._again, fd)
        if at:
            self._received(self._view[:at])
        if gone and self._fd == fd:
            self._hung_up(gone)

    def _again(self, fd: int) -> None:
        if self._fd == fd:
            self._read()

    def _hung_up(self, why: str) -> None:
        if self._closes:
            self.detach(why)
        else:
            self._drop_queue()
            self._down(why)  # The port stays open; the next connection of the host is the next edge.

    def _push(self, view: memoryview) -> memoryview:
        """What is left after the descriptor took what it could."""
        while len(view):
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                break
            except OSError:
                return view[:0]  # The read side learns of it too, and tells.
        return view

    def _drain(self) -> None:
        while self._queue:
            head = self._queue[0]
            rest = self._push(head)
            self._queued -= len(head) - len(rest)
            if len(rest):
                self._queue[0] = rest
                break
            self._queue.popleft()
        if not self._queue:
            self._watch(write=False)
        if self._is_full and self._queued <= WRITE_LOW:
            self._is_full = False
            self._ready()

    def _drop_queue(self) -> None:
        if self._queue and self._fd >= 0:
            self._watch(write=False)
        self._queue.clear()
        self._queued = 0
        if self._is_full:
            self._is_full = False
            self._ready()

    def _watch(self, *, write: bool) -> None:
        self._epoll.modify(self._fd, select.EPOLLIN | select.EPOLLET | (select.EPOLLOUT if write else 0))


def find_port(root: str = "/sys/class/virtio-ports") -> str | None:
    """The device of the port named `agent`; its number is not the same on every machine."""
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return None
    for name in names:
        try:
            with open(f"{root}/{name}/name", encoding="ascii") as file:
                if file.read().strip() == PORT_NAME:
                    return f"/dev/{name}"
        except OSError:
            continue
    return None


async def open_port(wire: Wire) -> None:
    """Wait until the port is there (a driver may still be loading) and carry the channel over it."""
    while (path := find_port()) is None or not os.path.exists(path):  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.05)
    wire.attach(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), closes=False)


def listen(wire: Wire, listen_fd: int) -> socket.socket:
    """Carry the channel over the newest connection to a Unix socket: what the fake driver uses instead of a port."""
    server = socket.socket(fileno=listen_fd)
    server.setblocking(False)
    server.set_inheritable(False)

    def accept() -> None:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        peer.setblocking(False)
        wire.attach(peer.detach(), closes=True)

    asyncio.get_running_loop().add_reader(server.fileno(), accept)
    return server
