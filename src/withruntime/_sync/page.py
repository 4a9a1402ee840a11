# Generated from src/withruntime/_async/page.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Walks a list that the service answers page by page."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Page(Generic[T]):
    """One page; iterating goes on through all that follow."""

    def __init__(
        self,
        data: list[T],
        next_cursor: str | None,
        fetch: "Callable[[str], Page[T]]",
    ) -> None:
        self.data = data
        self.next_cursor = next_cursor
        self._fetch = fetch

    @property
    def has_more(self) -> bool:
        return self.next_cursor is not None

    def next_page(self) -> "Page[T] | None":
        """The page after this one, or None at the end."""
        return None if self.next_cursor is None else self._fetch(self.next_cursor)

    def to_list(self, limit: int = 10000) -> list[T]:
        """Everything, up to so many entries."""
        found: list[T] = []
        for entry in self:
            if len(found) >= limit:
                break
            found.append(entry)
        return found

    def __iter__(self) -> Iterator[T]:
        page: Page[T] | None = self
        while page is not None:
            for entry in page.data:
                yield entry
            page = page.next_page()
