"""Work in steps, so that other work of the loop goes on in between.

Work for the archive gives way to the tail. The loop runs all ready work before it polls its
sockets again. Many consumers of the archive may each have a step ready, such as a check of a
chunk or a response to write, and a record of the tail waits for all of these steps. So each such
step asks `LoopSteps` first, and one step goes on in each turn of the loop. That slows many
consumers of the archive by a tenth, so no step waits while no client reads the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    MutableMapping,
)
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from fetchproxy.errors import FetchProxyError

# A consumer of the tail asks again at once. If it has not for this long, it has disconnected or is
# slow itself.
_RECENT_S = 1.0
# Bounds the wait that a client announces, because it may announce any number.
_WAIT_S_MAX = 30.0
# A step of a fetch costs up to some 10 µs a partition. This many take a millisecond at most.
MANY_PARTITIONS = 100
# Requests and responses of one connection that one turn of the loop handles. A client that sends a
# thousand requests at once lets other clients go in between. Consumers have one or two requests in
# flight.
MESSAGES_A_TURN = 8
# A longer request names more than some 250 partitions. It is parsed in steps.
READ_AT_ONCE_BYTES_MAX = 8_192
_turns_of: WeakKeyDictionary[asyncio.AbstractEventLoop, StepTurns] = WeakKeyDictionary()
T = TypeVar("T")
# A step costs up to some 10 µs an item, so a piece takes at most a few milliseconds.
ITEMS_AT_ONCE = 100


class StepTurns:
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
        # The running loop's, from the first fetch on: each of thousands a second asks it.
        self._clock: Callable[[], float] | None = None
        self._turns = StepTurns()

    def tail_is_read(self, wait_s: float) -> None:
        """A fetch at the end of a log went to a broker, which answers within `wait_s`."""
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        until = self._clock() + (wait_s if wait_s < _WAIT_S_MAX else _WAIT_S_MAX) + _RECENT_S
        if until > self._tail_until:
            self._tail_until = until

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


async def a_turn() -> None:
    """Yield between two steps of long work. All other ready work goes first, and one such step goes
    on in each turn: a hundred clients with long requests hold the loop no longer than one.
    """
    loop = asyncio.get_running_loop()
    turns = _turns_of.get(loop)
    if turns is None:
        turns = _turns_of[loop] = StepTurns()
    await turns.next()


async def checkpoint(partitions: int) -> None:
    """Yield after a step over many partitions. The usual fetch of a few goes on at once."""
    if partitions >= MANY_PARTITIONS:
        await a_turn()


def pieces(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `at_once` items; the last list may be shorter. The caller yields after each list."""
    iterator = iter(items)
    while piece := list(islice(iterator, at_once)):
        yield piece


async def cooperative(items: Iterable[T], at_once: int = ITEMS_AT_ONCE) -> AsyncIterator[T]:
    """All items. Yields to the event loop after each piece."""
    for piece in pieces(items, at_once):
        for item in piece:
            yield item
        if len(piece) == at_once:
            await a_turn()


async def chosen(
    items: Iterable[T], predicate: Callable[[T], bool], at_once: int = ITEMS_AT_ONCE
) -> list[T]:
    """The items for which `predicate` is true, tested `at_once` at a time."""
    kept_items: list[T] = []
    for piece in pieces(items, at_once):
        kept_items += [item for item in piece if predicate(item)]
        if len(piece) == at_once:
            await a_turn()
    return kept_items


async def forget(table: MutableMapping[T, Any], is_gone: Callable[[T], bool]) -> None:
    """Remove the entries whose keys are gone (`is_gone`). No other work comes between test and
    removal.
    """
    async for key in cooperative(list(table)):
        if key in table and is_gone(key):
            del table[key]


async def collected(items: Iterable[T]) -> list[T]:
    """All items of an iterator, taken ITEMS_AT_ONCE at a time."""
    result: list[T] = []
    for piece in pieces(items):
        result += piece
        if len(piece) == ITEMS_AT_ONCE:
            await a_turn()
    return result


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Run `work` on all items, `at_once` in parallel. Raises the first FetchProxyError itself, not
    in a group. No work begins after it.

    For as many items as a client names: a task for each would be cancelled together with all
    others, in one turn of the loop.
    """
    waiting = enumerate(items, 1)
    failures: list[FetchProxyError] = []

    async def worker() -> None:
        for number, item in waiting:
            try:
                await work(item)
            except FetchProxyError as error:  # raised below: here the TaskGroup would wrap it
                failures.append(error)
            if failures:
                return
            if not number % ITEMS_AT_ONCE:
                await a_turn()  # `work` may never have waited

    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(worker())
    if failures:
        raise failures[0]


async def side_by_side(
    items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, None]], begun_at_once: int
) -> None:
    """Run `work` on all items in parallel: for work that shares its requests with the others'.

    A TaskGroup alone would cancel thousands of tasks in one turn of the loop when its caller is
    cancelled. Here they are cancelled in steps.
    """
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        try:
            for piece in pieces(items, begun_at_once):
                tasks += [group.create_task(work(item)) for item in piece]
                await asyncio.sleep(0)
            for task in tasks:
                if not task.done():
                    await asyncio.wait([task])
        except asyncio.CancelledError:
            # The last ones first: the first one may do the work that the others wait for.
            async for task in cooperative(reversed(tasks)):
                task.cancel()
            raise


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
