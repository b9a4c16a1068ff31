"""A full collection of garbage visits every object that is not exempt, and all other work waits: 80
ms with the descriptions of S3 alone, 70 ms with 100,000 committed offsets or with fetch sessions of
200,000 topics. So when one has taken _LONG_COLLECTION_S, what has outlived it is exempt from the
next.

Python counts how many more objects there are than at the last collection. If each new object
replaces an old one, as in a refresh of 20,000 partitions, this number stays 0. The next collection
then visited 170,000 new objects. So the event loop also collects by its CPU time (`NewObjects`).

Exempt objects go when nothing refers to them. Only those that refer to each other would stay, so
what ends again and again may not: sessions let go of their parts (`ClientSession`), connections
of themselves (`_Connection`), waits of an error that others get too (`single_flight`). All
others are found when everything is visited, once in a while, or when very many have come (ADR
0071).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_LONG_COLLECTION_S = 0.003  # of CPU: 15,000 objects or more
_COLLECT_AFTER_S = 0.01
_FULL_AFTER_S = 0.03
# The next full collection comes after so many times the length of the last one, which may visit
# 15,000 objects that stay in use: they took an eighth of an archiver's CPU.
_FULL_AFTER_TIMES = 30
_VISIT_AFTER_S = 6 * 3600.0
# More of them than an archive of 20,000 partitions has at its start.
_VISIT_AFTER_OBJECTS = 2_000_000
_VISIT_LOOK_S = 600.0  # to count a million takes 10 ms


def spare_collections() -> None:
    """Call once, after the start has made the objects that stay until the end."""
    gc.collect()
    gc.freeze()
    gc.collect()  # Python puts off the next one until a quarter has come of what this one has left
    gc.callbacks.append(_EXEMPTING)


@contextmanager
def no_collections() -> Iterator[None]:
    """Around work that makes very many objects and no garbage: collections would visit all of them
    in vain.
    """
    were_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_on:
            gc.enable()


class _Exempting:
    """Called by `gc` before and after each collection. It may not ask for the objects themselves
    (`gc.get_objects`): Python cannot finish a tuple that it makes in another thread while somebody
    else refers to it.
    """

    def __init__(self) -> None:
        self._began_at = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_at = time.thread_time()
        elif time.thread_time() - self._began_at >= _LONG_COLLECTION_S:
            gc.freeze()


_EXEMPTING = _Exempting()


class NewObjects:
    """Collects garbage after each _COLLECT_AFTER_S of the loop's CPU time, if `spare_collections`
    was called. `worked_s`: since the last time; the owner adds to it. `cpu_clock`: the thread's own
    CPU time (s).
    """

    __slots__ = ("_cpu_clock", "_full_took_s", "_since_full_s", "worked_s")

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._cpu_clock = cpu_clock
        self.worked_s = self._since_full_s = self._full_took_s = 0.0

    def collect_if_due(self) -> None:
        if self.worked_s >= _COLLECT_AFTER_S and _EXEMPTING in gc.callbacks:
            self._since_full_s += self.worked_s
            self.worked_s = 0.0
            if self._since_full_s < max(_FULL_AFTER_S, _FULL_AFTER_TIMES * self._full_took_s):
                gc.collect(1)
                return
            began_at = self._cpu_clock()
            gc.collect()
            took_s = self._cpu_clock() - began_at
            # What a long one has visited is exempt now.
            self._full_took_s = took_s if took_s < _LONG_COLLECTION_S else 0.0
            self._since_full_s = 0.0


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
