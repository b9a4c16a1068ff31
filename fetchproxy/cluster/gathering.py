"""Questions that many ask one by one, put together: what is asked in turns of the loop that follow.

Keeps nothing afterwards. No tasks are made: the first who asks does the work for all, and returns
when all of it is done; if it is cancelled one of the others does the rest. Those have their answers
as soon as they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Generic, TypeVar

from fetchproxy.errors import ClusterError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Told of each key's answer as soon as it is there.
Tell = Callable[[K, V | ClusterError], None]
Work = Callable[[Collection[K], Tell[K, V]], Awaitable[None]]


class Gathering(Generic[K, V]):
    """`work` tells the answer of each of the keys it is given, once, and raises no ClusterError."""

    def __init__(self, work: Work[K, V]) -> None:
        self._work = work
        # Whom one may still join: by key, what it will be told; None where the work was cancelled.
        self._next: dict[K, asyncio.Future[V | ClusterError | _Left]] | None = None

    async def ask(self, key: K) -> V:
        """Raises ClusterError."""
        answer: V | ClusterError | _Left = _LEFT
        while isinstance(answer, _Left):
            if self._next is None:
                answer = await self._lead(key)
            else:
                flight = self._next.get(key)
                if flight is None:
                    flight = self._next[key] = asyncio.get_running_loop().create_future()
                # shield: a waiter that is cancelled leaves, the others go on waiting.
                answer = await asyncio.shield(flight)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def _lead(self, key: K) -> V | ClusterError | _Left:
        mine: asyncio.Future[V | ClusterError | _Left]
        mine = asyncio.get_running_loop().create_future()
        flights = {key: mine}
        self._next = flights

        def tell(asked: K, answer: V | ClusterError) -> None:
            if not flights[asked].done():
                flights[asked].set_result(answer)

        try:
            try:
                gathered = 0
                while gathered < len(flights):  # who asks for very many does so in several turns
                    gathered = len(flights)
                    await asyncio.sleep(0)
            finally:
                self._next = None
            await self._work(list(flights), tell)
        finally:
            for flight in flights.values():
                if not flight.done():
                    flight.set_result(_LEFT)
        return mine.result()


class _Left:
    """The one who asked was cancelled before this was answered."""


_LEFT = _Left()
