"""How long the event loop is held: what everything else that is ready has to wait for.

A turn is what the loop runs between two looks at its sockets, so it is measured where the loop
looks: in the selector, by readings of clocks (1 µs) and without a task that would wake up for it.
No callback takes longer than its turn, and the turn is what a byte of the tail waits for. A turn
also lasts while other processes and threads have the core: how much of it the loop's own thread
took, another clock tells.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable

from fetchproxy.observability.metrics import (
    EVENT_LOOP_BUSY_SECONDS,
    EVENT_LOOP_CPU_SECONDS,
    EVENT_LOOP_HELD_SECONDS,
    EVENT_LOOP_LONGEST_SECONDS,
    EVENT_LOOP_TURNS,
)

# Shorter turns are counted and not sorted: there are tens of thousands of them a second.
HELD_S_MIN = 0.001
PUBLISH_INTERVAL_S = 1.0
LONGEST_WITHIN_S = 60.0


class TurnTimes:
    """What the turns so far have taken; seconds."""

    __slots__ = ("_recent", "_taken", "busy_s", "cpu_longest_s", "longest_s", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.busy_s = 0.0
        self.longest_s = 0.0  # since the last `publish`
        self.cpu_longest_s = 0.0  # the same of what turns took of the thread's own time
        # (of both) by PUBLISH_INTERVAL_S
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

    def publish(self) -> None:
        """To the metrics; once in PUBLISH_INTERVAL_S."""
        turns, busy_s = self._taken
        EVENT_LOOP_TURNS.inc(self.turns - turns)
        EVENT_LOOP_BUSY_SECONDS.inc(self.busy_s - busy_s)
        self._taken = (self.turns, self.busy_s)
        self._recent.append((self.longest_s, self.cpu_longest_s))
        self.longest_s = self.cpu_longest_s = 0.0
        EVENT_LOOP_LONGEST_SECONDS.set(max(longest_s for longest_s, _ in self._recent))
        EVENT_LOOP_CPU_SECONDS.set(max(cpu_s for _, cpu_s in self._recent))


class TimedSelector(selectors.DefaultSelector):
    """`clock` and `cpu_clock`, the thread's own, are in seconds and never go back."""

    def __init__(
        self, times: TurnTimes, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._add = times.add
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._woken_at: float | None = None  # the first turn begins with the loop
        self._cpu_before = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The thread's clock is a system call: it is read before the loop sleeps, where nobody waits
        # for it. What a look at the sockets takes itself is a few microseconds.
        cpu = self._cpu_clock()
        if self._woken_at is not None:
            held_s = self._clock() - self._woken_at
            self._add(held_s, cpu - self._cpu_before if held_s >= HELD_S_MIN else 0.0)
        self._cpu_before = cpu
        ready = super().select(timeout)
        self._woken_at = self._clock()
        return ready


class TimedEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with its turns measured. `elapsed`: seconds, for timers and deadlines."""

    def __init__(
        self,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        elapsed: Callable[[], float],
    ) -> None:
        self.times = TurnTimes()
        super().__init__(TimedSelector(self.times, clock, cpu_clock))
        self.time = elapsed  # type: ignore[method-assign]  # asked several times a turn


async def publish_event_loop_time() -> None:
    """Until cancelled; of a loop that does not measure nothing is said."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(PUBLISH_INTERVAL_S)
        if isinstance(loop, TimedEventLoop):
            loop.times.publish()
