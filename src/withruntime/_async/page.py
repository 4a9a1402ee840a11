"""Walks a list that the service answers page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class AsyncPage(Generic[T]):
    """One page; iterating goes on through all that follow."""

    def __init__(
        self,
        data: list[T],
        next_cursor: str | None,
        fetch: "Callable[[str], Awaitable[AsyncPage[T]]]",
    ) -> None:
        self.data = data
        self.next_cursor = next_cursor
        self._fetch = fetch

    @property
    def has_more(self) -> bool:
        return self.next_cursor is not None

    async def next_page(self) -> "AsyncPage[T] | None":
        """The page after this one, or None at the end."""
        return None if self.next_cursor is None else await self._fetch(self.next_cursor)

    async def to_list(self, limit: int = 10000) -> list[T]:
        """Everything, up to so many entries."""
        found: list[T] = []
        async for entry in self:
            if len(found) >= limit:
                break
            found.append(entry)
        return found

    async def __aiter__(self) -> AsyncIterator[T]:
        page: AsyncPage[T] | None = self
        while page is not None:
            for entry in page.data:
                yield entry
            page = await page.next_page()
