"""What a program reads when its request was refused or did not arrive: short, in the program's own terms. Pure."""

from __future__ import annotations

import re

from runtimed.egress.http1 import encode_head

_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    408: b"Request Timeout",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    502: b"Bad Gateway",
    504: b"Gateway Timeout",
}
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def page(status: int, text: str, *, rule: str | None = None, method: bytes = b"GET") -> bytes:
    """A whole response that ends the connection. `text` and `rule` may hold what the guest sent."""
    body = f"Runtime: {text}\n".encode()
    headers = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", str(len(body)).encode()),
        (b"Connection", b"close"),
        (b"Cache-Control", b"no-store"),
    ]
    if rule is not None:
        headers.append((b"X-Runtime-Rule", re.sub(rb"[^\x20-\x7e]", b"?", rule.encode("ascii", "replace"))[:300]))
    head = encode_head(b"HTTP/1.1 %d %s" % (status, _REASONS[status]), tuple(headers))
    return head if method == b"HEAD" else head + body
