"""Holds readers at offsets that neither tier has yet, most often until an archiver has copied them.

One look a second for all of them. A reader goes on as soon as its offset is archived, an archiver
has passed it over, no archiver accumulates it any more, or `held_max_ms` is over.
`route_decision.ENDS` has each reason to wait and what ends it. A wait that may be for nothing
(`UNCERTAIN_WAITS`) lasts no longer than a silent archiver is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from fetchproxy_protocol.fetch import PartitionKey

from fetchproxy.metadata.archiver_positions import SILENT_MAX_S
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Kind
from fetchproxy.observability.metrics import HELD_PARTITIONS, LIMITS_REACHED
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.gateway.route_decision import (
    ENDS,
    UNCERTAIN_WAITS,
    WAITING_ROUTES,
    Route,
    RouteDecision,
    Wait,
)

log = structlog.get_logger(__name__)

_LOOK_INTERVAL_S = 1.0
# A reader that has not fetched for this long is no longer waited for, until it comes back.
ABSENT_MAX_S = 60.0

# Whether the client names the topic by id; the partition; the requested offset.
HeldOffset = tuple[bool, PartitionKey, int]
# (by id, offsets, loop time of the look, keys that have waited too long) → their decisions
DecideRoutes = Callable[
    [bool, Mapping[PartitionKey, int], float, Collection[PartitionKey]],
    Awaitable[Mapping[PartitionKey, RouteDecision]],
]


class HeldReader(Protocol):
    def settle(self, key: PartitionKey, offset: int, decision: RouteDecision) -> None:
        """The new decision on `offset`."""


@dataclass(slots=True)
class _HeldEntry:
    """`since`: loop time since which the offset is known to be on its way; None: not known.

    `uncertain_since`: since when it is only possible (`UNCERTAIN_WAITS`).
    `readers`: when each has last fetched (loop s).
    """

    decision: RouteDecision
    since: float | None = None
    uncertain_since: float | None = None
    readers: dict[HeldReader, float] = field(default_factory=dict)


class HeldReaders:
    """Holds readers at offsets that neither tier has yet. One per gateway; `run` decides. `clock`
    gives loop seconds.
    """

    def __init__(self, clock: Callable[[], float], held_max_ms: int) -> None:
        self._clock = clock
        self._held_max_s = held_max_ms / 1000
        self._entries: dict[HeldOffset, _HeldEntry] = {}
        self._of_reader: dict[HeldReader, set[HeldOffset]] = {}
        self._any = asyncio.Event()
        HELD_PARTITIONS.set_function(self._waiting)

    def hold(
        self,
        reader: HeldReader,
        by_id: bool,
        key: PartitionKey,
        offset: int,
        decision: RouteDecision,
    ) -> None:
        """`decision` has one of WAITING_ROUTES. `reader` is told when it changes."""
        entry = self._entries.setdefault((by_id, key, offset), _HeldEntry(decision))
        entry.readers[reader] = self._clock()
        self._of_reader.setdefault(reader, set()).add((by_id, key, offset))
        self._note(entry, decision)
        self._any.set()

    def note_fetch(self, reader: HeldReader, by_id: bool, key: PartitionKey, offset: int) -> bool:
        """Notes that a held reader has fetched again. False: it is not held."""
        entry = self._entries.get((by_id, key, offset))
        if entry is None or reader not in entry.readers:
            return False
        entry.readers[reader] = self._clock()
        return True

    def leave(self, reader: HeldReader) -> None:
        for where in list(self._of_reader.get(reader, ())):
            self._remove(where, reader)

    def _remove(self, where: HeldOffset, reader: HeldReader) -> None:
        del self._entries[where].readers[reader]
        self._of_reader[reader].discard(where)
        if not self._of_reader[reader]:
            del self._of_reader[reader]
        if not self._entries[where].readers:
            del self._entries[where]

    async def run(self, decide_routes: DecideRoutes) -> None:
        """For ever. Asks nothing while no reader is held."""
        while True:
            if not self._entries:
                self._any.clear()
                await self._any.wait()
            await asyncio.sleep(_LOOK_INTERVAL_S)
            await self._forget_absent()
            async for by_id, offsets in self._looks():
                await self._decide_again(decide_routes, by_id, offsets)

    async def _looks(self) -> AsyncIterator[tuple[bool, dict[PartitionKey, int]]]:
        """Nearly always one: readers of a partition are seldom held at several offsets."""
        left = list(self._entries)
        while left:
            by_id = left[0][0]
            offsets: dict[PartitionKey, int] = {}
            later = []
            async for place in cooperative(left):
                if place[0] is by_id and place[1] not in offsets:
                    offsets[place[1]] = place[2]
                else:
                    later.append(place)
            yield by_id, offsets
            left = later

    async def _decide_again(
        self, decide_routes: DecideRoutes, by_id: bool, offsets: Mapping[PartitionKey, int]
    ) -> None:
        now = self._clock()
        overdue, uncertain_overdue = set(), set()
        async for key, offset in cooperative(offsets.items()):
            entry = self._entries.get((by_id, key, offset))
            if entry is None:
                continue
            if entry.since is not None and now - entry.since >= self._held_max_s:
                overdue.add(key)
            elif entry.uncertain_since is not None and now - entry.uncertain_since >= SILENT_MAX_S:
                uncertain_overdue.add(key)
        try:
            decided = await decide_routes(by_id, offsets, now, overdue | uncertain_overdue)
        except Exception as error:  # the readers stay held; the gateway must not fail by them
            log.exception("held_readers_not_judged", error=repr(error))
            return
        async for key, decision in cooperative(decided.items()):
            self._settle(by_id, key, offsets[key], decision, key in overdue)

    def _settle(
        self, by_id: bool, key: PartitionKey, offset: int, decision: RouteDecision, gave_up: bool
    ) -> None:
        entry = self._entries.get((by_id, key, offset))
        if entry is None:
            return
        if decision.outcome in WAITING_ROUTES:
            if decision.outcome is not entry.decision.outcome:
                for reader in entry.readers:
                    reader.settle(key, offset, decision)
            self._note(entry, decision)
            return
        if gave_up:
            LIMITS_REACHED.labels("held_max_ms").inc()
            log.warning(
                "held_reader_led_on",
                topic=decision.tp.topic if decision.tp else None,
                partition=key[1],
                offset=offset,
                limit="held_max_ms",
            )
        for reader in list(entry.readers):
            self._remove((by_id, key, offset), reader)
            reader.settle(key, offset, decision)

    def _note(self, entry: _HeldEntry, decision: RouteDecision) -> None:
        """Counts only the time in which both archiver and reader could have gone on."""
        entry.decision = decision
        waits_for, now = decision.waits_for, self._clock()
        if waits_for is None or ENDS[waits_for][1] is None:
            entry.since = None
        elif entry.since is None:
            entry.since = now
        if waits_for not in UNCERTAIN_WAITS:
            entry.uncertain_since = None
        elif entry.uncertain_since is None:
            entry.uncertain_since = now

    async def _forget_absent(self) -> None:
        oldest = self._clock() - ABSENT_MAX_S
        async for where, entry in cooperative(list(self._entries.items())):
            for reader in [r for r, at in entry.readers.items() if at < oldest]:
                self._remove(where, reader)

    def conditions(self) -> Iterator[Condition]:
        """One for each reason to wait."""
        waits: dict[Wait, dict[object, tuple[bool, PartitionKey, int]]] = {}
        for where, entry in self._entries.items():
            reason = entry.decision.waits_for
            if reason is not None and reason is not Wait.RECORDS:
                tp = entry.decision.tp
                waits.setdefault(reason, {}).setdefault(tp or where[:2], where)
        for reason, partitions in waits.items():
            count, (first, (_, key, offset)) = len(partitions), next(iter(partitions.items()))
            of = "1 partition" if count == 1 else f"{count} partitions"
            place = str(first) if isinstance(first, TopicIdPartition) else f"partition {key[1]}"
            end, _ = ENDS[reason]
            yield Condition(
                Kind.READERS_HELD,
                f"readers of {of} wait for {reason.value} (such as {place} at offset {offset}), "
                f"until {end}",
                reason.name.lower(),
            )

    def _waiting(self) -> int:
        """Partitions with a reader that waits for the archiver, by id or by name."""
        return len(
            {
                entry.decision.tp or (by_id, key)
                for (by_id, key, _), entry in self._entries.items()
                if entry.decision.outcome is Route.WAIT
            }
        )
