"""The event loop: how long turns hold it, how work yields it; open files and memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import resource
import select
import selectors
import socket
import time
from asyncio import selector_events
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import structlog

from fetchproxy.config.memory_plan import FREED_BYTES_MAX
from fetchproxy.config.schema import MiB
from fetchproxy.errors import FetchProxyError
from fetchproxy.observability.metrics import (
    EVENT_LOOP_BUSY_SECONDS,
    EVENT_LOOP_CPU_HELD_SECONDS,
    EVENT_LOOP_CPU_SECONDS,
    EVENT_LOOP_HELD_SECONDS,
    EVENT_LOOP_LONGEST_SECONDS,
    EVENT_LOOP_TURNS,
    HEAP_FREED_BYTES,
    HEAP_TRIMS,
)

# How long a turn holds the event loop. All other ready work waits for that time.
#
# A turn is the work that the loop runs between two polls of its sockets. So the selector measures
# it, by reading clocks (1 µs), without a task that would have to wake up. No callback takes longer
# than its turn, and a byte of the tail waits for the whole turn. A turn also lasts while other
# processes and threads use the core. A second clock shows how much of it the loop's own thread
# used.

# Shorter turns are only counted, because there are tens of thousands of them a second.
HELD_S_MIN = 0.001
PUBLISH_INTERVAL_S = 1.0
LONGEST_WITHIN_S = 60.0


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
            EVENT_LOOP_CPU_HELD_SECONDS.observe(cpu_s)

    def publish(self) -> None:
        """Update the metrics; called once every PUBLISH_INTERVAL_S."""
        turns, busy_s = self._taken
        EVENT_LOOP_TURNS.inc(self.turns - turns)
        EVENT_LOOP_BUSY_SECONDS.inc(self.busy_s - busy_s)
        self._taken = (self.turns, self.busy_s)
        self._recent.append((self.longest_s, self.cpu_longest_s))
        self.longest_s = self.cpu_longest_s = 0.0
        EVENT_LOOP_LONGEST_SECONDS.set(max(longest_s for longest_s, _ in self._recent))
        EVENT_LOOP_CPU_SECONDS.set(max(cpu_s for _, cpu_s in self._recent))


# So many sockets are served in one turn. A thousand clients that send in the same moment would hold
# the loop for 0.1 s, and for seconds if each begins TLS. The kernel gives the others next, in turn.
EVENTS_AT_ONCE_MAX = 16


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
            self._new_objects.worked_s += held_s
            self._add(held_s, cpu - self._cpu_before if held_s >= HELD_S_MIN else 0.0)
        self._cpu_before = cpu
        ready = super().select(timeout)
        self._woken_at = self._clock()
        return ready


# Any: typeshed does not know it.
_SelectorSocketTransport: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


class _Connection(_SelectorSocketTransport):  # type: ignore[misc]
    """asyncio's own. It keeps bound methods of itself, by which it would stay in memory after its
    end until a collection of garbage finds it.
    """

    def _call_connection_lost(self, exc: Exception | None) -> None:
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

    def _make_socket_transport(
        self,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        **more: Any,
    ) -> asyncio.Transport:
        """asyncio's own function, which its documentation does not name."""
        return cast(asyncio.Transport, _Connection(self, sock, protocol, waiter, **more))


async def publish_event_loop_time() -> None:
    """Runs until cancelled. Publishes nothing if the loop does not measure its turns."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(PUBLISH_INTERVAL_S)
        if isinstance(loop, TimedEventLoop):
            loop.times.publish()


# Work for the archive gives way to the tail. The loop runs all ready work before it polls its
# sockets again. Many consumers of the archive may each have a step ready, such as a check of a
# chunk or a response to write, and a record of the tail waits for all of these steps. So each such
# step asks here first, and one step goes on in each turn of the loop. That slows many consumers of
# the archive by a tenth, so no step waits while no client reads the tail.

# A consumer of the tail asks again at once. If it has not for this long, it has disconnected or is
# slow itself.
_RECENT_S = 1.0
# Bounds the wait that a client announces, because it may announce any number.
_WAIT_S_MAX = 30.0


class _Turns:
    """Lets one step go on in each turn of the loop, in the order in which steps came."""

    __slots__ = ("_granting", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting = False

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._granting:
            self._granting = True
            loop.call_soon(self._grant, loop)
        await turn

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let one step go on, and schedule the next: `call_soon` runs in the loop's next turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # it is done if its task was cancelled
                turn.set_result(None)
                loop.call_soon(self._grant, loop)
                return
        self._granting = False


class LoopSteps:
    def __init__(self) -> None:
        self._tail_until = float("-inf")  # loop time, s
        self._turns = _Turns()

    def tail_is_read(self, wait_s: float) -> None:
        """A fetch at the end of a log went to a broker, which answers within `wait_s`."""
        now = asyncio.get_running_loop().time()
        self._tail_until = max(self._tail_until, now + min(wait_s, _WAIT_S_MAX) + _RECENT_S)

    async def begin(self) -> bool:
        """Call before a step. Returns at once if no client reads the tail. True: it waited."""
        if asyncio.get_running_loop().time() >= self._tail_until:
            return False
        await self._turns.next()
        return True

    async def go_on(self) -> None:
        """Call between two steps: all other ready work goes first."""
        if asyncio.get_running_loop().time() < self._tail_until:
            await self.begin()
        else:
            await asyncio.sleep(0)


# A step of a fetch costs up to some 10 µs a partition. This many take a millisecond at most.
MANY_PARTITIONS = 100
# Requests and answers of one connection that one turn of the loop handles. A client that sends a
# thousand requests at once lets other clients go in between. Consumers have one or two requests in
# flight.
MESSAGES_A_TURN = 8
# A longer request names more than some 250 partitions. It is parsed in steps.
READ_AT_ONCE_BYTES_MAX = 8_192


_turns_of: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def a_turn() -> None:
    """Yield between two steps of long work. All other ready work goes first, and one such step goes
    on in each turn: a hundred clients with long requests hold the loop no longer than one.
    """
    loop = asyncio.get_running_loop()
    turns = _turns_of.get(loop)
    if turns is None:
        turns = _turns_of[loop] = _Turns()
    await turns.next()


async def checkpoint(partitions: int) -> None:
    """Yield after a step over many partitions. The usual fetch of a few goes on at once."""
    if partitions >= MANY_PARTITIONS:
        await a_turn()


T = TypeVar("T")

# A step costs up to some 10 µs an item, so a piece takes at most a few milliseconds.
ITEMS_AT_ONCE = 100


def pieces(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `at_once` items; the last list may be shorter. The caller yields after each list."""
    rest = iter(items)
    while piece := list(islice(rest, at_once)):
        yield piece


async def cooperative(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> AsyncIterator[T]:
    """All items. Yields to the event loop after each piece."""
    for piece in pieces(items, at_once):
        for item in piece:
            yield item
        if len(piece) == at_once:
            await a_turn()


async def chosen(
    items: Iterable[T], wanted: Callable[[T], bool], at_once: int = ITEMS_AT_ONCE
) -> list[T]:
    """The items for which `wanted` is true, tested `at_once` at a time."""
    found: list[T] = []
    for piece in pieces(items, at_once):
        found += [item for item in piece if wanted(item)]
        if len(piece) == at_once:
            await a_turn()
    return found


async def forget(table: MutableMapping[T, Any], gone: Callable[[T], bool]) -> None:
    """Remove the entries whose keys are `gone`. No other work comes between test and removal."""
    async for key in cooperative(list(table)):
        if key in table and gone(key):
            del table[key]


async def collected(items: Iterable[T]) -> list[T]:
    """All items of an iterator, taken ITEMS_AT_ONCE at a time."""
    found: list[T] = []
    for piece in pieces(items):
        found += piece
        if len(piece) == ITEMS_AT_ONCE:
            await a_turn()
    return found


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Run `work` on all items, `at_once` in parallel. Raises the first FetchProxyError itself, not
    in a group. No work begins after it.
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


def at_once(steps: Generator[None, None, T]) -> T:
    """The result of `steps`, without pauses: for few steps, or in a thread."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return cast(T, ended.value)


async def in_steps(
    steps: Generator[None, None, T], pause: Callable[[], Awaitable[None]] = a_turn
) -> T:
    """The result of `steps`. Other work goes first each time it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return cast(T, ended.value)
        await pause()


log = structlog.get_logger(__name__)

_FILES_A_CLIENT = 2  # its own connection, and the one to its broker
# What stays open for all else, while clients take what they get: requests to the store and brokers,
# the console, the spool. Of a low limit, half.
_FILES_OF_OUR_OWN = 512


def clients_that_fit(open_files_max: int, connections_max: int) -> int:
    """How many clients may connect, so that none of the process's other parts runs out of files."""
    if open_files_max == resource.RLIM_INFINITY:
        return connections_max
    own = min(_FILES_OF_OUR_OWN, open_files_max // 2)
    return max(1, min(connections_max, (open_files_max - own) // _FILES_A_CLIENT))


def raise_open_files_max(connections_max: int) -> int:
    """Raise the soft limit, often 1,024, to the hard limit, as the JVM and Go do. Returns the limit
    that applies now.

    Logs how many clients fit, if fewer than `connections_max`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS may refuse a limit as high as the hard one
        log.info("open_files_max_not_raised", open_files_max=soft, error=str(error))
        return soft
    if (room := clients_that_fit(hard, connections_max)) < connections_max:
        log.info("open_files_max_holds_fewer_clients", open_files_max=hard, clients=room)
    return hard


_uninitialised = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def uninitialised(size_bytes: int) -> bytearray:
    """A bytearray with arbitrary content: the caller must fill it. `bytearray(size_bytes)` would
    clear it first, which takes a tenth of the CPU of a replay and of an archiver.
    """
    buffer: bytearray = _uninitialised(None, size_bytes)
    return buffer


# Freed memory goes back to the system, so that the process does not keep the size of a peak.
#
# glibc keeps freed memory between blocks that are still in use. After a thousand clients with half
# requests of 100 KiB, the process held 60 MB of freed memory with 23 MB in use. `malloc_trim` gives
# whole free pages back. It takes about 0.15 ms per MB and holds the heap's lock, so frequent small
# trims are better than rare large ones.
#
# By default, glibc returns each freed block of a chunk's size at once, and the kernel makes and
# clears every page of the next block anew. That takes a fifth of the CPU of a replay. So these
# blocks stay in the heap until a trim.


LOOK_INTERVAL_S = 5.0
# From <malloc.h>. The block size is the largest mmap threshold that glibc accepts; the trim
# threshold follows from it.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES_MAX = 32 * MiB


# A full collection of garbage visits every object that is not exempt, and all other work waits: 80
# ms with the descriptions of S3 alone, 70 ms with 100,000 committed offsets or with fetch sessions
# of 200,000 topics. So when one has taken _LONG_S, what has outlived it is exempt from the next.
#
# Python counts how many objects more there are since the last collection. Where each new one
# replaces an old one, as in a refresh of 20,000 partitions, it counts none: the next collection
# visited 170,000 of them. So the event loop also collects by its working time (`NewObjects`).
#
# Exempt objects go when nothing refers to them. Only those that refer to each other would stay, so
# what ends again and again may not: sessions let go of their parts (`ClientSession`), connections
# of themselves (`_Connection`), waits of an error that others get too (`single_flight`). All
# others are found when everything is visited, once in a while, or when very many have come (ADR
# 0071).
_LONG_S = 0.003  # of CPU: 15,000 objects or more
_COLLECT_AFTER_S = 0.01
_FULL_AFTER = 3  # collections of new objects
_VISIT_AFTER_S = 6 * 3600.0
# More of them than an archive of 20,000 partitions has at its start.
_VISIT_AFTER_OBJECTS = 2_000_000
_VISIT_LOOK_S = 600.0  # to count a million takes 10 ms


def spare_collections() -> None:
    """Call once, when the objects that stay are there."""
    gc.collect()
    gc.freeze()
    gc.collect()  # Python puts off the next one until a quarter has come of what this one has left
    gc.callbacks.append(_EXEMPTING)


class _Exempting:
    """A callback of `gc`. It may not ask for the objects themselves (`gc.get_objects`): Python
    cannot finish a tuple that it makes in another thread while somebody else refers to it.
    """

    def __init__(self) -> None:
        self._began_at = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_at = time.thread_time()
        elif time.thread_time() - self._began_at >= _LONG_S:
            gc.freeze()


_EXEMPTING = _Exempting()


class NewObjects:
    """Collects garbage after each _COLLECT_AFTER_S of the loop's work, if `spare_collections` was
    called. `worked_s`: since the last time; the owner adds to it.
    """

    __slots__ = ("_times", "worked_s")

    def __init__(self) -> None:
        self.worked_s = 0.0
        self._times = 0

    def collect_if_due(self) -> None:
        if self.worked_s >= _COLLECT_AFTER_S and _EXEMPTING in gc.callbacks:
            self.worked_s = 0.0
            self._times += 1
            gc.collect(1 if self._times % _FULL_AFTER else 2)


async def visit_exempt_objects() -> None:
    """Runs until cancelled."""
    clock = asyncio.get_running_loop().time
    visited_at, left = clock(), gc.get_freeze_count()
    while True:
        await asyncio.sleep(_VISIT_LOOK_S)
        many = gc.get_freeze_count() >= left + _VISIT_AFTER_OBJECTS
        if many or clock() >= visited_at + _VISIT_AFTER_S:
            gc.unfreeze()
            gc.collect()
            visited_at, left = clock(), gc.get_freeze_count()


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33. `fordblks`: free bytes within the heap."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@dataclass(frozen=True, slots=True)
class Allocator:
    """`freed_bytes()` also counts pages that were given back, because glibc counts them as free."""

    freed_bytes: Callable[[], int]
    give_back: Callable[[], None]
    keep_large_blocks: Callable[[], None]


def glibc_allocator() -> Allocator | None:
    """None: the C library is not glibc, or is older than 2.33."""
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
    """Runs until cancelled."""
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
