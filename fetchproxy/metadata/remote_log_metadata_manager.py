"""RemoteLogMetadataManager: which segments the archive holds, and how certain that is.

Two implementations: `store_backed` reads the `.metadata` object beside each segment, `topic_based`
follows the events of `__remote_log_metadata`. Both pass tests/metadata/metadata_contract.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
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
from fetchproxy.observability.health import Condition
from fetchproxy.observability.metrics import METADATA_REFRESH_ERRORS, METADATA_REFRESH_SECONDS
from fetchproxy.runtime.fresh_reads import FreshReads
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.listings import LogStartObject, Unlisted

log = structlog.get_logger(__name__)

# Up to so many partitions of a topic are listed one by one: a topic's listing may be long.
PARTITIONS_ALONE_MAX = 8
# Metadata objects read at once per topic, or partitions of the metadata topic read at once. As many
# as there are connections to a store, because reads wait for its latency.
READS_AT_ONCE_MAX = 32
# Making a view of a few segments takes some 50 µs.
VIEWS_AT_ONCE = 50
# A listing or read of metadata fails when nothing has come for this long. A process uses half of
# `store.timeout_ms`.
READ_MAX_MS = 10_000


class PartitionViews(ABC):
    """Finds the segments of the archive for its readers."""

    @abstractmethod
    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        """The last known view, None if never read. Never blocks."""

    @abstractmethod
    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        """A view read at or after loop time `not_older_than` (seconds); single-flight, cached. An
        absent partition has an empty view. Raises RemoteStorageError if the read fails.
        """

    def doubt(self, tp: TopicIdPartition) -> None:  # noqa: B027 - only a listing may be partial
        """Something in the archive is not as the view says: the next read takes nothing for
        granted. Never blocks.
        """


class RemoteLogMetadataManager(PartitionViews):
    def __init__(self) -> None:
        self._archived = FreshReads(self._read_archived_topics)  # entered by the subclass
        # That this process has put, with the loop time (s) of the last put.
        self._put_topics: dict[UUID, float] = {}

    @property
    def of_mirror(self) -> bool:
        """Whether the store has a mirror, and readers wait for what it does not have yet."""
        return False

    async def archived_topics(self, not_older_than: float) -> frozenset[UUID]:
        """Topics in the archive, read at or after that loop time (s) by at most one listing of its
        top level, and the topics that this process has put since. Raises as `refresh`.
        """
        return await self._archived.get(None, not_older_than)

    def known_archived_topics(self) -> tuple[frozenset[UUID], float] | None:
        """The last result of `archived_topics`, and its read time (loop s). Never blocks."""
        entry = self._archived.entries.get(None)
        return None if entry is None else (entry[1], entry[0])

    def _note_put(self, topic_id: UUID) -> None:
        self._put_topics[topic_id] = asyncio.get_running_loop().time()
        if (
            archived_ids := self._archived.cached(None)
        ) is not None and topic_id not in archived_ids:
            self._archived.replace(None, archived_ids | {topic_id})

    def _put_since(self, began_at: float) -> set[UUID]:
        """Topics that a listing that began at that loop time (s) may have missed. It has seen the
        others that were put before: they are forgotten.
        """
        self._put_topics = {one: at for one, at in self._put_topics.items() if at >= began_at}
        return set(self._put_topics)

    @abstractmethod
    async def _read_archived_topics(self, _: None, began_at: float) -> frozenset[UUID]:
        """Includes the topics that this process has put since `began_at` (loop time, s)."""

    @abstractmethod
    async def topic_names(self) -> set[str]:
        """The names of the archive's topics, from memory."""

    @abstractmethod
    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        """Remove from memory the topics that no longer exist. A topic that comes back, or that was
        `is_gone` by mistake, is read anew.
        """

    @abstractmethod
    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        """Views of all archived partitions of a topic, as `refresh`, by at most one listing.

        `view` shows them afterwards. A partition that is not among them has an empty view.
        """

    def note_empty(self, tp: TopicIdPartition, as_of: float) -> None:
        """A listing that began at that loop time (s) has shown no object of the partition: its view
        is empty, unless it is known. Never blocks.
        """

    @abstractmethod
    def refresh_topic_in_background(self, topic_id: UUID, age_max_s: float) -> None:
        """Begin to read a topic again whose last read is older than that. Never blocks."""

    @abstractmethod
    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record a segment's new state. Raises ValueError on an illegal transition."""

    @abstractmethod
    async def raise_log_start_offset(self, tp: TopicIdPartition, offset: int) -> PartitionView:
        """From now on all records below `offset` count as deleted. Returns the view after that.

        On return it is durable and visible to every other reader of the store. Never lowers an
        offset that another process raised. Raises RemoteStorageError: then it may have happened or
        not, and may be repeated.
        """

    @abstractmethod
    async def put_log_history(self, tp: TopicIdPartition, history: LogHistory) -> PartitionView:
        """Record a person's decision about a log that began again. Returns the view after that.

        Durable on return; it replaces the last decision. Raises RemoteStorageError: then it may
        have happened or not, and may be repeated.
        """

    @abstractmethod
    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """Record how far the deletion of a partition is; durable on return.

        Raises ValueError on an illegal transition, RemoteStorageError. After
        DELETE_PARTITION_FINISHED the archive no longer knows the partition.
        """

    @abstractmethod
    async def partition_deletion(
        self, tp: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        """None: the partition is not marked. Raises RemoteStorageError, as `refresh`."""

    @abstractmethod
    def list_remote_log_segments(
        self, tp: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Every segment as last known, by start offset, also unfinished copies and deletions."""

    @abstractmethod
    def problems(self, tp: TopicIdPartition) -> tuple[Condition, ...]:
        """The partition's unreadable metadata, as of the last read. Never blocks.

        `object_key`: an object's key, or an offset of the metadata topic. `first_offset`: at which
        the segment begins; it is not served.
        """

    @abstractmethod
    async def list_partitions(self, unlisted: Unlisted | None = None) -> Iterable[TopicIdPartition]:
        """Every partition that the archive knows, sorted. `unlisted`: for the topics whose folder
        in the store alone cannot be listed; None: their error is raised.
        """


@asynccontextmanager
async def counted(began_at: float) -> AsyncIterator[None]:
    """Counts a read of metadata that began at loop time `began_at`."""
    try:
        yield
    except RemoteStorageError:
        METADATA_REFRESH_ERRORS.inc()
        raise
    METADATA_REFRESH_SECONDS.observe(asyncio.get_running_loop().time() - began_at)


async def delete_log_starts(
    objects: ArchiveObjects, tp: TopicIdPartition, lower: Iterable[LogStartObject]
) -> None:
    """Delete log starts that a higher one replaces; one that stays does no harm."""
    try:
        for offset in lower:
            await objects.delete_log_start_offset(tp, offset)
    except RemoteStorageError as error:
        log.warning(
            "old_log_start_not_deleted",
            **tp.logged,
            error=str(error),
        )
