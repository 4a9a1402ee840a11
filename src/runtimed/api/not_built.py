"""Names of the wire protocol that this version does not have: each is refused by name, so that no client guesses."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from runtimed.api.answering import not_built
from runtimed.api.envelope import error_body

_METHODS = ["GET", "POST", "PUT", "DELETE"]
_VERBS = ("resize", "switch-image")
_INSIDE = (
    *("interpreter", "network", "previews", "metrics", "desktop", "browser", "mounts", "mcp", "tailscale"),
    *("sessions", "terminal", "tunnel", "files/watches"),
)
_INSIDE_VERBS = (
    *("interpreter:run", "files:link", "files:revoke-links", "desktop:start", "desktop:stop", "desktop:act"),
    *("browser:start", "browser:stop", "mounts:unmount"),
)
_WEBSOCKETS = ("terminal", "tunnel")
_PRODUCTS = (
    *("images", "volumes", "volume-backups", "events", "webhooks", "webhook-deliveries", "otel-exports"),
    *("usage", "switching", "audit", "notices", "mcp", "egress-secrets", "secrets", "jobs", "job-runs", "job-imports"),
    *("reservations", "domains", "ports", "ips", "networks", "billing", "plans", "referrals", "sso", "feedback"),
    *("support", "apps", "functions", "containers", "repositories", "builds", "ci", "agents", "account"),
)

_NEAREST = {
    "interpreter": ("the code interpreter", "run the code as a command: exec(['python3', '-c', code])"),
    "previews": ("sharing a port", "visit it inside the sandbox, with a command such as curl"),
    "tunnel": ("forwarding a port", "visit it inside the sandbox, with a command such as curl"),
    "terminal": ("terminals over WebSocket", "spawn a process with a pty: write to it and follow its output"),
    "files": ("links to files and watches", "read, write and list files by the API"),
    "resize": ("changing the size", "take a snapshot of mode disk, and create from it with another size"),
    "switch-image": ("changing the image", "create a sandbox of the other image, and move the files by files/archive"),
    "sessions": ("session tokens", "use an API key; `runtime admin key create` makes one with a limit"),
}
"""What each is in words, and what does nearly the same today: whoever asks is often a model, or an adapter for one."""

router = APIRouter(prefix="/v1", include_in_schema=False)


async def refuse(request: Request) -> Response:
    """Always raises Unavailable."""
    first, _, rest = request.url.path.removeprefix("/v1/").partition("/")
    if first != "sandboxes":
        raise not_built(f"{request.method} {first}")
    of_sandbox = rest.partition("/")[0].partition(":")[2]
    asked = of_sandbox or rest.partition("/")[2]
    words, hint = _NEAREST.get(asked.partition("/")[0].partition(":")[0], (None, None))
    raise not_built(f"{words} ({asked})" if words else f"{request.method} {asked}", hint=hint)


async def refuse_by_frame(socket: WebSocket) -> None:
    """Takes the connection and says no in it: clients show the status line of a refused upgrade, and never its body."""
    asked = socket.url.path.rpartition("/")[2]
    words, hint = _NEAREST[asked]
    refused = error_body(not_built(f"{words} ({asked})", hint=hint), request_id=socket.scope.get("request_id"))
    await socket.accept()
    await socket.send_json({"type": "error", "error": refused})
    await socket.close()


for _name in _WEBSOCKETS:
    router.add_api_websocket_route(f"/sandboxes/{{sandbox_id}}/{_name}", refuse_by_frame)
for _verb in _VERBS:
    router.add_api_route(f"/sandboxes/{{sandbox_id}}:{_verb}", refuse, methods=["POST"])
for _verb in _INSIDE_VERBS:
    router.add_api_route(f"/sandboxes/{{sandbox_id}}/{_verb}", refuse, methods=["POST"])
for _name in _INSIDE:
    router.add_api_route(f"/sandboxes/{{sandbox_id}}/{_name}", refuse, methods=_METHODS)
    router.add_api_route(f"/sandboxes/{{sandbox_id}}/{_name}/{{rest:path}}", refuse, methods=_METHODS)
for _name in _PRODUCTS:
    router.add_api_route(f"/{_name}", refuse, methods=_METHODS)
    router.add_api_route(f"/{_name}/{{rest:path}}", refuse, methods=_METHODS)
