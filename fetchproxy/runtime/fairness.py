"""Whose turn it is, and how much a turn may take. Pure: no clock, and nobody sleeps here."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

# The client that was served the fewest bytes goes next (start-time fair queueing, Goyal 1996):
# with reads of one size that is round robin, with others it is round robin by bytes. Within a
# client the order is that of asking. While several wait, none is more than one read ahead of
# another, however many reads each has asked for, so one with a hundred partitions costs one with
# a single partition every second place and not a hundred. Who comes newly begins level with the
# one served last: what nobody else wanted at the time is held against nobody.

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """`cost` of an item is in bytes, above 0; an item is in the queue once, for all who want it."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[T]] = {}
        self._items: dict[T, tuple[int, list[Hashable]]] = {}  # cost, who waits for it
        self._served: dict[Hashable, int] = {}  # bytes, on a scale on which newcomers begin at:
        self._level = 0
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
        """`client` waits for `item` too: it goes with whichever of them has a turn first."""
        found = self._items.get(item)
        if found is None or client in found[1]:
            return
        found[1].append(client)
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = deque()
            self._served[client] = max(self._served.get(client, 0), self._level)
        line.append(item)

    def head(self) -> T | None:
        """Who has the turn keeps it until its item is popped or removed, or large reads, which
        wait for room, would be passed over for ever.
        """
        if not self._lines:
            return None
        if not self._has_turn:
            self._turn = min(self._lines, key=self._served.__getitem__)
            self._has_turn = True
        return self._lines[self._turn][0]

    def pop(self) -> T:
        """The head; its client has been served."""
        item = self.head()
        assert item is not None
        self._level = self._served[self._turn]
        self._served[self._turn] += self._items[item][0]
        self.remove(item)
        return item

    def remove(self, item: T) -> bool:
        """False: it is not in the queue."""
        found = self._items.pop(item, None)
        if found is None:
            return False
        for client in found[1]:
            line = self._lines[client]
            if self._has_turn and client == self._turn and line[0] is item:
                self._has_turn = False
            line.remove(item)
            if not line:
                del self._lines[client]
        self._forget()
        return True

    def _forget(self) -> None:
        """Those who do not wait and are no further than a newcomer; all when nobody waits."""
        if not self._lines:
            self._served.clear()
            self._level = 0
        elif len(self._served) > 2 * len(self._lines) + 100:
            self._served = {
                client: served
                for client, served in self._served.items()
                if client in self._lines or served > self._level
            }


# How much a read brings is known when it has come. So, as with Kafka's quotas
# (ClientQuotaManager, KIP-219, KIP-956), what came is counted, and whoever owes waits before the
# next one. Over any time `t` no more than `burst + rate * t` passes, plus the one read that made
# the debt.


class TokenBucket:
    """`bytes_per_s` above 0; up to one second's worth is saved up. Times in s, never falling."""

    __slots__ = ("_at", "_bytes_per_s", "_left")

    def __init__(self, bytes_per_s: int, now: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._at = now

    def spend(self, size_bytes: int, now: float) -> float:
        """What came; seconds until nothing is owed, 0: nothing is."""
        earned = (now - self._at) * self._bytes_per_s
        self._left = min(self._left + earned, self._bytes_per_s) - size_bytes
        self._at = now
        return max(-self._left / self._bytes_per_s, 0.0)

    def owed_s(self, now: float) -> float:
        """Seconds until the next read may begin."""
        return self.spend(0, now)
