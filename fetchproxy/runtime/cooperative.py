"""Work in steps, so that other work of the loop goes on in between."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    MutableMapping,
)
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from fetchproxy.errors import FetchProxyError
from fetchproxy.runtime.loop_steps import StepTurns

# A step of a fetch costs up to some 10 µs a partition. This many take a millisecond at most.
MANY_PARTITIONS = 100
# Requests and answers of one connection that one turn of the loop handles. A client that sends a
# thousand requests at once lets other clients go in between. Consumers have one or two requests in
# flight.
MESSAGES_A_TURN = 8
# A longer request names more than some 250 partitions. It is parsed in steps.
READ_AT_ONCE_BYTES_MAX = 8_192


_turns_of: WeakKeyDictionary[asyncio.AbstractEventLoop, StepTurns] = WeakKeyDictionary()
T = TypeVar("T")
# A step costs up to some 10 µs an item, so a piece takes at most a few milliseconds.
ITEMS_AT_ONCE = 100


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
