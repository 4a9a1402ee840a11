"""How every request body is read: unknown fields are refused, nothing is coerced, and the issues name the fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from runtimed.core.limits import PATH_MAX_BYTES


class Strict(BaseModel):
    """A request body. Field names on the wire are the aliases, in camelCase."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_characters(cls, sent: object) -> object:
        """JSON can escape half a character, which no file name, no command and no database can hold."""
        if (where := _half_character(sent)) is not None:
            raise ValueError(f"{where or 'body'}: is not UTF-8 text: it holds a lone surrogate")
        return sent


class Empty(Strict):
    """The body of a verb that takes nothing."""


class Shown(BaseModel):
    """An answer, as the OpenAPI document describes it. Answers are written by hand from core values."""

    model_config = ConfigDict(extra="allow")


def _half_character(sent: object) -> str | None:
    """Where the first text is that is not whole, as a path of fields; None where all are.

    Not recursive: a body may be nested deeper than Python's stack.
    """
    left: list[tuple[str, object]] = [("", sent)]
    while left:
        where, value = left.pop()
        if isinstance(value, str):
            if not value.isascii() and _LONE.search(value):
                return where
        elif isinstance(value, dict):
            left += [(where, name) for name in value]  # a name that is wrong cannot be shown: its parent is
            left += [(f"{where}.{name}".lstrip("."), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}.{number}".lstrip("."), inner) for number, inner in enumerate(value)]
    return None


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

_LONE = re.compile("[\ud800-\udfff]")
_RULE = re.compile(r"([\w.-]+): (.*)")
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
        if whole := _about_body(error):
            found.append({"field": "body", "message": whole})
            continue
        field, message = _field(error["loc"]), _message(error)
        if error["type"] == "value_error" and (told := _RULE.fullmatch(message)):
            # A rule over several fields has no place of its own; its message starts with the one to change.
            field, message = told[1] if field in ("body", told[1]) else f"{field}.{told[1]}", told[2]
        found.append({"field": field, "message": message})
    return found


def _about_body(error: dict[str, Any]) -> str | None:
    """What is wrong with the body as a whole."""
    if error["type"] == "json_invalid":
        # Where FastAPI has a field's name otherwise, it has the place in the text.
        return f"is not JSON (character {int(error['loc'][-1]) + 1}): send one object"
    if tuple(error["loc"]) == ("body",) and error["type"] in ("model_attributes_type", "model_type", "missing"):
        return "must be one JSON object, with Content-Type: application/json"
    return None


def _field(loc: Sequence[str | int]) -> str:
    # FastAPI puts where it looked in front: ("body", "labels", "a").
    inside = loc[1:] if loc and loc[0] in ("body", "query", "path", "header") else loc
    parts = [str(part) for part in inside if part != "[key]"]
    return ".".join(parts) or "body"


_SAYS = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number that is not infinite",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object of names and values",
    "model_type": "must be an object of fields",
    "model_attributes_type": "must be an object of fields",
    "string_too_short": "must be at least {min_length} characters long",
    "string_too_long": "must be at most {max_length} characters long",
    "too_short": "must hold at least {min_length}",
    "too_long": "must hold at most {max_length}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
"""What the checks of pydantic mean for somebody who writes JSON and has never seen Python."""


def _message(error: dict[str, Any]) -> str:
    if (said := _SAYS.get(error["type"])) is not None:
        return said.format(**error.get("ctx", {}))
    text = str(error["msg"]).removeprefix("Value error, ")
    return text if ":" in text.split(" ")[0] else text[:1].lower() + text[1:]
