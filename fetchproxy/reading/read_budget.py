"""A full budget makes readers wait; it never refuses them. Clients that wait are served in turn
(`fairness`). Reads that a fetch waits for go before reads ahead. Reads ahead may take at most
half of the places, so that they do not fill a hanging store. A small read takes a part of a place:
it waits for a round trip, and not for the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field

from fetchproxy.observability.metrics import (
    INFLIGHT_BYTES,
    READERS_WAITING,
)
from fetchproxy.runtime.fairness import FairQueue

# The least that a read costs its client: a small read takes a place for as long as a large one.
COST_BYTES_MIN = 256 * 1024
# A read up to this size is small: the index of a segment of 64 MiB.
SMALL_READ_BYTES_MAX = 256 * 1024
# Reserved while a packing is read, because its size is not known: one of a segment of 1 GiB.
PACKING_RESERVED_BYTES = 32 * 1024


@dataclass(eq=False, repr=False, slots=True)
class Slot:
    """One read's place, first in the queue, then at the store. `client`: the client it is for."""

    size_bytes: int
    is_read_ahead: bool
    client: Hashable = None
    is_in_use: bool = False
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ReadBudget:
    """`tasks_max`: reads in flight. `small_tasks_max`: so many, if all of them are small; None: no
    more than of others.
    """

    def __init__(self, tasks_max: int, bytes_max: int, small_tasks_max: int | None = None) -> None:
        # Parts of places, so that both counts are whole: a large and a small read take so many.
        self._large_parts = small_tasks_max or tasks_max
        self._small_parts = tasks_max
        self._parts_max = self._large_parts * self._small_parts
        self._ahead_max = max(self._large_parts, self._parts_max // 2)
        self._parts_taken = 0
        self.bytes_max = bytes_max
        self._queue: FairQueue[Slot] = FairQueue()
        self._read_ahead_queue: FairQueue[Slot] = FairQueue()
        self._ahead_taken = 0
        self.tasks_taken = 0
        self.bytes_taken = 0

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._read_ahead_queue)

    async def acquire(self, slot: Slot) -> None:
        """Wait for a place; clients take turns. If cancelled, it passes the place on."""
        self._enter_queue(slot)
        self._grant()
        try:
            await slot.granted
        except asyncio.CancelledError:
            if slot.is_in_use:
                self.release(slot)
            else:
                self._leave_queue(slot)
                self._grant()
            raise

    def try_acquire(self, slot: Slot) -> bool:
        """Take a place without waiting. False: none is free, or another read waits for one."""
        if self.waiting or not self._fits(slot):
            return False
        self._take(slot)
        return True

    def release(self, slot: Slot) -> None:
        self.tasks_taken -= 1
        self._parts_taken -= self._parts(slot)
        self.bytes_taken -= slot.size_bytes
        self._ahead_taken -= slot.is_read_ahead * self._parts(slot)
        self._grant()

    def join(self, slot: Slot, client: Hashable) -> None:
        """Another client waits for the same read, which goes at the first turn of any of them. Does
        nothing if the slot is not in the queue.
        """
        (self._read_ahead_queue if slot.is_read_ahead else self._queue).join(slot, client)

    def promote(self, slot: Slot, client: Hashable = None) -> None:
        """A fetch of `client` now waits for this read, which began as a read ahead."""
        if not slot.is_read_ahead:
            return
        slot.client = client
        if slot.is_in_use:
            self._ahead_taken -= self._parts(slot)
        elif self._leave_queue(slot):
            slot.is_read_ahead = False
            self._enter_queue(slot)
        slot.is_read_ahead = False
        self._grant()

    def _grant(self) -> None:
        self._grant_from(self._queue)
        if not self._queue:
            self._grant_from(self._read_ahead_queue)
        READERS_WAITING.set(self._queue.clients)
        INFLIGHT_BYTES.set(self.bytes_taken)

    def _grant_from(self, queue: FairQueue[Slot]) -> None:
        """A slot that does not fit keeps its turn, or large reads would starve."""
        while (slot := queue.head()) is not None and self._fits(slot):
            if slot.is_read_ahead and self._ahead_taken + self._parts(slot) > self._ahead_max:
                return
            self._take(queue.pop())

    def _fits(self, slot: Slot) -> bool:
        """A read larger than the whole budget runs alone, or it would wait for ever."""
        if self._parts_taken + self._parts(slot) > self._parts_max:
            return False
        return not self.bytes_taken or self.bytes_taken + slot.size_bytes <= self.bytes_max

    def _parts(self, slot: Slot) -> int:
        is_small = slot.size_bytes <= SMALL_READ_BYTES_MAX
        return self._small_parts if is_small else self._large_parts

    def _enter_queue(self, slot: Slot) -> None:
        queue = self._read_ahead_queue if slot.is_read_ahead else self._queue
        queue.push(slot.client, slot, max(slot.size_bytes, COST_BYTES_MIN))

    def _leave_queue(self, slot: Slot) -> bool:
        return (self._read_ahead_queue if slot.is_read_ahead else self._queue).remove(slot)

    def _take(self, slot: Slot) -> None:
        if slot.granted.cancelled():
            return  # its task was cancelled and has not run since
        slot.is_in_use = True
        self.tasks_taken += 1
        self._parts_taken += self._parts(slot)
        self.bytes_taken += slot.size_bytes
        self._ahead_taken += slot.is_read_ahead * self._parts(slot)
        slot.granted.set_result(None)
