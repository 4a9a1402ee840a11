"""Reads a recipe (what goes into an image): decides whether it is well-formed and what its content address is."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from runtimed.core.errors import ImageNotFound, InvalidRequest
from runtimed.images.apt_sources import RELEASES

FORMAT = 1
"""Part of every image's address: raise it when the same recipe would now give another image."""

AUTO = "auto"
DEFAULT_RELEASES = {"debian": "trixie", "ubuntu": "noble"}

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIANTS = ("essential", "minbase", "standard")
"""How much comes besides the packages: only what every system has; with apt; with what an interactive host has."""
FILE_MAX_BYTES = 1 << 20
"""A recipe carries settings, not data: larger things come as packages or by commands."""


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """One file that is written into the image, owned by root."""

    path: str
    content: str
    mode: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """`distribution` and `release` may be "auto": they are settled by what the host's apt sources offer."""

    name: str
    distribution: str = AUTO
    release: str = AUTO
    variant: str = "minbase"
    packages: tuple[str, ...] = ()
    files: tuple[RecipeFile, ...] = ()
    commands: tuple[str, ...] = ()
    """Run one after the other as root in the image, by its own sh, with the host's network."""
    environment: tuple[tuple[str, str], ...] = ()
    """Written to /etc/environment, from where the agent gives it to every command."""
    needs_mib: int = 4096
    """Free disk space that must be there before a build starts."""

    def address(self, *, distribution: str, release: str) -> str:
        """Names the image that this recipe gives for that release: equal recipes have equal addresses."""
        content = {**asdict(self), "distribution": distribution, "release": release, "format": FORMAT}
        content["scripts"] = [boot_file("image-base.sh"), boot_file("image-finish.sh")]
        del content["needs_mib"]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"img_{digest[:20]}"

    def release_for(self, distribution: str) -> str:
        return DEFAULT_RELEASES[distribution] if self.release == AUTO else self.release


def boot_file(name: str) -> str:
    """A script of this room that runs in an image or in a machine."""
    return (resources.files("runtimed.images") / "boot" / name).read_text("utf-8")


def packaged_recipes() -> list[str]:
    """Names of the recipes that come with the service."""
    folder = resources.files("runtimed.images") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def is_recipe(name_or_path: str) -> bool:
    """Whether this is a recipe's file, or the name of one that comes with the service."""
    return _is_path(name_or_path) or name_or_path in packaged_recipes()


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(".toml")


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by its name, or from a file if there is a "/" in it or it ends with ".toml".

    Only an operator may give a path: a caller of the API names images that exist.

    Raises:
        ImageNotFound: no such recipe.
        InvalidRequest: each wrong field, by name.
    """
    if _is_path(name_or_path):
        path = Path(name_or_path)
        try:
            return parse_recipe(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ImageNotFound(f"The recipe {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InvalidRequest([{"field": "recipe", "message": "is not UTF-8 text"}]) from error
    if name_or_path not in packaged_recipes():
        known = ", ".join(packaged_recipes())
        raise ImageNotFound(
            f"There is no image recipe {name_or_path!r}; there are {known}, or give the path of a .toml file."
        )
    return parse_recipe((resources.files("runtimed.images") / "recipes" / f"{name_or_path}.toml").read_text("utf-8"))


def parse_recipe(text: str) -> Recipe:
    """Raises InvalidRequest that names every wrong field, not only the first."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest([{"field": "recipe", "message": f"is not TOML: {error}"}]) from error
    fields = _Fields(table)
    distribution = fields.one_of("distribution", (AUTO, *RELEASES), default=AUTO)
    known = RELEASES.get(distribution, tuple(name for names in RELEASES.values() for name in names))
    release = fields.one_of("release", (AUTO, *known), default=AUTO)
    if distribution == AUTO and release != AUTO:
        fields.wrong("distribution", "must be named when the release is")
    recipe = Recipe(
        name=fields.name(),
        distribution=distribution,
        release=release,
        variant=fields.one_of("variant", VARIANTS, default="minbase"),
        packages=fields.texts("packages", lambda text: None if _PACKAGE.fullmatch(text) else "is not a package name"),
        files=fields.files(),
        commands=fields.texts("commands", lambda text: None if text.strip() else "is empty"),
        environment=fields.environment(),
        needs_mib=fields.positive("needs_mib", default=4096),
    )
    fields.finish()
    return recipe


class _Fields:
    """Takes fields out of a table one by one and remembers what is wrong with them."""

    def __init__(self, table: dict[str, object]) -> None:
        self._table = dict(table)
        self._issues: list[dict[str, str]] = []

    def wrong(self, field: str, message: str) -> None:
        self._issues.append({"field": field, "message": message})

    def finish(self) -> None:
        for unknown in self._table:
            self.wrong(unknown, "is not a field of a recipe")
        if self._issues:
            raise InvalidRequest(self._issues)

    def name(self) -> str:
        value = self._table.pop("name", None)
        if isinstance(value, str) and NAME.fullmatch(value):
            return value
        self.wrong(
            "name",
            "must be 1 to 63 lower-case letters, digits, '.', '_' or '-', and start and end with a letter or digit",
        )
        return ""

    def one_of(self, field: str, allowed: tuple[str, ...], *, default: str) -> str:
        value = self._table.pop(field, default)
        if isinstance(value, str) and value in allowed:
            return value
        self.wrong(field, f"must be one of {', '.join(allowed)}")
        return default

    def positive(self, field: str, *, default: int) -> int:
        value = self._table.pop(field, default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.wrong(field, "must be a whole number above 0")
        return default

    def texts(self, field: str, problem: Callable[[str], str | None]) -> tuple[str, ...]:
        value = self._table.pop(field, [])
        if not isinstance(value, list):
            self.wrong(field, "must be a list of texts")
            return ()
        for index, item in enumerate(value):
            found = problem(item) if isinstance(item, str) else "must be a text"
            if found:
                self.wrong(f"{field}[{index}]", found)
        return tuple(item for item in value if isinstance(item, str))

    def environment(self) -> tuple[tuple[str, str], ...]:
        pairs = []
        for name, value in self._mapping("environment").items():
            if not _VARIABLE.fullmatch(name):
                self.wrong(f"environment.{name}", "is not a name of a variable")
            elif not isinstance(value, str) or not value.isprintable() or '"' in value:
                self.wrong(f"environment.{name}", "must be a text on one line without double quotes")
            else:
                pairs.append((name, value))
        return tuple(sorted(pairs))

    def files(self) -> tuple[RecipeFile, ...]:
        found = []
        for path, value in self._mapping("files").items():
            if item := self._file(path, {"content": value} if isinstance(value, str) else value):
                found.append(item)
        return tuple(sorted(found, key=lambda item: item.path))

    def _file(self, path: str, value: object) -> RecipeFile | None:
        field = f'files."{path}"'
        if not isinstance(value, Mapping) or set(value) - {"content", "mode"} or "content" not in value:
            self.wrong(field, "must be a text, or a table with content and, if wanted, mode")
            return None
        parts = path.split("/")
        if not path.startswith("/") or path.endswith("/") or ".." in parts or "\n" in path:
            self.wrong(field, "must be an absolute path of a file, without '..'")
            return None
        content, mode = value["content"], value.get("mode", "0644")
        if not isinstance(content, str) or len(content.encode()) > FILE_MAX_BYTES:
            self.wrong(f"{field}.content", f"must be a text of at most {FILE_MAX_BYTES} bytes")
            return None
        if not isinstance(mode, str) or not re.fullmatch(r"0?[0-7]{3}", mode):
            self.wrong(f"{field}.mode", 'must be permissions as an octal text, such as "0644"')
            return None
        return RecipeFile(path=path, content=content, mode=int(mode, 8))

    def _mapping(self, field: str) -> Mapping[str, object]:
        value = self._table.pop(field, {})
        if isinstance(value, dict):
            return value
        self.wrong(field, "must be a table")
        return {}
