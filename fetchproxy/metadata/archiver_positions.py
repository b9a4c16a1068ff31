"""From which offset on archivers are gathering each partition: what the archive is about to get.

The archive itself shows what was copied. What an archiver has in its spool, and what it has passed
over because the brokers had lost it, only the archiver knows. So each one leaves an object in the
store that says it, and `ArchiverPositions` reads all of them: below the position there is nothing
to wait for, at and above it there is.

    {"version": 1, "beat": 17, "positions": {"<topic id>": {"0": 1234, "1": -1}}}

An archiver writes its object anew when a position has changed, and every `BEAT_INTERVAL_S` with
another `beat`, so that one that was killed can be told from one that has nothing to say. No clock
of another machine counts: what a reader sees unchanged for `SILENT_MAX_S` says nothing any more.
Time in which the reader did not look does not count: an archiver may not have reached the store
then either, and has its records still.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound, RemoteStorageError, StorageUnavailable
from fetchproxy.many_items import pieces
from fetchproxy.metadata.fresh_reads import FreshReads
from fetchproxy.metadata.json_fields import INT32, INT64, Fields, decode_document
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.layout import parse_uuid, uuid_text
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

VERSION = 1
BEAT_INTERVAL_S = 10.0
SILENT_MAX_S = 3 * BEAT_INTERVAL_S

# Between two looks further apart nobody has watched whether an archiver is silent.
LOOKS_APART_MAX_S = SILENT_MAX_S / 2

# So long a caller of `look` waits for a store that is slow, and a store that failed is left alone.
LOOK_WAIT_MAX_S = 0.5
LOOK_PAUSE_S = 5.0
# So long after somebody asked it is looked again and again, so that the next one need not wait.
IN_USE_S = 60.0
# Of an archiver that has the partition, and has not found out yet where it goes on.
NOT_KNOWN = -1

# By topic id and partition: the first offset that is gathered, or will be.
Positions = Mapping[tuple[UUID, int], int]


async def encode_positions(positions: Positions, beat: int) -> bytes:
    """Topic by topic, as 10,000 partitions would hold the event loop for milliseconds."""
    topics: dict[UUID, dict[int, int]] = {}
    for (topic_id, partition), offset in positions.items():
        topics.setdefault(topic_id, {})[partition] = offset
    texts = []
    for piece in pieces(sorted(topics)):
        texts += [f'"{uuid_text(topic_id)}":{_json(topics[topic_id])}' for topic_id in piece]
        await asyncio.sleep(0)
    return f'{{"version":{VERSION},"beat":{beat},"positions":{{{",".join(texts)}}}}}\n'.encode()


def _json(offsets: Mapping[int, int]) -> str:
    return json.dumps(offsets, separators=(",", ":"), sort_keys=True)


def decode_positions(raw: bytes, key: str) -> dict[tuple[UUID, int], int]:
    """Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, VERSION, lambda fields: dict(_entries(fields)))


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
    """What one archiver has said: `version` of its object, and since when it is seen unchanged."""

    version: str
    seen_at: float
    positions: Positions
    topics: frozenset[UUID]  # of which there are positions


class ArchiverPositions:
    """What all archivers say. An async context manager that owns its reads of the store.

    `here` tells of an archiver in this process: its word is newer than any object of the store.
    None: there will be none.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        read_max_ms: int,
        clock: Callable[[], float],
        here: Callable[[TopicIdPartition], int | None] | None = None,
    ) -> None:
        self._rsm = rsm
        self._read_max_ms = read_max_ms
        self._clock = clock
        self._here = here
        self._said: dict[str, _Said] = {}
        self._looked_at = float("-inf")  # the last time that the store has answered
        self._failing = False
        self._asked_at = float("-inf")
        self._reads = FreshReads[None, None](self._read)

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._reads.__aexit__(kind, error, traceback)

    async def refresh(self, not_older_than: float) -> None:
        """Look at what archivers say, unless that was done at or after that loop time (s).

        Whoever calls at the same time shares the look. Raises RemoteStorageError.
        """
        await self._reads.get(None, not_older_than)

    async def look(self, age_max_s: float) -> None:
        """As `refresh`, for callers that no outage may hold up: then what was last said counts."""
        self._asked_at = self._clock()
        if self._failing:
            return  # `run` tries again
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(LOOK_WAIT_MAX_S):
                return await self.refresh(self._clock() - age_max_s)
        self._failing = True

    async def run(self) -> None:
        """For ever: look again after a failure, and while callers ask, so that few of them wait."""
        while True:
            await asyncio.sleep(LOOK_PAUSE_S)
            if self._failing or self._clock() - self._asked_at < IN_USE_S:
                with suppress(RemoteStorageError):  # counted by the store
                    await self.refresh(self._clock())

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
        try:
            async with asyncio.timeout(self._read_max_ms / 1000):
                self._said = await self._read_all(began_at)
                self._looked_at = began_at
                self._failing = False
        except TimeoutError:
            raise StorageUnavailable(
                f"what archivers gather: not read within {self._read_max_ms} ms"
            ) from None

    async def _read_all(self, began_at: float) -> dict[str, _Said]:
        listed = [stored async for stored in self._rsm.archivers.list()]
        said: dict[str, _Said] = {}
        has_watched = began_at - self._looked_at <= LOOKS_APART_MAX_S
        for stored in listed:
            known = self._said.get(stored.key)
            if known is not None and known.version == stored.version:
                said[stored.key] = known if has_watched else replace(known, seen_at=began_at)
                continue
            try:
                raw = await self._rsm.archivers.get_archiver_positions(stored.key)
                positions: Positions = decode_positions(raw, stored.key)
            except ObjectNotFound:
                continue  # its archiver has ended since
            except CorruptSegment as error:
                log.warning("archiver_positions_unreadable", key=stored.key, error=str(error))
                positions = {}
            topics = frozenset(topic_id for topic_id, _ in positions)
            said[stored.key] = _Said(stored.version, began_at, positions, topics)
        return said
