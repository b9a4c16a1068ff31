"""One piece of work per key at a time: who comes while it runs waits for it and shares the outcome.

It keeps nothing afterwards: caching is the caller's. No tasks are made; the first caller does the
work itself, and if it is cancelled one of those who wait takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class SingleFlight(Generic[V]):
    def __init__(self) -> None:
        # The outcome: (value, error), or None when the one who did the work was cancelled.
        self._flights: dict[Hashable, asyncio.Future[tuple[V | None, Exception | None] | None]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        """The value of `work()` or of the same key's work that is under way; raises its error."""
        while (flight := self._flights.get(key)) is not None:
            # shield: a waiter that is cancelled leaves, the others go on waiting.
            outcome = await asyncio.shield(flight)
            if outcome is None:
                continue
            value, error = outcome
            if error is not None:
                raise error
            return value  # type: ignore[return-value]  # set together with error=None
        return await self._lead(key, work)

    async def _lead(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        flight = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        try:
            value = await work()
        except Exception as error:
            self._land(key, (None, error))
            raise
        except BaseException:
            self._land(key, None)
            raise
        self._land(key, (value, None))
        return value

    def _land(self, key: Hashable, outcome: tuple[V | None, Exception | None] | None) -> None:
        self._flights.pop(key).set_result(outcome)
