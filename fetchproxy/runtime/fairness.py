"""Fair turns between clients, and limits on bytes. It reads no clock.

Next comes the client that will have been served the fewest bytes (self-clocked fair queueing,
Golestani 1994). With reads of equal size this is round robin; with other reads it is round robin by
bytes. The reads of one client go in the order in which it asked. While several clients wait, none
is more than one read ahead of another, however many reads each has asked for. So a client with a
hundred partitions takes every second place from a client with one partition, not a hundred places.
A new client begins level with the client served last, so bytes served while no other client waited
do not count against a client.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from fetchproxy.observability.health import Condition, Kind

T = TypeVar("T", bound=Hashable)
# A wait of this length is shown.
WAIT_SHOWN_S = 10.0
_CLIENT_SHOWN_MAX = 64


class FairQueue(Generic[T]):
    """`cost`: bytes, above 0. An item is in the queue once, for all clients that want it."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[T]] = {}
        self._items: dict[T, tuple[int, list[Hashable]]] = {}  # cost, clients that wait for it
        self._served: dict[Hashable, int] = {}  # bytes
        self._level = 0  # a new client begins with this many bytes
        self._turn: Hashable = None
        self._has_turn = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def clients(self) -> int:
        return len(self._lines)

    def push(self, client: Hashable, item: T, cost: int) -> None:
        self._items[item] = (cost, [])
        self.join(item, client)

    def join(self, item: T, client: Hashable) -> None:
        """`client` waits for `item` too. The item goes at the first turn of any of its clients."""
        entry = self._items.get(item)
        if entry is None or client in entry[1]:
            return
        entry[1].append(client)
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = deque()
            self._served[client] = max(self._served.get(client, 0), self._level)
        line.append(item)

    def head(self) -> T | None:
        """The next item. Its client keeps the turn until the item is popped or removed. Otherwise
        large reads, which wait for room, would be passed over for ever.
        """
        if not self._lines:
            return None
        if not self._has_turn:
            self._turn = min(self._lines, key=self._served_then)
            self._has_turn = True
        return self._lines[self._turn][0]

    def _served_then(self, client: Hashable) -> int:
        """So of clients that are level, the one with the smaller item goes first."""
        return self._served[client] + self._items[self._lines[client][0]][0]

    def pop(self) -> T:
        """Remove and return the head. Its cost counts for the client that has the turn."""
        item = self.head()
        assert item is not None
        self._level = self._served[self._turn]
        self._served[self._turn] += self._items[item][0]
        self.remove(item)
        return item

    def remove(self, item: T) -> bool:
        """False: `item` is not in the queue."""
        entry = self._items.pop(item, None)
        if entry is None:
            return False
        for client in entry[1]:
            line = self._lines[client]
            if self._has_turn and client == self._turn and line[0] is item:
                self._has_turn = False
            line.remove(item)
            if not line:
                del self._lines[client]
        self._forget()
        return True

    def _forget(self) -> None:
        """Forget clients that do not wait and were served no more bytes than a new client begins
        with. Forget all clients when none waits.
        """
        if not self._lines:
            self._served.clear()
            self._level = 0
        elif len(self._served) > 2 * len(self._lines) + 100:
            self._served = {
                client: served
                for client, served in self._served.items()
                if client in self._lines or served > self._level
            }


class FairTurns:
    """Work of which at most `at_once` goes on at a time. Who waits for a turn and is cancelled
    leaves the queue. `waiters`: what a client has waiting, as a condition names it.
    """

    def __init__(self, at_once: int, waiters: str = "turns") -> None:
        self._free = at_once
        self._what = waiters
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        # The turns that are waited for, the oldest first: (name, client, loop time in s).
        self._waits: dict[asyncio.Future[None], tuple[Hashable, Hashable, float]] = {}
        self._named: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waits)

    @asynccontextmanager
    async def turn(
        self, client: Hashable, cost: int = 1, name: Hashable = None
    ) -> AsyncIterator[None]:
        """`cost`: the cost of this turn, above 0. Clients that wait get turns of about the same
        cost. `name`: for `join`; of one turn at a time.
        """
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        self._queue.push(client, granted, cost)
        self._waits[granted] = name, client, loop.time()
        if name is not None:
            self._named[name] = granted
        self._grant()
        try:
            await granted
            yield
        finally:
            self._queue.remove(granted)
            self._end_wait(granted)
            if granted.done() and not granted.cancelled():
                self._free += 1
            self._grant()

    def join(self, name: Hashable, client: Hashable) -> None:
        """Another client waits for that turn, which comes at the first turn of any of them."""
        if (granted := self._named.get(name)) is not None:
            self._queue.join(granted, client)

    def conditions(self, now: float) -> Iterator[Condition]:
        """`Health` calls it."""
        since = next((since for _, _, since in self._waits.values()), now)
        if now - since < WAIT_SHOWN_S:
            return
        waits = Counter(client for _, client, _ in self._waits.values())
        client, count = waits.most_common(1)[0]
        named = " ".join(client) if isinstance(client, tuple) else str(client)
        message = (
            f"{self.waiting} {self._what} wait, {count} of them of {named[:_CLIENT_SHOWN_MAX]!r}"
        )
        yield Condition(Kind.CLIENTS_WAIT, message, self._what, since=since)

    def _end_wait(self, granted: asyncio.Future[None]) -> None:
        if (waited := self._waits.pop(granted, None)) is not None:
            self._named.pop(waited[0], None)

    def _grant(self) -> None:
        while self._free and len(self._queue):
            granted = self._queue.pop()
            self._end_wait(granted)
            if not granted.done():  # else it was cancelled, and its task has not run since
                granted.set_result(None)
                self._free -= 1


class TokenBucket:
    """`bytes_per_s`: above 0. It saves up to one second's worth. `now`: seconds; it never falls.

    The size of a read is known only when it has arrived. So, as with Kafka's quotas
    (ClientQuotaManager, KIP-219, KIP-956), arrived bytes are counted, and a reader in debt waits
    before its next read. Over any time `t`, at most `burst + rate * t` bytes pass, plus the one
    read that made the debt.
    """

    __slots__ = ("_at", "_bytes_per_s", "_left")

    def __init__(self, bytes_per_s: int, now: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._at = now

    def spend(self, size_bytes: int, now: float) -> float:
        """Count bytes that arrived. Returns the seconds until the debt is paid. 0: no debt."""
        earned = (now - self._at) * self._bytes_per_s
        self._left = min(self._left + earned, self._bytes_per_s) - size_bytes
        self._at = now
        return max(-self._left / self._bytes_per_s, 0.0)

    def owed_s(self, now: float) -> float:
        """Seconds until the next read may begin."""
        return self.spend(0, now)
