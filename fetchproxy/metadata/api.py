"""RemoteLogMetadataManager: which segments the archive holds, and how certain that is.

First implementation: `store_backed` (reads the `.metadata` object beside each segment). The
topic-backed one comes with the full RemoteLogManager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from uuid import UUID

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition


class RemoteLogMetadataManager(ABC):
    @abstractmethod
    def view(self, tip: TopicIdPartition) -> PartitionView | None:
        """The last known view, None if never read. Never blocks."""

    @abstractmethod
    async def refresh(self, tip: TopicIdPartition, not_older_than: float) -> PartitionView:
        """A view read at or after loop time `not_older_than` (seconds); single-flight.

        Returns the cached one if it is recent enough. An absent partition is an empty view.
        Raises RemoteStorageError: the caller then knows nothing new, and must not act as if.
        """

    @abstractmethod
    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record a segment's new state. Raises ValueError on an illegal transition."""

    @abstractmethod
    async def topic_partitions(self, topic_id: UUID, not_older_than: float) -> frozenset[int]:
        """The archived partitions of a topic, read at or after loop time `not_older_than` (s).

        Empty: the archive does not know the topic. Raises RemoteStorageError, as `refresh`.
        """

    @abstractmethod
    async def raise_log_start_offset(self, tip: TopicIdPartition, offset: int) -> PartitionView:
        """Everything below `offset` counts as deleted from now on; returns the view after that.

        Durable and visible to every other reader of the store's when it returns. Never lowers what
        anybody else has raised. Raises RemoteStorageError: then it may have happened or not, and
        may be repeated.
        """

    @abstractmethod
    async def list_partitions(self) -> Iterable[TopicIdPartition]:
        """Every partition that the archive knows, sorted."""
