"""Does what differs between asyncio and threads: waiting, locking, connections, work in the background."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

HttpClient = httpx.Client
Lock = threading.Lock
sleep = time.sleep
INTERRUPTS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)
"""What ends a wait from outside."""


def home() -> object:
    """What an HTTP client may not be carried away from: here nothing, any thread may use it."""
    return None


def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run blocking work. It is given an event that is set when nobody waits for it any more."""
    return work(threading.Event())


def disk(work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - as given to the work
    """Run work on local files, which may block for as long as a disk does."""
    return work(*args)


def finish(work: Callable[[], object], *, within_s: float) -> None:
    """Do the last work of something, for at most so many seconds.

    A Ctrl-C that comes meanwhile is raised when the work is done; a second one ends it.
    """
    worker = threading.Thread(target=work, daemon=True, name="withruntime-finish")
    worker.start()
    deadline = time.monotonic() + within_s
    interrupt: KeyboardInterrupt | None = None
    while worker.is_alive() and (left_s := deadline - time.monotonic()) > 0:
        try:
            worker.join(left_s)
        except KeyboardInterrupt as error:
            if interrupt is not None:
                raise
            interrupt = error
    if interrupt is not None:
        raise interrupt


@contextlib.contextmanager
def cut_after(response: httpx.Response, seconds: float | None) -> Iterator[None]:
    """Break off the reading of an answer at a moment, however much the other side still drips."""
    if seconds is None:
        yield
        return
    over = threading.Event()

    def cut() -> None:
        over.set()
        stream = response.extensions.get("network_stream")
        sock = stream.get_extra_info("socket") if stream is not None else None
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except httpx.TransportError as error:
        if over.is_set():
            raise httpx.ReadTimeout("its time is over", request=response.request) from error
        raise
    finally:
        timer.cancel()


def chunks_of(response: httpx.Response, left_s: Callable[[], float | None]) -> Iterator[bytes]:
    """Yield a body as it comes; no chunk is waited for longer than is left."""
    with cut_after(response, left_s()):
        yield from response.iter_raw()


@contextlib.contextmanager
def closing(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close an iterator that is left half way here and now, and with it the connection under it."""
    try:
        yield items
    finally:
        if isinstance(items, Generator):
            items.close()


def for_each(items: Iterable[T], work: Callable[[T], object], *, at_once: int) -> None:
    """Do the work for every item, some at once; the first failure ends the rest."""
    queue = iter(items)
    taking = threading.Lock()
    failed = threading.Event()

    def worker() -> None:
        try:
            while not failed.is_set():
                with taking:
                    try:
                        item = next(queue)
                    except StopIteration:
                        return
                work(item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(at_once, thread_name_prefix="withruntime") as pool:
        workers = [pool.submit(worker) for _ in range(at_once)]
        try:
            wait(workers, return_when=FIRST_EXCEPTION)
        except BaseException:
            failed.set()
            raise
    for one in workers:
        one.result()


def repeat(round_: Callable[[], bool], *, every_s: float) -> Callable[[], None]:
    """Do a round now and then until it answers False. Returns what stops it."""
    stopped = threading.Event()

    def rounds() -> None:
        while not stopped.is_set() and round_():
            stopped.wait(every_s)

    threading.Thread(target=rounds, daemon=True, name="withruntime-repeat").start()
    return stopped.set


def told(answer: object) -> None:
    """A caller's callback has run; there is nothing to wait for."""
