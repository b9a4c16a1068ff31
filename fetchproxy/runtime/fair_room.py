"""Memory for large work whose size is known before it begins: what does not fit waits.

Clients take turns, as in `fairness`. Some of the work only waits itself, as a fetch at the end of a
log does. While other work waits for memory, it is asked to end its wait, so nobody waits for as
long as a client has chosen to. It reads no clock but the loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager

from fetchproxy.runtime.fairness import FairQueue
from fetchproxy.runtime.patience import Patience


class NoRoomInTime(Exception):
    """No memory came free in time."""


class PlaceInRoom:
    """The memory of one piece of work. `pressed`: other work waits for it, so this one ends."""

    __slots__ = ("_of", "_patience", "has_waited", "size_bytes")

    def __init__(self, of: FairRoom, size_bytes: int) -> None:
        self._of = of
        self._patience = Patience()
        self.size_bytes = size_bytes
        self.has_waited = False

    @property
    def pressed(self) -> bool:
        return self._patience.is_over

    async def idle(self, work: Awaitable[None]) -> None:
        """Await `work`, which only waits. It is cancelled there once the place is pressed."""
        self._of.waits_itself(self)
        await self._patience.wait(work)

    def press(self) -> None:
        self._patience.end()


class FairRoom:
    """At most `own_bytes` and `shared_bytes` of work at a time. Larger work counts as that, so one
    alone always fits. `share(by)` is called for each change of the shared bytes in use. Work that
    waits itself may do so for `idle_min_s`, whoever waits for its memory.
    """

    def __init__(
        self, own_bytes: int, shared_bytes: int, idle_min_s: float, share: Callable[[int], None]
    ) -> None:
        self._own_bytes = own_bytes
        self._bytes_max = own_bytes + shared_bytes
        self._idle_min_s = idle_min_s
        self._share = share
        self._in_use = 0
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._sizes: dict[asyncio.Future[None], int] = {}  # of the work in the queue
        # Places whose work has waited and that nobody has pressed, with the loop time (s) from
        # which they may be; the oldest first.
        self._idle: dict[PlaceInRoom, float] = {}
        self._coming = 0  # bytes of pressed places
        self._presses: asyncio.TimerHandle | None = None  # when the next place may be pressed

    @property
    def waiting(self) -> int:
        return len(self._sizes)

    @property
    def bytes_in_use(self) -> int:
        return self._in_use

    @asynccontextmanager
    async def place(
        self, client: Hashable, size_bytes: int, wait_max_s: float
    ) -> AsyncIterator[PlaceInRoom]:
        """`size_bytes`: above 0. Raises NoRoomInTime."""
        place = PlaceInRoom(self, min(size_bytes, self._bytes_max))
        await self._room_for(client, place, wait_max_s)
        try:
            yield place
        finally:
            self._idle.pop(place, None)
            self._coming -= place.size_bytes if place.pressed else 0
            self._take(-place.size_bytes)
            self._grant()

    async def _room_for(self, client: Hashable, place: PlaceInRoom, wait_max_s: float) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._sizes[granted] = place.size_bytes
        self._queue.push(client, granted, place.size_bytes)
        self._grant()
        try:
            async with asyncio.timeout(wait_max_s):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self._take(-place.size_bytes)
            self._queue.remove(granted)
            self._sizes.pop(granted, None)
            self._grant()
            if isinstance(error, TimeoutError):
                raise NoRoomInTime from None
            raise

    def _take(self, size_bytes: int) -> None:
        shared_before = max(self._in_use - self._own_bytes, 0)
        self._in_use += size_bytes
        shared = max(self._in_use - self._own_bytes, 0)
        if shared != shared_before:
            self._share(shared - shared_before)

    def _grant(self) -> None:
        """Let work begin while there is room for the next. Press others for it if there is not."""
        while (granted := self._queue.head()) is not None:
            size_bytes = self._sizes[granted]
            if self._in_use + size_bytes > self._bytes_max:
                break
            self._queue.pop()
            del self._sizes[granted]
            if not granted.done():  # else it was cancelled, and its task has not run since
                self._take(size_bytes)
                granted.set_result(None)
        self._press()

    def waits_itself(self, place: PlaceInRoom) -> None:
        """Its work waits, perhaps not for the first time."""
        if not place.has_waited:
            place.has_waited = True
            self._idle[place] = asyncio.get_running_loop().time() + self._idle_min_s
            self._press()

    def _press(self) -> None:
        """Ask as many of those that wait themselves as the next work needs."""
        if self._presses is not None:
            self._presses.cancel()
            self._presses = None
        granted = self._queue.head()
        if granted is None:
            return
        loop = asyncio.get_running_loop()
        lacking = self._in_use + self._sizes[granted] - self._bytes_max - self._coming
        while lacking > 0 and self._idle:
            place, due_at = next(iter(self._idle.items()))
            if due_at > loop.time():
                self._presses = loop.call_at(due_at, self._press)
                return
            del self._idle[place]
            place.press()
            self._coming += place.size_bytes
            lacking -= place.size_bytes
