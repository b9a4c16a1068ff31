"""Single questions of many callers, combined into one call."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterator,
)
from typing import Generic, TypeVar

from fetchproxy.errors import ClusterError
from fetchproxy.runtime.cooperative import ITEMS_AT_ONCE

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


# Called with each key's answer as soon as it arrives.
OnResult = Callable[[K, V | ClusterError], None]
_Work = Callable[[Collection[K], OnResult[K, V]], Awaitable[None]]


class Batcher(Generic[K, V]):
    """Combines single questions of many callers from successive turns of the loop into one call.

    `work` must call `tell` once for each of its keys, and must not raise ClusterError. The first
    caller does the work for all. If it is cancelled, another caller does the rest.
    """

    def __init__(self, work: _Work[K, V]) -> None:
        self._work = work
        # The group that a caller may still join: by key, the future response. None: there is none.
        self._next: dict[K, asyncio.Future[V | ClusterError | _Left]] | None = None

    async def ask(self, key: K) -> V:
        """Raises ClusterError."""
        response: V | ClusterError | _Left = _LEFT
        call = None
        try:
            while isinstance(response, _Left):
                if self._next is None:
                    response = await self._lead(key)
                else:
                    call = self._next.get(key)
                    if call is None:
                        call = self._next[key] = asyncio.get_running_loop().create_future()
                    # shield: if one waiter is cancelled, the others go on waiting.
                    response = await asyncio.shield(call)
            if isinstance(response, ClusterError):
                raise response
            return response
        finally:
            del call, response

    async def _lead(self, key: K) -> V | ClusterError | _Left:
        own_call: asyncio.Future[V | ClusterError | _Left]
        own_call = asyncio.get_running_loop().create_future()
        calls = {key: own_call}
        self._next = calls

        def tell(key: K, response: V | ClusterError) -> None:
            if not calls[key].done():
                calls[key].set_result(response)

        try:
            try:
                count_before = 0
                # A caller with very many keys needs several turns.
                while count_before < len(calls):
                    count_before = len(calls)
                    await asyncio.sleep(0)
            finally:
                self._next = None
            await self._work(list(calls), tell)
        finally:
            _leave(iter(list(calls.values())))
        return own_call.result()


def _leave(calls: Iterator[asyncio.Future[V | ClusterError | _Left]]) -> None:
    """In steps: each caller that still waits begins anew."""
    waiting_count = 0
    for call in calls:
        if not call.done():
            call.set_result(_LEFT)
            waiting_count += 1
        if waiting_count == ITEMS_AT_ONCE:
            asyncio.get_running_loop().call_soon(_leave, calls)
            return


class _Left:
    """The caller that did the work was cancelled before this key was answered."""


_LEFT = _Left()
