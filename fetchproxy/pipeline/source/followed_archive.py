"""The archive of one running stream, looked at again for each micro-batch. Knows no Spark.

A stream's offsets are those of Spark's Kafka source, {"topic": {"0": 23}}: the next offset to read
of each partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.pipeline.source.archive_reading import ArchiveReading, Views
from fetchproxy.pipeline.source.options import SourceOptions
from fetchproxy.pipeline.source.planning import (
    DataLoss,
    OffsetSpan,
    ReadTask,
    check_no_loss,
    plan_tasks,
)
from fetchproxy.pipeline.source.store_thread import LoopThread

StreamOffset = dict[str, dict[str, int]]
Ends = Mapping[tuple[str, int], int]


class FollowedArchive:
    """Blocking. `close` when the query ends."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop = LoopThread("archive")
        self._reading = ArchiveReading(options)
        self._loop.submit(self._reading.__aenter__()).result()
        self._views: Views = {}
        self._read_up_to: dict[tuple[str, int], int] = {}

    def initial(self) -> StreamOffset:
        """Where a new query begins."""
        self._look()
        starts = self._loop.submit(self._reading.starts(self._views)).result()
        self._read_up_to = {(t.topic, t.partition): start for t, start in starts.items()}
        return as_offset(self._read_up_to)

    def latest(self) -> StreamOffset:
        """The archive's ends now, never below what was read; no further than `maxBytesPerTrigger`
        where it is known how far that was (not at once after a restart)."""
        self._look()
        ends = self._loop.submit(self._reading.ends_so_far(self._views)).result()
        found = {(t.topic, t.partition): end for t, end in ends.items()}
        if self._options.trigger_bytes_max and self._read_up_to:
            found = self._admitted(found)
        for key, offset in self._read_up_to.items():
            found[key] = max(offset, found.get(key, offset))
        return as_offset(found)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[ReadTask]:
        """Raises DataLoss where something between both is not in the archive (any more)."""
        begins, ends = _parsed(start), _parsed(end)
        if not self._has(ends):
            self._look()
        views = {(tip.topic, tip.partition): (tip, view) for tip, view in self._views.items()}
        spans: dict[TopicIdPartition, OffsetSpan] = {}
        for key, offset_end in ends.items():
            if key not in views:
                if begins.get(key, offset_end) < offset_end and self._options.fail_on_data_loss:
                    raise DataLoss(f"{key[0]}-{key[1]} is not in the archive any more")
                continue
            tip, view = views[key]
            first = view.log_start_offset or 0
            span = OffsetSpan(begins.get(key, first), offset_end)
            if span.start < span.end and self._options.fail_on_data_loss:
                self._check(view, span, first)
            spans[tip] = span
        self._read_up_to = ends
        return plan_tasks(
            self._views,
            spans,
            partition_bytes_max=self._options.partition_bytes_max,
            partitions_min=self._options.partitions_min,
        )

    def close(self) -> None:
        try:
            self._loop.submit(self._reading.__aexit__(None, None, None)).result()
        finally:
            self._loop.stop()

    def _look(self) -> None:
        self._views = self._loop.submit(self._reading.views()).result()

    def _has(self, ends: Ends) -> bool:
        there = {(t.topic, t.partition): v.log_end_offset or 0 for t, v in self._views.items()}
        return all(there.get(key, -1) >= end for key, end in ends.items())

    @staticmethod
    def _check(view: PartitionView, span: OffsetSpan, first: int) -> None:
        if span.start < first:
            raise DataLoss(
                f"{view.tip}: offset {span.start} is not in the archive any more, which begins at "
                f"{first}; with failOnDataLoss=false reading goes on there"
            )
        check_no_loss(view, span)

    def _admitted(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Each partition that has something new gets an equal share, and one segment at least."""
        new = [key for key, end in ends.items() if end > self._read_up_to.get(key, 0)]
        share = self._options.trigger_bytes_max // max(1, len(new))
        admitted = dict(ends)
        for tip, view in self._views.items():
            key = (tip.topic, tip.partition)
            if key not in new:
                continue
            taken = 0
            index = view.segments.index_at_or_after(self._read_up_to.get(key, 0))
            while index < len(view.segments):
                segment = view.segments[index]
                taken += segment.segment_size_bytes
                if taken >= share:
                    admitted[key] = min(ends[key], segment.end_offset + 1)
                    break
                index += 1
        return admitted


def as_offset(ends: Ends) -> StreamOffset:
    found: StreamOffset = {}
    for (topic, partition), offset in sorted(ends.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _parsed(offset: StreamOffset) -> dict[tuple[str, int], int]:
    return {
        (topic, int(partition)): end
        for topic, partitions in offset.items()
        for partition, end in partitions.items()
    }
