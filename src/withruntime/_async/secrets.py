"""Secrets that sandboxes use without seeing them: the service puts the value in on the way out."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from withruntime import _calls
from withruntime._async.transport import AsyncTransport
from withruntime._errors import NotFoundError
from withruntime._values import Json

PAGE_MAX = 100
_PATH = "/v1/egress-secrets"

Secret = dict[str, Any]
SecretList = list[Secret]


class AsyncSecrets:
    """`runtime.secrets`: sandboxes have a variable of the secret's name that holds a placeholder.

    On HTTPS to the secret's hosts, and nowhere else, the service puts the value where the placeholder is: in the URL
    and in headers. No call returns a value.
    """

    def __init__(self, t: AsyncTransport) -> None:
        self._t = t

    async def set(
        self,
        name: str,
        *,
        value: str,
        hosts: Sequence[str] | None = None,
        header: str | None = None,
        format: str | None = None,
        rules: Sequence[Mapping[str, Any]] | None = None,
        only: Mapping[str, Any] | None = None,
        github_app: Mapping[str, Any] | None = None,
        git: Mapping[str, Any] | None = None,
        api: Mapping[str, Any] | None = None,
        env: str | None = None,
        jobs: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """Store a secret, or replace it: its placeholder stays, and running sandboxes use the new value at once.

        `hosts` are names or `*.name`, with `:port` where it is not 443. With `header` the value is set there, as
        `format` says (`{value}` where it goes), on every request to them. `rules` limit it to requests of some
        `methods` and `paths` (exact, or ending in `/*`). `env` is another name for the variable.

        Raises:
            InvalidRequestError: naming each field that is wrong, never the value.
            RuntimeError: `only`, `github_app`, `git`, `api` and `jobs` are not available in this version.
        """
        fields = {
            "header": header,
            "format": format,
            "rules": None if rules is None else [dict(rule) for rule in rules],
            "only": only,
            "githubApp": github_app,
            "git": git,
            "api": api,
            "env": env,
            "jobs": jobs or None,
        }
        body: Json = {"value": value, "hosts": list(hosts or ())}
        body |= {field: given for field, given in fields.items() if given is not None}
        return await self._send("PUT", name, body, idempotency_key)

    async def list(self, *, limit: int | None = None, after: str | None = None) -> SecretList:
        """Names, hosts and placeholders, by name; never values. With `limit` (1 to 100) or `after`, one page."""
        found: SecretList = []
        start = after
        while True:
            query = {key: given for key, given in (("limit", limit or PAGE_MAX), ("after", start)) if given is not None}
            page = await self._t.send(_calls.get(_PATH, _calls.as_object, query))
            found.extend(page["secrets"])
            if limit is not None or after is not None or not page.get("next"):
                return found
            start = page["next"]

    async def get(self, name: str) -> Secret:
        """One secret without its value. Raises NotFoundError."""
        for secret in await self.list():
            if secret["name"] == name:
                return secret
        raise NotFoundError(f"There is no secret named {name}.", code="not_found", status=404)

    async def delete(self, name: str, *, idempotency_key: str | None = None) -> Json:
        """Erase it; its placeholder stops working at once. Raises NotFoundError."""
        return await self._send("DELETE", name, None, idempotency_key)

    async def _send(self, method: str, name: str, body: Json | None, key: str | None) -> Json:
        options = {"body": body, "idempotency_key": key}
        answer = await self._t.send(_calls.free_request(method, f"{_PATH}/{quote(name, safe='')}", options))
        return dict(answer)
