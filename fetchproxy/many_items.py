"""Work on very many things, piece by piece, so that the event loop is left to others in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar, cast

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
