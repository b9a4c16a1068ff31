"""From which offset on archivers are gathering each partition: what the archive is about to get.

Only an archiver knows what it has in its spool, and what it has passed over because the brokers had
lost it. So each leaves an object in the store that says it, and `ArchiverPositions` reads all of
them: below the position there is nothing to wait for, at and above it there is.

    {"version": 1, "beat": 17, "troubles": ["a sentence"], "retention": "the brokers delete …",
     "positions": {"<topic id>": {"0": 1234, "1": -1}}}

An archiver writes its object anew when something in it has changed, and every `BEAT_INTERVAL_S`
with another `beat`. No clock of another machine counts: what a reader sees unchanged for
`SILENT_MAX_S` says nothing any more. Time in which the reader did not look does not count: an
archiver may not have reached the store then either, and has its records still. People hear of a
silent archiver sooner: three looks without a change are no accident.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import ARCHIVERS_HEARD, ARCHIVERS_SILENT
from fetchproxy.runtime.flights import FreshReads
from fetchproxy.runtime.loop import pieces
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.description import INT32, INT64, Fields, decode_document
from fetchproxy.segments.object_keys import parse_uuid, uuid_text
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

VERSION = 1
BEAT_INTERVAL_S = 2.0
SILENT_MAX_S = 30.0
# A small listing each time. With these three an archiver that was killed is named within 15 s.
LOOK_INTERVAL_S = 3.0
MISSED_AFTER_S = 3 * LOOK_INTERVAL_S
# A look that comes later than that has failed in between, and the archiver may have failed too.
LOOK_DELAY_MAX_S = 2.0

# Between two looks further apart nobody has watched whether an archiver is silent.
LOOKS_APART_MAX_S = SILENT_MAX_S / 2

# So long a caller of `look` waits for a store that is slow.
LOOK_WAIT_MAX_S = 0.5
# What an archiver says for people is from the store, and goes on a page.
TROUBLES_MAX = 8
SENTENCE_CHARS_MAX = 1_000
# Of an archiver that has the partition, and has not found out yet where it goes on.
NOT_KNOWN = -1

# By topic id and partition: the first offset that is gathered, or will be.
Positions = Mapping[tuple[UUID, int], int]


@dataclass(frozen=True, slots=True)
class ForPeople:
    """What an archiver says beside its positions. `troubles`: what keeps it from archiving.
    `retention`: what the brokers do with what nobody archives.
    """

    troubles: tuple[str, ...] = ()
    retention: str = ""


async def encode_positions(
    positions: Positions, beat: int, for_people: ForPeople = ForPeople()
) -> bytes:
    """Topic by topic, as 10,000 partitions would hold the event loop for milliseconds."""
    topics: dict[UUID, dict[int, int]] = {}
    for (topic_id, partition), offset in positions.items():
        topics.setdefault(topic_id, {})[partition] = offset
    texts = []
    for piece in pieces(sorted(topics)):
        texts += [f'"{uuid_text(topic_id)}":{_json(topics[topic_id])}' for topic_id in piece]
        await asyncio.sleep(0)
    said = f'"troubles":{_json(for_people.troubles)},"retention":{_json(for_people.retention)}'
    return (
        f'{{"version":{VERSION},"beat":{beat},{said},"positions":{{{",".join(texts)}}}}}\n'
    ).encode()


def _json(value: Mapping[int, int] | tuple[str, ...] | str) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def decode_positions(raw: bytes, key: str) -> tuple[dict[tuple[UUID, int], int], ForPeople]:
    """Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, VERSION, lambda f: (dict(_entries(f)), _for_people(f)))


def _for_people(fields: Fields) -> ForPeople:
    """Cut to what a page can show. Older archivers say none of it."""
    names = fields.names()
    troubles = fields.texts("troubles")[:TROUBLES_MAX] if "troubles" in names else []
    retention = fields.text("retention") if "retention" in names else ""
    return ForPeople(
        tuple(trouble[:SENTENCE_CHARS_MAX] for trouble in troubles), retention[:SENTENCE_CHARS_MAX]
    )


def _entries(fields: Fields) -> Iterator[tuple[tuple[UUID, int], int]]:
    for topic, partitions in fields.mapping("positions").items():
        topic_id = parse_uuid(topic)
        if topic_id is None:
            raise CorruptSegment(f"{topic[:80]!r} is no Kafka Uuid")
        offsets = Fields(partitions)
        for partition in offsets.names():
            # Python refuses to read numbers of thousands of digits at all.
            short = partition.isascii() and partition.isdecimal() and len(partition) <= 10
            if not short or int(partition) >= INT32:
                raise CorruptSegment(f"{partition[:80]!r} is no partition")
            yield (topic_id, int(partition)), offsets.integer(partition, NOT_KNOWN, INT64)


@dataclass(frozen=True, slots=True)
class _Said:
    """What one archiver has said: `version` of its object, and since when it is seen unchanged.

    `watched_from`: from when on every look has come in time, and found it unchanged.
    """

    version: str
    seen_at: float
    positions: Positions
    topics: frozenset[UUID]  # of which there are positions
    for_people: ForPeople
    watched_from: float


class ArchiverPositions:
    """What all archivers say. An async context manager that owns its reads of the store.

    `here` tells of an archiver in this process: its word is newer than any object of the store.
    None: there will be none. `own_key` is that archiver's: what it says is known here already.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        read_max_ms: int,
        clock: Callable[[], float],
        here: Callable[[TopicIdPartition], int | None] | None = None,
        health: Health | None = None,
        own_key: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._health = health or Health()
        self._own_key = own_key
        self._rsm = rsm
        self._read_max_ms = read_max_ms
        self._clock = clock
        self._here = here
        self._said: dict[str, _Said] = {}
        self._looked_at = float("-inf")  # the last time that the store has answered
        self._failing = False
        self._reads = FreshReads[None, None](self._read)

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._reads.__aexit__(*failure)

    async def refresh(self, not_older_than: float) -> None:
        """Look at what archivers say, unless that was done at or after that loop time (s).

        Whoever calls at the same time shares the look. Raises RemoteStorageError.
        """
        await self._reads.get(None, not_older_than)

    async def look(self, age_max_s: float) -> None:
        """As `refresh`, for callers that no outage may hold up: then what was said last counts."""
        if self._failing:
            return  # `run` tries again
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(LOOK_WAIT_MAX_S):
                return await self.refresh(self._clock() - age_max_s)
        self._failing = True

    async def run(self) -> None:
        """For ever: so callers seldom wait, and an archiver that falls silent is noticed."""
        while True:
            with suppress(RemoteStorageError):  # counted by the store
                await self.refresh(self._clock())
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _in_words(self, silent: _Said, partitions: int) -> str:
        """`partitions`: of its own that no other archiver has."""
        whose = "its partition is" if partitions == 1 else f"its {partitions} partitions are"
        since_s = int(self._clock() - silent.seen_at)
        for_ = f"{since_s // 5 * 5} s" if since_s < 60 else f"{since_s // 60} min"
        until = f"; {silent.for_people.retention}" if silent.for_people.retention else ""
        return (
            f"An archiver has not been heard of for {for_}: it was killed, or cannot write to the "
            f"store. Until it is back, or another takes over, {whose} not archived{until}"
        )

    def gathered_from(self, tip: TopicIdPartition) -> int | None:
        """As of the last look; None: nobody says that it gathers the partition. Never blocks."""
        own = None if self._here is None else self._here(tip)
        if own is not None:
            return own
        oldest = self._clock() - SILENT_MAX_S
        key = (tip.topic_id, tip.partition)
        told = [
            said.positions[key]
            for said in self._said.values()
            if said.seen_at > oldest and key in said.positions
        ]
        return min(told, default=None)

    def gathers(self, topic_id: UUID) -> bool:
        """Whether `gathered_from` may know anything of the topic. Never blocks."""
        if self._here is not None:
            return True
        oldest = self._clock() - SILENT_MAX_S
        return any(
            said.seen_at > oldest and topic_id in said.topics for said in self._said.values()
        )

    async def _read(self, _: None, began_at: float) -> None:
        async with within(self._read_max_ms / 1000, "what archivers gather"):
            self._said = await self._read_all(began_at)
            self._looked_at = began_at
            self._failing = False
            self._tell(began_at)

    async def _read_all(self, began_at: float) -> dict[str, _Said]:
        listed = [stored async for stored in self._rsm.objects.list_archiver_positions()]
        said: dict[str, _Said] = {}
        apart_s = began_at - self._looked_at
        for stored in listed:
            known = self._said.get(stored.key)
            if known is not None and known.version == stored.version:
                said[stored.key] = _unchanged(known, began_at, apart_s)
                continue
            positions: Positions = {}
            for_people = ForPeople()
            try:
                raw = await self._rsm.objects.get_archiver_positions(stored.key)
                positions, for_people = decode_positions(raw, stored.key)
            except ObjectNotFound:
                continue  # its archiver has ended since
            except CorruptSegment as error:
                log.warning("archiver_positions_unreadable", key=stored.key, error=str(error))
            topics = frozenset(topic_id for topic_id, _ in positions)
            said[stored.key] = _Said(
                stored.version, began_at, positions, topics, for_people, began_at
            )
        return said

    def _tell(self, looked_at: float) -> None:
        """Report which archivers work and which are silent. One whose partitions others have taken
        over counts as neither.
        """
        missed, heard = {}, {}
        taken: set[tuple[UUID, int]] = set()
        for key, one in self._said.items():
            if looked_at - one.watched_from >= MISSED_AFTER_S:
                missed[key] = one
            else:
                heard[key] = one
                taken.update(one.positions)
        silent = [
            Condition(Kind.ARCHIVER_SILENT, self._in_words(one, left), key, since=one.seen_at)
            for key, one in missed.items()
            if (left := len(one.positions.keys() - taken))
        ]
        ARCHIVERS_HEARD.set(len(heard))
        ARCHIVERS_SILENT.set(len(silent))
        self._health.keep(Kind.ARCHIVER_SILENT, silent)
        # A full disk is all that archivers say. Two on one disk say it once.
        own, disk = self._own_key(), Kind.ARCHIVER_DISK_FAILING
        others = {o.for_people.troubles: key for key, o in heard.items() if key != own}
        self._health.keep(
            disk, [Condition(disk, "; ".join(texts), key) for texts, key in others.items() if texts]
        )


def _unchanged(known: _Said, began_at: float, apart_s: float) -> _Said:
    """`apart_s`: since the look before. The archiver may have had no store in a longer pause."""
    if apart_s > LOOKS_APART_MAX_S:
        return replace(known, seen_at=began_at, watched_from=began_at)
    if apart_s > LOOK_INTERVAL_S + LOOK_DELAY_MAX_S:
        return replace(known, watched_from=began_at)
    return known
