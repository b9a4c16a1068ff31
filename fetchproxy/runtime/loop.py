"""The event loop: how long it is held, how long work leaves it to others, and what a process
takes of the system for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import selectors
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

import structlog

from fetchproxy.config.memory_plan import FREED_BYTES_MAX
from fetchproxy.config.schema import MiB
from fetchproxy.errors import FetchProxyError
from fetchproxy.observability.metrics import (
    EVENT_LOOP_BUSY_SECONDS,
    EVENT_LOOP_CPU_SECONDS,
    EVENT_LOOP_HELD_SECONDS,
    EVENT_LOOP_LONGEST_SECONDS,
    EVENT_LOOP_TURNS,
    HEAP_FREED_BYTES,
    HEAP_TRIMS,
)

# How long the event loop is held: what everything else that is ready has to wait for.
#
# A turn is what the loop runs between two looks at its sockets, so it is measured where the loop
# looks: in the selector, by readings of clocks (1 µs) and without a task that would wake up for
# it. No callback takes longer than its turn, and the turn is what a byte of the tail waits for. A
# turn also lasts while other processes and threads have the core: how much of it the loop's own
# thread took, another clock tells.

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


# Work for the archive gives way to the tail. The loop runs all that is ready before it looks at its
# sockets again, and many consumers of the archive have a step ready each, a check of a chunk or an
# answer to write: a record of the tail waits for all of them. So whoever has such a step asks here
# first, and one goes on in each turn of the loop. That costs a tenth of the speed of many
# consumers, so nobody waits while no tail is read.

# A consumer of the tail asks again at once: who has not for so long is gone, or slow by itself.
_RECENT_S = 1.0
# Of what a client says that it will wait, as it may say anything.
_WAIT_S_MAX = 30.0


class LoopSteps:
    def __init__(self) -> None:
        self._tail_until = float("-inf")  # loop time, s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting = False

    def tail_is_read(self, wait_s: float) -> None:
        """A broker is asked for the end of a log, and its answer comes within `wait_s`."""
        now = asyncio.get_running_loop().time()
        self._tail_until = max(self._tail_until, now + min(wait_s, _WAIT_S_MAX) + _RECENT_S)

    async def begin(self) -> bool:
        """Before a step. At once while no tail is read; True: others came first."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._tail_until:
            return False
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._granting:
            self._granting = True
            loop.call_soon(self._grant, loop)
        await turn
        return True

    async def go_on(self) -> None:
        """Between two steps: whatever else is ready comes first."""
        if asyncio.get_running_loop().time() < self._tail_until:
            await self.begin()
        else:
            await asyncio.sleep(0)

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is called soon is called in the loop's next turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # as it is where its task was cancelled
                turn.set_result(None)
                loop.call_soon(self._grant, loop)
                return
        self._granting = False


# A step of a fetch costs up to some 10 µs a partition: so many stay well below a millisecond.
MANY_PARTITIONS = 100
# Requests, and answers, of one connection that are handled in one turn of the loop. Who sends a
# thousand at once waits for the others between them; clients that read have one or two under way.
MESSAGES_A_TURN = 8
# A request that names more than some 250 partitions is read bit by bit.
READ_AT_ONCE_BYTES_MAX = 8_192


async def breathe(partitions: int) -> None:
    """After a step that went through so many; the usual fetch of a few goes on at once."""
    if partitions >= MANY_PARTITIONS:
        await asyncio.sleep(0)


T = TypeVar("T")

# A step costs up to some 10 µs a thing: a piece stays at a few milliseconds.
ITEMS_AT_ONCE = 100


def pieces(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `at_once` items, the last one shorter. Who loops over them breathes after each."""
    rest = iter(items)
    while piece := list(islice(rest, at_once)):
        yield piece


async def each_of(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> AsyncIterator[T]:
    """All items, with a breath after each piece."""
    for piece in pieces(items, at_once):
        for item in piece:
            yield item
        if len(piece) == at_once:
            await asyncio.sleep(0)


async def chosen(
    items: Iterable[T], wanted: Callable[[T], bool], at_once: int = ITEMS_AT_ONCE
) -> list[T]:
    """Those that are wanted, asked about a few at a time."""
    found: list[T] = []
    for piece in pieces(items, at_once):
        found += [item for item in piece if wanted(item)]
        if len(piece) == at_once:
            await asyncio.sleep(0)
    return found


async def collected(items: Iterable[T]) -> list[T]:
    """All that an iterator makes, its steps being done a few at a time."""
    found: list[T] = []
    for piece in pieces(items):
        found += piece
        if len(piece) == ITEMS_AT_ONCE:
            await asyncio.sleep(0)
    return found


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """`work` on all of them, so many at once. Raises the first FetchProxyError by itself; no work
    is begun after it.
    """
    waiting = iter(items)
    failures: list[FetchProxyError] = []

    async def worker() -> None:
        for item in waiting:
            try:
                await work(item)
            except FetchProxyError as error:  # raised below: here the TaskGroup would wrap it
                failures.append(error)
            if failures:
                return

    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(worker())
    if failures:
        raise failures[0]


async def _a_turn() -> None:
    await asyncio.sleep(0)


def at_once(steps: Generator[None, None, T]) -> T:
    """What `steps` ends with, where they are known to be few."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return cast(T, ended.value)


async def in_steps(
    steps: Generator[None, None, T], pause: Callable[[], Awaitable[None]] = _a_turn
) -> T:
    """What `steps` ends with; others come first wherever it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return cast(T, ended.value)
        await pause()


log = structlog.get_logger(__name__)

_FILES_A_CLIENT = 2  # its own connection, and the one to its broker


def raise_open_files_max(connections_max: int) -> int:
    """The soft limit, often 1,024, goes up to the hard one, as in the JVM and in Go; the limit from
    now on.

    Logs how many clients it has room for, where that is less than `connections_max`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS: the hard limit may be above what it allows
        log.info("open_files_max_not_raised", open_files_max=soft, error=str(error))
        return soft
    if hard != resource.RLIM_INFINITY and hard < _FILES_A_CLIENT * connections_max:
        room = hard // _FILES_A_CLIENT
        log.info("open_files_max_holds_fewer_clients", open_files_max=hard, clients=room)
    return hard


_uninitialised = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def uninitialised(size_bytes: int) -> bytearray:
    """Memory with any content: fill it before you hand it on. `bytearray(size_bytes)` clears it
    first, which takes a tenth of the CPU of a replay and of an archiver.
    """
    buffer: bytearray = _uninitialised(None, size_bytes)
    return buffer


# Freed memory goes back to the system: a burst's peak must not be the process's size for ever.
#
# glibc keeps what was freed between blocks that are still in use: after a thousand clients with
# half requests of 100 KiB the process held 60 MB of it, in use 23. `malloc_trim` gives whole free
# pages back. It takes about 0.15 ms per MB and holds the heap's lock: often and little is better
# than rarely and much.
#
# Blocks of chunks' size it gives back by itself, each time, and every page of the next one is
# then made and cleared anew: a fifth of the CPU of a replay. So they stay in the heap until a
# trim.


LOOK_INTERVAL_S = 5.0
# From <malloc.h>; the threshold is the largest that glibc takes, the rest follows from it.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES_MAX = 32 * MiB


def spare_collections() -> None:
    """What is there by now stays, and a full collection of garbage need not look at it each time:
    it took 80 ms with the descriptions of S3, while everything else waited.
    """
    gc.collect()
    gc.freeze()


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33; `fordblks` is what is free within the heap."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@dataclass(frozen=True, slots=True)
class Allocator:
    """`freed_bytes()` counts pages that were given back as well: to glibc they are as free."""

    freed_bytes: Callable[[], int]
    give_back: Callable[[], None]
    keep_large_blocks: Callable[[], None]


def glibc_allocator() -> Allocator | None:
    """None where the C library is another one, or older."""
    library = ctypes.CDLL(None)
    try:
        told, trim = library.mallinfo2, library.malloc_trim
    except AttributeError:
        return None
    told.restype = _MallInfo2
    trim.argtypes = [ctypes.c_size_t]

    def keep_large_blocks() -> None:
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES_MAX)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BLOCK_BYTES_MAX)

    return Allocator(lambda: int(told().fordblks), lambda: trim(0), keep_large_blocks)


async def give_back_freed_memory(allocator: Allocator | None) -> None:
    """Until cancelled."""
    if allocator is None:
        log.info("freed_memory_is_kept", reason="not glibc 2.33 or later")
        await asyncio.Event().wait()
        return
    allocator.keep_large_blocks()
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        freed_bytes = allocator.freed_bytes()
        HEAP_FREED_BYTES.set(freed_bytes)
        if freed_bytes > FREED_BYTES_MAX:
            await asyncio.to_thread(allocator.give_back)
            HEAP_TRIMS.inc()
