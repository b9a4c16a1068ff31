"""Follows the metadata topic: one table of segments per partition, as the events in the log say.

Every reader judges an event against the state at its place in the log, so all come to the same
tables, and of two writers that raced all know the same loser. It writes nothing to the store and
builds no views: that is `topic_based`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import structlog

from fetchproxy.config.sections import MetadataConfig
from fetchproxy.errors import (
    ConfigError,
    CorruptSegment,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.metadata.api import MetadataProblem
from fetchproxy.metadata.fresh_reads import FreshReads
from fetchproxy.metadata.kept_events import KeptEvents
from fetchproxy.metadata.metadata_log import LogBounds, LogIdentity, MetadataLog
from fetchproxy.metadata.metadata_partitioner import metadata_partition
from fetchproxy.metadata.records import MetadataEvent, decode_message, encode_message
from fetchproxy.metadata.segment_table import SegmentTable
from fetchproxy.metadata.states import check_deletion, check_update
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import (
    METADATA_EVENTS_READ,
    METADATA_EVENTS_REFUSED,
    METADATA_EVENTS_WRITTEN,
    METADATA_LAG,
    METADATA_REFRESH_ERRORS,
    METADATA_REFRESH_SECONDS,
    METADATA_UNREADABLE,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Of one partition of the topic. One is enough to know that not all is known; more are for people.
PROBLEMS_KEPT_MAX = 100


@dataclass(slots=True)
class _LogPartition:
    """One partition of the metadata topic: how far it was read, and what that came to."""

    position: int = 0  # the next offset to read
    tables: dict[TopicIdPartition, SegmentTable] = field(default_factory=dict)
    unloaded: set[TopicIdPartition] = field(default_factory=set)  # only their files were seen
    # Files that have more than was committed: the offset up to which nothing is to be taken again.
    ahead: dict[TopicIdPartition, int] = field(default_factory=dict)
    problems: tuple[MetadataProblem, ...] = ()  # the first ones
    more_problems: bool = False
    puts_waiting: int = 0
    refused: dict[int, str] = field(default_factory=dict)  # while puts wait: offset -> why


class TopicFollower:
    """`async with` owns the reads. Raises RemoteStorageError where the log cannot be read."""

    def __init__(self, metadata_log: MetadataLog, config: MetadataConfig) -> None:
        self._log = metadata_log
        self._config = config
        self._identity: LogIdentity | None = None
        self._partitions: list[_LogPartition] = []
        self._changes: dict[TopicIdPartition, int] = {}
        self._kept = KeptEvents(config.cache_dir)
        self._opening = FreshReads(self._open)
        self._reads = FreshReads(self._read)
        self._loading = asyncio.Lock()
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises ConfigError for a log that must not be used; one that is away is tried later."""
        async with AsyncExitStack() as opened:
            for part in (self._kept, self._opening, self._reads):
                await opened.enter_async_context(part)
            try:
                await self._opened()
            except RemoteStorageError as error:
                if isinstance(error.__cause__, ConfigError):
                    raise error.__cause__ from error
                log.warning("metadata_topic_unreachable", error=str(error))
            self._owned = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._owned.aclose()

    # --- reading ---
    async def table(self, tip: TopicIdPartition, not_older_than: float) -> SegmentTable:
        """The partition's table, the log having been read at or after that loop time (s)."""
        number = await self._number_of(tip)
        await self._reads.get(number, not_older_than)
        return await self._table(number, tip)

    async def partitions(self, not_older_than: float) -> list[TopicIdPartition]:
        """Every partition that the log says something of; all of the log is read for it."""
        await self._opened()
        waiting = list(range(len(self._partitions)))
        failures: list[RemoteStorageError] = []

        async def read_some() -> None:
            # The first failure ends it; raised in here, the TaskGroup would wrap it.
            while waiting and not failures:
                try:
                    await self._reads.get(waiting.pop(), not_older_than)
                except RemoteStorageError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as readers:
            for _ in range(min(len(waiting), self._config.metadata_reads_max)):
                readers.create_task(read_some())
        if failures:
            raise failures[0]
        return [tip for partition in self._partitions for tip in _known(partition)]

    def read_at(self, tip: TopicIdPartition) -> float | None:
        """The loop time (s) at which the last read of the partition's log began. Never blocks."""
        return None if self._identity is None else self._reads.cached(self._number(tip))

    def renew(self, tip: TopicIdPartition, oldest: float, pause_s: float) -> None:
        """Read again in the background where the last read began before `oldest`."""
        if self._identity is not None:
            self._reads.renew(self._number(tip), oldest, pause_s)

    def loaded(self, tip: TopicIdPartition) -> SegmentTable | None:
        """Never blocks."""
        if self._identity is None:
            return None
        return self._partitions[self._number(tip)].tables.get(tip)

    def changes(self, tip: TopicIdPartition) -> int:
        """Rises with each event that changed the partition's table."""
        return self._changes.get(tip, 0)

    def problems(self, tip: TopicIdPartition) -> tuple[MetadataProblem, ...]:
        """Events that cannot be read and may have been about the partition. Never blocks."""
        return () if self._identity is None else self._partitions[self._number(tip)].problems

    # --- writing ---
    async def append(self, event: MetadataEvent) -> str | None:
        """Write an event and read it back; why it was refused in the order of the log, or None.

        Where it raises, the event may be in the log or not.
        """
        number = await self._number_of(event.topic_id_partition)
        partition = self._partitions[number]
        partition.puts_waiting += 1
        try:
            written = self._log.append(number, encode_message(event))
            offset = await self._within(f"append for {event.topic_id_partition}", written)
            METADATA_EVENTS_WRITTEN.inc()
            await self._reads.anew(number)
            if partition.position <= offset:
                raise StorageUnavailable(f"{self._place(number, offset)} was not read back")
            return partition.refused.pop(offset, None)
        finally:
            partition.puts_waiting -= 1
            if not partition.puts_waiting:
                partition.refused.clear()

    # --- the log ---
    async def _opened(self) -> LogIdentity:
        return self._identity or await self._opening.get(None, float("-inf"))

    async def _open(self, _: None, __: float) -> LogIdentity:
        try:
            identity = await self._within("metadata topic", self._log.open())
            positions, tips = await self._kept.open(identity.log_id)
        except ConfigError as error:
            raise RemoteStorageError(str(error)) from error
        partitions = [_LogPartition(positions.get(n, 0)) for n in range(identity.partitions)]
        for tip in tips:
            partitions[metadata_partition(tip, identity.partitions)].unloaded.add(tip)
        self._partitions, self._identity = partitions, identity
        return identity

    async def _number_of(self, tip: TopicIdPartition) -> int:
        await self._opened()
        return self._number(tip)

    def _number(self, tip: TopicIdPartition) -> int:
        return metadata_partition(tip, len(self._partitions))

    def _place(self, number: int, offset: int) -> str:
        assert self._identity is not None  # read only after it was opened
        return f"{self._identity.name}-{number} offset {offset}"

    async def _read(self, number: int, began_at: float) -> float:
        """Up to the log's end as it is from now on. What was read by a failure stays read."""
        position = self._partitions[number].position
        try:
            await self._within(
                f"{self._place(number, position)} to the end", self._read_to_end(number)
            )
        except RemoteStorageError:
            METADATA_REFRESH_ERRORS.inc()
            raise
        METADATA_REFRESH_SECONDS.observe(asyncio.get_running_loop().time() - began_at)
        return began_at

    async def _within(self, what: str, work: Awaitable[T]) -> T:
        """A log that never answers is one that is away."""
        read_max_ms = self._config.metadata_read_max_ms
        try:
            async with asyncio.timeout(read_max_ms / 1000):
                return await work
        except TimeoutError:
            raise StorageUnavailable(f"{what}: not done within {read_max_ms} ms") from None

    async def _read_to_end(self, number: int) -> None:
        partition = self._partitions[number]
        bounds = await self._log.bounds(number)
        self._check_bounds(number, bounds)
        lag = METADATA_LAG.labels(str(number))
        while partition.position < bounds.end:
            lag.set(bounds.end - partition.position)
            chunk = await self._log.read(number, partition.position)
            for offset, value in chunk.values:
                await self._take(number, offset, value)
                partition.position = offset + 1
            partition.position = max(partition.position, chunk.next_offset)
            if not partition.problems:
                self._kept.passed(number, partition.position)
        lag.set(0)

    def _check_bounds(self, number: int, bounds: LogBounds) -> None:
        position = self._partitions[number].position
        if bounds.start <= position <= bounds.end:
            return
        raise RemoteStorageError(
            f"{self._place(number, position)} is where reading goes on, but the topic now has "
            f"{bounds.start} to {bounds.end}: it has lost events. Delete the topic and rebuild it "
            f"from the store with `fetchproxy restore`"
        )

    async def _take(self, number: int, offset: int, value: bytes) -> None:
        partition = self._partitions[number]
        METADATA_EVENTS_READ.inc()
        try:
            event = decode_message(value, self._place(number, offset))
        except CorruptSegment as error:
            self._note_problem(number, offset, error)
            return
        tip = event.topic_id_partition
        table = await self._table(number, tip)
        if offset < partition.ahead.get(tip, 0):
            return  # against a later state it might be judged otherwise
        if table.apply(event):
            self._changes[tip] = self._changes.get(tip, 0) + 1
            if not partition.problems:
                self._kept.note(tip, [event], offset + 1)
            return
        METADATA_EVENTS_REFUSED.inc()
        if partition.puts_waiting:
            partition.refused[offset] = refusal_of(table, event)

    def _note_problem(self, number: int, offset: int, error: CorruptSegment) -> None:
        """It may be about any partition whose events are here, and about any offset of it.

        Nothing behind it is kept on disk, so that a newer program reads it again.
        """
        partition = self._partitions[number]
        METADATA_UNREADABLE.inc()
        place = self._place(number, offset)
        if len(partition.problems) == PROBLEMS_KEPT_MAX:
            if not partition.more_problems:
                log.error("more_metadata_events_unreadable", place=place, told=PROBLEMS_KEPT_MAX)
            partition.more_problems = True
            return
        log.error("metadata_event_unreadable", place=place, error=str(error))
        partition.problems = (*partition.problems, MetadataProblem(place, 0, str(error)))

    # --- tables ---
    async def _table(self, number: int, tip: TopicIdPartition) -> SegmentTable:
        partition = self._partitions[number]
        if (table := partition.tables.get(tip)) is not None:
            return table
        async with self._loading:
            if (table := partition.tables.get(tip)) is not None:
                return table
            if tip in partition.unloaded:
                table, cached = await self._kept.load(tip)
                if cached.metadata_topic_offset > partition.position:
                    partition.ahead[tip] = cached.metadata_topic_offset
                elif cached.damaged:
                    await self._read_again(number, table, tip, cached.metadata_topic_offset)
                partition.unloaded.discard(tip)
            else:
                table = SegmentTable(tip)
            partition.tables[tip] = table
        return table

    async def _read_again(
        self, number: int, table: SegmentTable, tip: TopicIdPartition, from_offset: int
    ) -> None:
        """What a damaged file has lost of one partition; kept all at once, or not at all."""
        position = from_offset
        found: list[MetadataEvent] = []
        while position < self._partitions[number].position:
            chunk = await self._log.read(number, position)
            for offset, value in chunk.values:
                if offset >= self._partitions[number].position:
                    break
                try:
                    event = decode_message(value, self._place(number, offset))
                except CorruptSegment:
                    continue  # known as a problem: it was read before
                if event.topic_id_partition == tip and table.apply(event):
                    found.append(event)
            position = max(position, chunk.next_offset)
        self._kept.note(tip, found, self._partitions[number].position)


def refusal_of(table: SegmentTable, event: MetadataEvent) -> str:
    """Why the table has not taken an event. Pure."""
    try:
        if isinstance(event, RemoteLogSegmentMetadata):
            check_update(table.known(event), event)
        elif isinstance(event, RemotePartitionDeleteMetadata):
            known = table.deletion
            check_deletion(None if known is None else known.state, event.state)
    except ValueError as error:
        return str(error)
    return "it says nothing new"


def _known(partition: _LogPartition) -> list[TopicIdPartition]:
    loaded = [tip for tip, table in partition.tables.items() if not table.is_empty]
    return [*loaded, *partition.unloaded]
