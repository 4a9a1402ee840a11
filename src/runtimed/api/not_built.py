"""Names of the wire protocol that this version does not have: each is refused by name, so that no client guesses."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import not_built

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
_PRODUCTS = (
    *("images", "volumes", "volume-backups", "events", "webhooks", "webhook-deliveries", "otel-exports"),
    *("usage", "switching", "audit", "notices", "mcp", "egress-secrets", "secrets", "jobs", "job-runs", "job-imports"),
    *("reservations", "domains", "ports", "ips", "networks", "billing", "plans", "referrals", "sso", "feedback"),
    *("support", "apps", "functions", "containers", "repositories", "builds", "ci", "agents", "account"),
)

router = APIRouter(prefix="/v1", include_in_schema=False)


async def refuse(request: Request) -> Response:
    """Always raises Unavailable."""
    path = request.url.path.removeprefix("/v1/")
    raise not_built(f"{request.method} {path.split('/')[0] if not path.startswith('sandboxes/') else path}")


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
