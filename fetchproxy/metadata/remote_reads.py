"""The archive as the proxy's readers may see it: without the copies of compacted logs.

Brokers have all of a compacted log, and compact it further than any copy of it. So a reader gets
these records from the brokers alone, as if there was no archive of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from fetchproxy.metadata.columns import SegmentRows
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    PartitionViews,
    RemoteLogMetadataManager,
)
from fetchproxy.model import TopicIdPartition


class RemoteReads(PartitionViews):
    """What the gateway asks a RemoteLogMetadataManager. One for a process."""

    def __init__(self, rlmm: RemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        # The last view of each copy of a compacted log, and what is shown of it: callers compare
        # views by identity.
        self._hidden: dict[TopicIdPartition, tuple[PartitionView, PartitionView]] = {}

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        view = self._rlmm.view(tp)
        return None if view is None else self._readable(view)

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        return self._readable(await self._rlmm.refresh(tp, not_older_than))

    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        views = await self._rlmm.refresh_topic(topic_id, not_older_than)
        if all(view.history.compacted is None for view in views.values()):
            return views
        return {number: self._readable(view) for number, view in views.items()}

    def refresh_topic_in_background(self, topic_id: UUID, age_max_s: float) -> None:
        self._rlmm.refresh_topic_in_background(topic_id, age_max_s)

    async def raise_log_start_offset(self, tp: TopicIdPartition, offset: int) -> PartitionView:
        return self._readable(await self._rlmm.raise_log_start_offset(tp, offset))

    async def archived_topics(self, not_older_than: float) -> frozenset[UUID]:
        return await self._rlmm.archived_topics(not_older_than)

    def known_archived_topics(self) -> tuple[frozenset[UUID], float] | None:
        return self._rlmm.known_archived_topics()

    @property
    def of_mirror(self) -> bool:
        return self._rlmm.of_mirror

    def doubt(self, tp: TopicIdPartition) -> None:
        self._rlmm.doubt(tp)

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        for tp in [tp for tp in self._hidden if is_gone(tp.topic_id)]:
            del self._hidden[tp]

    def _readable(self, view: PartitionView) -> PartitionView:
        if view.history.compacted is None:
            return view
        known = self._hidden.get(view.tp)
        if known is None or known[0] is not view:
            hidden = replace(
                view,
                segments=SegmentRows(view.tp),
                copies_started=False,
                unreadable=(),
                unfinished=(),
                raised_log_start=0,
            )
            self._hidden[view.tp] = known = view, hidden
        return known[1]


# The gateway may also have an archive without copies of compacted logs.
ReadableArchive = RemoteLogMetadataManager | RemoteReads
