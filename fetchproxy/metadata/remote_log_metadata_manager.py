"""RemoteLogMetadataManager: which segments the archive holds, and how certain that is.

Two implementations: `store_backed` reads the `.metadata` object beside each segment, `topic_based`
follows the events of `__remote_log_metadata`. Both pass tests/metadata/metadata_contract.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    LogHistory,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import METADATA_REFRESH_ERRORS, METADATA_REFRESH_SECONDS
from fetchproxy.runtime.flights import FreshReads
from fetchproxy.storage.listings import LogStartObject
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

# Of up to so many partitions of a topic each is listed by itself: a topic's listing may be long.
PARTITIONS_ALONE_MAX = 8
# Metadata objects that are read at once per topic, or partitions of the metadata topic: as many as
# there are connections to a store, since they wait for its latency.
READS_AT_ONCE_MAX = 32
# Making a view of a few segments takes some 50 µs.
VIEWS_AT_ONCE = 50
# A listing or a read of metadata ends with an error when nothing has come for this long. A process
# has half of `store.timeout_ms`.
READ_MAX_MS = 10_000


@dataclass(frozen=True, slots=True)
class MetadataProblem:
    """Metadata of a segment that cannot be read; `what` says why. The segment is not served.

    `key` says where it lies: an object's key, or an offset of the metadata topic.
    """

    key: str
    base_offset: int
    what: str


class PartitionViews(ABC):
    """Where whoever reads the archive finds its segments."""

    @abstractmethod
    def view(self, tip: TopicIdPartition) -> PartitionView | None:
        """The last known view, None if never read. Never blocks."""

    @abstractmethod
    async def refresh(self, tip: TopicIdPartition, not_older_than: float) -> PartitionView:
        """A view read at or after loop time `not_older_than` (seconds); single-flight, cached. An
        absent partition is an empty view. Raises RemoteStorageError: nothing new is known then.
        """


class RemoteLogMetadataManager(PartitionViews):
    def __init__(self) -> None:
        self._archived = FreshReads(self._read_archived_topics)  # entered by the subclass
        self._put_topics: set[UUID] = set()  # by this process, ever

    async def archived_topics(self, not_older_than: float) -> frozenset[UUID]:
        """Topics that have anything in the archive, read at or after that loop time (s), by one
        listing of its top level at most; and those that this process has put something of. Raises
        as `refresh`.
        """
        return await self._archived.get(None, not_older_than)

    def known_archived_topics(self) -> tuple[frozenset[UUID], float] | None:
        """What `archived_topics` has last said, and when that was read (loop s). Never blocks."""
        entry = self._archived.entry(None)
        return None if entry is None else (entry[1], entry[0])

    def _note_put(self, topic_id: UUID) -> None:
        self._put_topics.add(topic_id)
        if (archived := self._archived.cached(None)) is not None and topic_id not in archived:
            self._archived.replace(None, archived | {topic_id})

    @abstractmethod
    async def _read_archived_topics(self, _: None, began_at: float) -> frozenset[UUID]:
        """With those that this process has put something of."""

    @abstractmethod
    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        """Views of all archived partitions of a topic, as `refresh`; one listing of it at most.

        `view` shows them afterwards. A partition that is not among them has an empty view.
        """

    @abstractmethod
    def renew_topic(self, topic_id: UUID, age_max_s: float) -> None:
        """Begin to read a topic that was read before, longer ago than that. Never blocks."""

    @abstractmethod
    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record a segment's new state. Raises ValueError on an illegal transition."""

    @abstractmethod
    async def raise_log_start_offset(self, tip: TopicIdPartition, offset: int) -> PartitionView:
        """Everything below `offset` counts as deleted from now on; returns the view after that.

        Durable and visible to every other reader of the store's when it returns. Never lowers what
        anybody else has raised. Raises RemoteStorageError: then it may have happened or not, and
        may be repeated.
        """

    @abstractmethod
    async def put_log_history(self, tip: TopicIdPartition, history: LogHistory) -> PartitionView:
        """What a person has said of a log that began again; returns the view after that.

        Durable when it returns; it replaces what was said before. Raises RemoteStorageError: then
        it may have happened or not, and may be repeated.
        """

    @abstractmethod
    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """Record how far the deletion of a partition is; durable when it returns.

        Raises ValueError on an illegal transition, RemoteStorageError. After
        DELETE_PARTITION_FINISHED the archive does not know the partition any more.
        """

    @abstractmethod
    async def partition_deletion(
        self, tip: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        """None: nobody has marked it. Raises RemoteStorageError, as `refresh`."""

    @abstractmethod
    def list_remote_log_segments(
        self, tip: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Every segment as last known, by start offset, also copies begun and deletions begun."""

    @abstractmethod
    def problems(self, tip: TopicIdPartition) -> tuple[MetadataProblem, ...]:
        """The partition's metadata that could not be read, as of the last read. Never blocks."""

    @abstractmethod
    async def list_partitions(self) -> Iterable[TopicIdPartition]:
        """Every partition that the archive knows, sorted."""


@asynccontextmanager
async def counted(began_at: float) -> AsyncIterator[None]:
    """A read of metadata that began then (loop time)."""
    try:
        yield
    except RemoteStorageError:
        METADATA_REFRESH_ERRORS.inc()
        raise
    METADATA_REFRESH_SECONDS.observe(asyncio.get_running_loop().time() - began_at)


async def delete_log_starts(
    rsm: RemoteStorageManager, tip: TopicIdPartition, lower: Iterable[LogStartObject]
) -> None:
    """They say nothing any more, as there is a higher one; one that stays does no harm."""
    try:
        for one in lower:
            await rsm.delete_log_start_offset(tip, one)
    except RemoteStorageError as error:
        log.warning(
            "old_log_start_not_deleted",
            **tip.logged,
            error=str(error),
        )
