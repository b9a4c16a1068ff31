"""A wait that somebody else may end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Patience:
    """Serves one wait at a time. Once it is over, each later wait ends at its first pause."""

    __slots__ = ("_timeout", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._timeout: asyncio.Timeout | None = None  # while something waits

    async def wait(self, work: Awaitable[None]) -> None:
        """Await `work`. It is cancelled where it waits when the patience is over."""
        timeout = asyncio.timeout(0 if self.is_over else None)
        try:
            async with timeout:
                self._timeout = timeout
                await work
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            self._timeout = None

    def end(self) -> None:
        self.is_over = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())
