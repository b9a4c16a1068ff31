"""Checks that followers make progress while things are broken, and not only in the calm.

A fault of a part that a reader needs explains why the reader stands still, and so does the recovery
time after the fault. All other time during which a reader stands still with records left to read is
counted and limited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from chaos.ledger import Log
from chaos.plan import ARCHIVERS, STORE, Act, Kind, victim
from chaos.readers import Follower

STANDS_S_MAX = 30.0
# Time for leader elections, expiry of group sessions and reconnects of clients.
GETS_OVER_S = 15.0
LOOK_INTERVAL_S = 0.5
# A reader further behind may need records that local retention has deleted at the brokers.
AT_THE_TAIL_RECORDS = 400
_TO_THE_PROCESS = (Kind.KILL, Kind.PAUSE)


class Faults:
    """The faults that are active or ended a moment ago. Several threads use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: list[Act] = []
        self._ended: list[tuple[float, Act]] = []

    @contextmanager
    def during(self, act: Act) -> Iterator[None]:
        with self._lock:
            self._active.append(act)
        try:
            yield
        finally:
            with self._lock:
                self._active.remove(act)
                self._ended.append((self._clock(), act))

    def now(self) -> list[Act]:
        with self._lock:
            since = self._clock() - GETS_OVER_S
            self._ended = [(at, act) for at, act in self._ended if at > since]
            return [*self._active, *(act for _, act in self._ended)]


def explains(act: Act, proxies: Sequence[str], *, needs_archive: bool) -> bool:
    """Whether this act can explain that a reader behind one of `proxies` stands still."""
    if victim(act) == "brokers":
        return True
    if act.target in proxies and act.kind in _TO_THE_PROCESS:
        return True
    # Offsets that no tier has are known to be lost only after an archiver has reported them.
    return needs_archive and act.target in (*proxies, *ARCHIVERS, STORE)


@dataclass
class _Place:
    """The position of a follower, or of a group, in one log."""

    name: str
    log: Log
    followers: Sequence[Follower]
    at: int = -1
    stands_s: float = 0.0
    reports: bool = False

    def look(self, passed_s: float, faults: Sequence[Act]) -> str | None:
        at = max(each.courses[self.log.name].position for each in self.followers)
        behind = max(self.log.written, default=-1) + 1 - at
        if at != self.at or behind <= 0:
            self.at, self.stands_s, self.reports = at, 0.0, False
            return None
        needs_archive = behind > AT_THE_TAIL_RECORDS or self.log.is_lost(at)
        proxies = [each.proxy for each in self.followers]
        if any(explains(act, proxies, needs_archive=needs_archive) for act in faults):
            return None
        self.stands_s += passed_s
        if self.stands_s <= STANDS_S_MAX or self.reports:
            return None
        self.reports = True
        return (
            f"{self.name}, {self.log.name}: stands at {at}, {behind} behind, for "
            f"{self.stands_s:.0f} s that no fault explains"
        )


@dataclass
class Progress:
    """`groups`: followers that share partitions. A thread watches them during the acts."""

    groups: Sequence[Sequence[Follower]]
    faults: Faults = field(default_factory=Faults)
    reports: list[str] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        places = [
            _Place(group[0].name, course.log, group)
            for group in self.groups
            for course in group[0].courses.values()
        ]
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(places, over), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _watch(self, places: Sequence[_Place], over: threading.Event) -> None:
        before = time.monotonic()
        while not over.wait(LOOK_INTERVAL_S):
            now = time.monotonic()
            faults = self.faults.now()
            # If the whole machine stood still, that time says nothing about readers.
            passed_s, before = min(now - before, 2 * LOOK_INTERVAL_S), now
            self.reports += [
                complaint for place in places if (complaint := place.look(passed_s, faults))
            ]
