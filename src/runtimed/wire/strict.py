"""How every request body is read: unknown fields are refused, nothing is coerced, and the issues name the fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from runtimed.core.limits import PATH_MAX_BYTES


class Strict(BaseModel):
    """A request body. Field names on the wire are the aliases, in camelCase."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False, hide_input_in_errors=True)


class Empty(Strict):
    """The body of a verb that takes nothing."""


class Shown(BaseModel):
    """An answer, as the OpenAPI document describes it. Answers are written by hand from core values."""

    model_config = ConfigDict(extra="allow")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL byte")
    return text


def _path(text: str) -> str:
    _no_nul(text)
    if not text.startswith("/"):
        raise ValueError("must be an absolute path")
    if len(text.encode()) > PATH_MAX_BYTES:
        raise ValueError(f"must be at most {PATH_MAX_BYTES} bytes long")
    return text


def _mode(text: str) -> str:
    if re.fullmatch(r"0?[0-7]{3}", text) is None:
        raise ValueError("must be three octal digits, such as 644")
    return text


Text = Annotated[str, AfterValidator(_no_nul)]
"""Any text that Linux can take as an argument."""
AbsolutePath = Annotated[str, AfterValidator(_path)]
Mode = Annotated[str, AfterValidator(_mode)]
"""The low nine bits."""

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_env(env: dict[str, Any], *, names_max: int, bytes_max: int) -> None:
    """Raises ValueError saying which name or bound is wrong; values may be None where that means removal."""
    if len(env) > names_max:
        raise ValueError(f"must hold at most {names_max} variables")
    if wrong := sorted(name for name in env if ENV_NAME.fullmatch(name) is None):
        raise ValueError(f"{wrong[0]!r} is not a name that an environment variable can have")
    if sum(len(name.encode()) + len((value or "").encode()) for name, value in env.items()) > bytes_max:
        raise ValueError(f"must hold at most {bytes_max} bytes")


def issues(errors: Sequence[Any]) -> list[dict[str, str]]:
    """What pydantic found, as the `details.issues` of an answer: one entry for each wrong field."""
    found = []
    for error in errors:
        field, message = _field(error["loc"]), _message(error)
        if field == "body" and (told := re.fullmatch(r"(\w+): (.*)", message)):
            # A rule over several fields has no place of its own; its message starts with the one to change.
            field, message = told[1], told[2]
        found.append({"field": field, "message": message})
    return found


def _field(loc: Sequence[str | int]) -> str:
    # FastAPI puts where it looked in front: ("body", "labels", "a").
    inside = loc[1:] if loc and loc[0] in ("body", "query", "path", "header") else loc
    parts = [str(part) for part in inside if part != "[key]"]
    return ".".join(parts) or "body"


def _message(error: dict[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    if error["type"] == "json_invalid":
        return "is not JSON"
    text = str(error["msg"]).removeprefix("Value error, ")
    return text if ":" in text.split(" ")[0] else text[:1].lower() + text[1:]
