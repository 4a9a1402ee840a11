"""Speaks QMP to one QEMU for a few commands, then hangs up; the monitor socket stays free for the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qemu.qmp import QMPClient, QMPError

from runtimed.node.vmm.argv import QMP_SOCKET


async def connect_unix(path: Path, *, within_s: float) -> socket.socket:
    """A connected, non-blocking Unix socket, however long its path is.

    Waits for the socket to appear and to listen. The kernel's limit of 107 bytes is avoided by naming the folder
    through an open descriptor.

    Raises:
        TimeoutError: nothing listened within `within_s` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        while True:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                await loop.sock_connect(link, f"/proc/self/fd/{folder}/{path.name}")
                return link
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                link.close()
            except BaseException:
                link.close()
                raise
            if loop.time() > deadline:
                raise TimeoutError(f"{path.name} did not listen within {within_s:g} s")
            await asyncio.sleep(0.002)
    finally:
        os.close(folder)


@asynccontextmanager
async def monitor(own: Path, *, within_s: float = 10.0) -> AsyncIterator[QMPClient]:
    """A QMP session with the machine whose own folder this is.

    Raises:
        TimeoutError: the monitor did not answer within `within_s` seconds.
        ConnectionError: the machine went away.
    """
    link = await connect_unix(own / QMP_SOCKET, within_s=within_s)
    client = QMPClient("machine")
    try:
        async with asyncio.timeout(within_s):
            await client.connect(link)
        yield client
    except QMPError as failure:
        raise ConnectionError(f"the machine's monitor failed: {failure}") from failure
    finally:
        with contextlib.suppress(EOFError, OSError, QMPError):  # it may have ended while we hung up
            await client.disconnect()
