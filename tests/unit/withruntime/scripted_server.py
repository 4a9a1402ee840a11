"""A very small HTTP server whose every answer is scripted by the test; it knows nothing about sandboxes."""

import contextlib
import io
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """What a client sent, with its raw body."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)

    @property
    def json(self) -> dict:
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One scripted answer. `drop_after` cuts the connection with a reset after so many body bytes."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    chunks: tuple[bytes, ...] | None = None
    hold: threading.Event | None = None
    """Answer only once this is set."""
    hold_end: threading.Event | None = None
    """Send the body, and end it only once this is set."""
    drop_after: int | None = None


def answer(value: object, status: int = 200, **headers: str) -> Reply:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body=json.dumps(value).encode(), headers=named)


def refusal(status: int, code: str, **more: object) -> Reply:
    return answer({"error": {"code": code, "message": f"{code} it is", "requestId": "req_1", **more}}, status)


def ndjson(*events: dict, drop: bool = False) -> Reply:
    """A stream of events, one line in each chunk; `drop` ends it with a reset instead of a last chunk."""
    lines = tuple(json.dumps(event).encode() + b"\n" for event in events)
    return Reply(chunks=lines, drop_after=sum(map(len, lines)) if drop else None)


RESET = Reply(drop_after=-1)
Responder = Reply | Callable[[Request], Reply]


class ScriptedServer:
    """Answers each route with its scripted replies in turn; the last one is repeated."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._script: list[tuple[str, re.Pattern[str], list[Responder]]] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def on(self, method: str, path: str, *replies: Responder) -> None:
        """Script a route; `path` is a regular expression for the whole decoded path."""
        self._script.insert(0, (method, re.compile(path), list(replies)))

    def sent(self, method: str, path: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and re.fullmatch(path, r.path)]

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ValueError), sock.makefile("rb") as reader:
            while (request := _read_request(reader)) is not None:
                if not self._reply(sock, request):
                    break
        self._open.discard(sock)

    def _reply(self, sock: socket.socket, request: Request) -> bool:
        with self._lock:
            self.requests.append(request)
            responder = self._next(request)
        reply = responder if isinstance(responder, Reply) else responder(request)
        if reply.hold is not None:
            reply.hold.wait(60)
        if reply.drop_after == -1:
            _reset(sock)
            return False
        head = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in reply.headers.items())]
        head.append(f"Content-Length: {len(reply.body)}" if reply.chunks is None else "Transfer-Encoding: chunked")
        sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
        left = reply.drop_after
        for piece in (reply.body,) if reply.chunks is None else reply.chunks:
            part = piece if left is None else piece[:left]
            framed = part if reply.chunks is None else b"%x\r\n%s\r\n" % (len(part), part)
            sock.sendall(framed if part or reply.chunks is None else b"")
            left = None if left is None else left - len(part)
        if left is not None:
            return False
        if reply.hold_end is not None:
            reply.hold_end.wait(60)
        if reply.chunks is not None:
            sock.sendall(b"0\r\n\r\n")
        return True

    def _next(self, request: Request) -> Responder:
        for method, pattern, replies in self._script:
            if method == request.method and pattern.fullmatch(request.path):
                return replies.pop(0) if len(replies) > 1 else replies[0]
        return refusal(404, "route_not_found")


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _read_request(reader: io.BufferedReader) -> Request | None:
    line = reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while line := reader.readline().decode().strip():
        name, _, text = line.partition(":")
        headers[name.lower()] = text.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_read_chunks(reader))
    else:
        body = reader.read(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


def _read_chunks(reader: io.BufferedReader) -> Iterator[bytes]:
    while size := int(reader.readline(), 16):
        yield reader.read(size)
        reader.readline()
    reader.readline()
