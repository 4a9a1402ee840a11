"""Named points at which a simulated host can be held up, made to fail, or counted; decides nothing by itself."""

from __future__ import annotations

import asyncio


class Faults:
    """What goes wrong, and where. Every point gives way to other tasks once, so that a cancel can come there."""

    def __init__(self) -> None:
        self.errors: dict[str, BaseException] = {}
        """Raised at the point of that name, until it is taken out."""
        self.gates: dict[str, asyncio.Event] = {}
        """Nothing gets past the point of that name until its gate is set."""
        self.reached: list[str] = []
        self.nth: tuple[int, BaseException] | None = None
        """Raise this at the n-th point that is reached from now on, the first being 0; once."""

    async def reach(self, name: str) -> None:
        """Pass the point, late or not at all."""
        self.reached.append(name)
        await asyncio.sleep(0)
        if (gate := self.gates.get(name)) is not None:
            await gate.wait()
        if (error := self.errors.get(name)) is not None:
            raise error
        if self.nth is not None:
            left, error = self.nth
            if left <= 0:
                self.nth = None
                raise error
            self.nth = left - 1, error
