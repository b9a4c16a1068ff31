"""The event loop and how long each of its turns holds it. All other ready work waits for that time.

A turn is the work that the loop runs between two polls of its sockets. So the selector measures
it, by reading clocks (1 µs), without a task that would have to wake up. A turn is at
least as long as its longest callback. Tail data that arrives during a turn waits until it ends. It
also lasts while other processes and threads use the core. A second clock shows how much of it the
loop's own thread used.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import socket
from asyncio import selector_events
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fetchproxy.observability.metrics import (
    EVENT_LOOP_BUSY_SECONDS,
    EVENT_LOOP_CPU_LONGEST_SECONDS,
    EVENT_LOOP_CPU_SECONDS,
    EVENT_LOOP_HELD_SECONDS,
    EVENT_LOOP_LAG_SECONDS,
    EVENT_LOOP_LONGEST_SECONDS,
    EVENT_LOOP_TURNS,
)
from fetchproxy.runtime.garbage import NewObjects

# Shorter turns are only counted, because there are tens of thousands of them a second.
HELD_S_MIN = 0.001
PUBLISH_INTERVAL_S = 1.0
LAG_INTERVAL_S = 0.5  # on average
_GOLDEN_RATIO = 0.618  # spreads its multiples evenly
LONGEST_WITHIN_S = 60.0
# So many sockets are served in one turn. A thousand clients that send in the same moment would hold
# the loop for 0.1 s, and for seconds if each begins TLS. The kernel gives the others next, in turn.
EVENTS_AT_ONCE_MAX = 16
# Any: typeshed does not know it.
_SelectorSocketTransport: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


class TurnTimes:
    """The times of the turns so far, in seconds."""

    __slots__ = ("_recent", "_taken", "busy_s", "cpu_longest_s", "longest_s", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.busy_s = 0.0
        self.longest_s = 0.0  # since the last `publish`
        self.cpu_longest_s = 0.0  # the same, in the thread's own CPU time
        # (both) for each PUBLISH_INTERVAL_S
        self._recent: deque[tuple[float, float]] = deque(
            maxlen=round(LONGEST_WITHIN_S / PUBLISH_INTERVAL_S)
        )
        self._taken = (0, 0.0)

    def add(self, held_s: float, cpu_s: float = 0.0) -> None:
        self.turns += 1
        self.busy_s += held_s
        if held_s > self.longest_s:
            self.longest_s = held_s
        if cpu_s > self.cpu_longest_s:
            self.cpu_longest_s = cpu_s
        if held_s >= HELD_S_MIN:
            EVENT_LOOP_HELD_SECONDS.observe(held_s)
            EVENT_LOOP_CPU_SECONDS.observe(cpu_s)

    def publish(self) -> None:
        """Update the metrics; called once every PUBLISH_INTERVAL_S."""
        turns, busy_s = self._taken
        EVENT_LOOP_TURNS.inc(self.turns - turns)
        EVENT_LOOP_BUSY_SECONDS.inc(self.busy_s - busy_s)
        self._taken = (self.turns, self.busy_s)
        self._recent.append((self.longest_s, self.cpu_longest_s))
        self.longest_s = self.cpu_longest_s = 0.0
        EVENT_LOOP_LONGEST_SECONDS.set(max(longest_s for longest_s, _ in self._recent))
        EVENT_LOOP_CPU_LONGEST_SECONDS.set(max(cpu_s for _, cpu_s in self._recent))


class FewAtOnce(selectors.DefaultSelector):
    """As its base, with at most EVENTS_AT_ONCE_MAX events from one `select` where that is epoll."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not isinstance(self, selectors.EpollSelector):
            return super().select(timeout)
        # A shorter list of what the base returns would not do: the kernel would list the same
        # sockets first again, and the last would starve.
        wait_s = -1.0 if timeout is None else max(0.0, math.ceil(timeout * 1e3) * 1e-3)
        try:
            events = self._selector.poll(wait_s, EVENTS_AT_ONCE_MAX)  # type: ignore[attr-defined]
        except InterruptedError:
            return []
        ready, keys = [], self._fd_to_key  # type: ignore[attr-defined]
        for fd, event in events:
            if (key := keys.get(fd)) is not None:
                mask = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                mask |= selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                ready.append((key, mask & key.events))
        return ready


class TimedSelector(FewAtOnce):
    """`clock` and `cpu_clock` (the thread's own CPU time) are in seconds and never go back."""

    def __init__(
        self, times: TurnTimes, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._add = times.add
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._woken_at: float | None = None  # the first turn begins with the loop
        self._cpu_before = 0.0
        self._new_objects = NewObjects()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The thread's clock is a system call. It is read before the loop sleeps, when no work waits
        # for it. The poll of the sockets itself takes a few microseconds.
        self._new_objects.collect_if_due()
        cpu = self._cpu_clock()
        if self._woken_at is not None:
            held_s = self._clock() - self._woken_at
            self._new_objects.worked_s += cpu - self._cpu_before
            self._add(held_s, cpu - self._cpu_before if held_s >= HELD_S_MIN else 0.0)
        self._cpu_before = cpu
        ready = super().select(timeout)
        self._woken_at = self._clock()
        return ready


class _Connection(_SelectorSocketTransport):  # type: ignore[misc]
    """asyncio's own. It keeps bound methods of itself, by which it would stay in memory after its
    end until a collection of garbage finds it.

    One connection ends in each turn of the loop: with it goes what its client has named, which may
    take 4 ms of a fetch session, and many clients may disconnect in the same moment.
    """

    _loop: TimedEventLoop

    def _call_connection_lost(self, exc: Exception | None) -> None:
        self._loop.end_in_turn(partial(self._end, exc))

    def _end(self, exc: Exception | None) -> None:
        super()._call_connection_lost(exc)
        for name in ("_read_ready_cb", "_write_ready"):  # the second from Python 3.12 on
            self.__dict__.pop(name, None)


class TimedEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; it measures its turns. `elapsed`: seconds, for timers and deadlines."""

    def __init__(
        self,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        elapsed: Callable[[], float],
    ) -> None:
        self.times = TurnTimes()
        super().__init__(TimedSelector(self.times, clock, cpu_clock))
        self.time = elapsed  # type: ignore[method-assign]  # asked several times a turn
        self._ending: deque[Callable[[], None]] = deque()

    def _process_events(self, event_list: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Calls what waits for a socket at once, where asyncio queues it behind all ready work.

        So received bytes go on before that work, as they would a moment earlier, and cost no place
        in a queue. What an earlier callback of the same turn has removed is not called.
        """
        for key, mask in event_list:
            reader, writer = key.data
            if mask & selectors.EVENT_READ and reader is not None and not reader._cancelled:
                reader._run()
            if mask & selectors.EVENT_WRITE and writer is not None and not writer._cancelled:
                writer._run()

    def end_in_turn(self, end: Callable[[], None]) -> None:
        """Call `end` in a turn of the loop in which no other connection ends."""
        self._ending.append(end)
        if len(self._ending) == 1:
            self.call_soon(self._end_next)

    def _end_next(self) -> None:
        try:
            self._ending[0]()
        finally:
            self._ending.popleft()
            if self._ending:
                self.call_soon(self._end_next)

    def _make_socket_transport(
        self,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        **more: Any,
    ) -> asyncio.Transport:
        """asyncio's own function, which its documentation does not name."""
        return cast(asyncio.Transport, _Connection(self, sock, protocol, waiter, **more))


async def measure_event_loop_lag() -> None:
    """Runs until cancelled. No two pauses are equal: a process whose CPU quota is used up waits for
    the next period, so a steady timer would begin with each period and never be late.
    """
    clock, share = asyncio.get_running_loop().time, 0.0
    while True:
        share = (share + _GOLDEN_RATIO) % 1.0
        due_at = clock() + LAG_INTERVAL_S * (0.5 + share)
        await asyncio.sleep(due_at - clock())
        EVENT_LOOP_LAG_SECONDS.observe(max(clock() - due_at, 0.0))


async def publish_event_loop_time() -> None:
    """Runs until cancelled. Publishes nothing if the loop does not measure its turns."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(PUBLISH_INTERVAL_S)
        if isinstance(loop, TimedEventLoop):
            loop.times.publish()
