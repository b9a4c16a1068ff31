"""Shared work: many callers wait for it, and one does it.

An error refers, by its traceback, to each function that it has left. A function that still refers
to the error would stay in memory, with all that its callers know, until a collection of garbage
finds both (`garbage.spare_collections`). So a function in which many wait for
one error deletes its reference to the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
)
from typing import Generic, TypeVar

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """One piece of work per key at a time. A caller that comes while it runs shares the outcome.

    It keeps nothing afterwards. It makes no tasks: the first caller does the work itself. If that
    caller is cancelled, a waiting caller takes over.
    """

    def __init__(self) -> None:
        # The outcome: (value, error). None: the caller that did the work was cancelled.
        self._single_flights: dict[
            Hashable, asyncio.Future[tuple[V | None, Exception | None] | None]
        ] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        """The value of `work()`, or of the running work of the same key. Raises its error."""
        call = outcome = error = None
        try:
            while (call := self._single_flights.get(key)) is not None:
                # shield: if one waiter is cancelled, the others go on waiting.
                outcome = await asyncio.shield(call)
                if outcome is None:
                    continue
                value, error = outcome
                if error is not None:
                    raise error
                return value  # type: ignore[return-value]  # set together with error=None
            return await self._lead(key, work)
        finally:
            del call, outcome, error  # see above

    async def _lead(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        self._single_flights[key] = asyncio.get_running_loop().create_future()
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
        self._single_flights.pop(key).set_result(outcome)
