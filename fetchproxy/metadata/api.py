"""RemoteLogMetadataManager: which segments the archive holds, and how certain that is.

First implementation: `store_backed` (reads the `.metadata` object beside each segment). The
topic-backed one comes with the full RemoteLogManager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

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
    async def list_partitions(self) -> Iterable[TopicIdPartition]:
        """Every partition that the archive knows, sorted."""
