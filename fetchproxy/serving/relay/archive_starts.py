"""Where archived topics begin, as clients may see it: kept while nothing of it has changed.

Thousands of partitions are asked for at once, and nearly always nothing has changed since the last
time. What was found counts for the very view that it was found in and the very leaders that this
was held against; whatever else there is takes the longer way (`offset_lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import TopicIdPartition

# Where the archive of a partition begins: offset and leader epoch; None: look at it.
StartOf = Callable[[int], tuple[int, int] | None]


def archive_start(view: PartitionView) -> tuple[int, int]:
    """Of a view with segments: offset and leader epoch. Pure."""
    # Not at one whose metadata cannot be read: the client would wait there for ever.
    offset = max(view.segments.start_offset(0), view.raised_log_start)
    return offset, view.segments.epoch_at(offset)


@dataclass(slots=True)
class _Topic:
    """`starts`: by partition, with the view that each was found in."""

    leaders: Mapping[int, tuple[int, int]]
    tips: dict[int, TopicIdPartition] = field(default_factory=dict)
    starts: dict[int, tuple[PartitionView, tuple[int, int]]] = field(default_factory=dict)

    def tip(self, topic: TopicInfo, partition: int) -> TopicIdPartition:
        """The same object each time: what is looked up by it is found faster."""
        tip = self.tips.get(partition)
        if tip is None:
            tip = self.tips[partition] = TopicIdPartition(topic.topic_id, topic.name, partition)
        return tip


class ArchiveStarts:
    """One per gateway. `views`: of `rlmm`."""

    def __init__(self, cluster: Cluster, rlmm: PartitionViews, views: LeaderViews) -> None:
        self._cluster = cluster
        self._rlmm = rlmm
        self._views = views
        # By name too: brokers before 2.8 have no ids.
        self._topics: dict[tuple[UUID, str], _Topic] = {}

    def of(self, topic: TopicInfo, oldest: float) -> StartOf:
        """By views that were read at or after `oldest` (loop s)."""
        known = self._kept(topic)
        view_of, settled = self._rlmm.view, self._views.settled

        def start_of(partition: int) -> tuple[int, int] | None:
            view = view_of(known.tip(topic, partition))
            if view is None or view.read_at < oldest:
                return None
            kept = known.starts.get(partition)
            if kept is not None and kept[0] is view:
                return kept[1]
            shown = settled(view) if view.segments else None
            if shown is None or not shown.segments:
                return None
            start = archive_start(shown)
            known.starts[partition] = view, start
            known.tips[partition] = view.tip
            return start

        return start_of

    def view_of(self, topic: TopicInfo, partition: int, oldest: float) -> PartitionView | None:
        """As clients may see it, read at or after `oldest`; None: that takes a longer look."""
        known = self._topics.get((topic.topic_id, topic.name)) or self._kept(topic)
        view = self._rlmm.view(known.tip(topic, partition))
        if view is None or view.read_at < oldest or not view.segments:
            return None
        known.tips[partition] = view.tip
        return self._views.settled(view)

    def _kept(self, topic: TopicInfo) -> _Topic:
        """For the leaders that are known now: an answer of a moment ago may not know the last."""
        current = self._cluster.cached_topic_by_name(topic.name) or topic
        leaders = current.leaders
        key = topic.topic_id, topic.name
        kept = self._topics.get(key)
        if kept is not None and (kept.leaders is leaders or kept.leaders == leaders):
            kept.leaders = leaders
            return kept
        self._topics[key] = kept = _Topic(leaders)
        return kept
