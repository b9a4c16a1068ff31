"""The archive of one running stream, looked at again for each micro-batch. Knows no Spark.

A stream's offsets are those of Spark's Kafka source, {"topic": {"0": 23}}: the next offset to read
of each partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.pipeline.holes import ALL_OFFSETS
from fetchproxy.pipeline.source.admission import Ends, admitted, waits_for_more
from fetchproxy.pipeline.source.archive_reading import PASSED_OVER, ArchiveReading, Views
from fetchproxy.pipeline.source.options import BoundKind, SourceOptions
from fetchproxy.pipeline.source.planning import DataLoss, OffsetSpan, ReadTask, plan_tasks
from fetchproxy.pipeline.source.store_thread import LoopThread
from fetchproxy.remote_log.verification.expected_offsets import Offsets

StreamOffset = dict[str, dict[str, int]]


class FollowedArchive:
    """Blocking. `close` when the query ends."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop = LoopThread("archive")
        self._reading = ArchiveReading(options)
        try:
            self._loop.submit(self._reading.__aenter__()).result()
        except BaseException:
            self._loop.stop()
            raise
        self._views: Views = {}
        self._read_up_to: Ends = {}
        # Of a query that ends with what was there when it began.
        self._last_ends: Ends | None = None
        self._batch_at: float | None = None

    def initial(self) -> StreamOffset:
        """Where a new query begins. Raises ConfigError for a topic that the archive knows not."""
        self._look()
        self._reading.check_topics()
        starts = self._loop.submit(self._reading.starts(self._views)).result()
        if self._options.starting.kind is BoundKind.EARLIEST:
            # Where the archive begins now may be behind where it has to begin.
            self._check_no_loss({tip: (ALL_OFFSETS[0], start - 1) for tip, start in starts.items()})
        self._read_up_to = {(t.topic, t.partition): start for t, start in starts.items()}
        return as_offset(self._read_up_to)

    def end_with_what_is_there(self) -> None:
        self._last_ends = self._ends()

    def latest(self, start: StreamOffset | None = None, *, limited: bool = False) -> StreamOffset:
        """The archive's ends now, never below `start` (None: what was read); `limited`: no further
        than the options let one batch go from there."""
        starts = self._read_up_to if start is None else _parsed(start)
        ends = dict(self._ends())
        if self._last_ends is not None:
            ends = {
                k: min(end, self._last_ends[k]) for k, end in ends.items() if k in self._last_ends
            }
        for key, offset in starts.items():
            ends[key] = max(offset, ends.get(key, offset))
        if not limited:
            return as_offset(ends)
        if self._waits(starts, ends):
            return as_offset(starts)
        return as_offset(admitted(self._by_place(), starts, ends, self._options.trigger))

    def last_seen(self) -> StreamOffset:
        """The archive's ends at the last look, for the query's progress."""
        places = self._by_place().items()
        return as_offset({key: view.log_end_offset or 0 for key, view in places})

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
                _check_ends(view, span, first)
            spans[tip] = span
        self._check_no_loss({tip: (span.start, span.end - 1) for tip, span in spans.items()})
        self._read_up_to = ends
        return plan_tasks(
            self._views,
            spans,
            partition_bytes_max=self._options.partition_bytes_max,
            partitions_min=self._options.partitions_min,
            records_max=self._options.partition_records_max,
        )

    def close(self) -> None:
        try:
            self._loop.submit(self._reading.__aexit__(None, None, None)).result()
        finally:
            self._loop.stop()

    def _look(self) -> None:
        self._views = self._loop.submit(self._reading.views()).result()

    def _ends(self) -> Ends:
        self._look()
        ends = self._loop.submit(self._reading.ends_so_far(self._views)).result()
        return {(t.topic, t.partition): end for t, end in ends.items()}

    def _by_place(self) -> Mapping[tuple[str, int], PartitionView]:
        return {(tip.topic, tip.partition): view for tip, view in self._views.items()}

    def _has(self, ends: Ends) -> bool:
        there = {(t.topic, t.partition): v.log_end_offset or 0 for t, v in self._views.items()}
        return all(there.get(key, -1) >= end for key, end in ends.items())

    def _waits(self, starts: Ends, ends: Ends) -> bool:
        """As Spark's Kafka source: the first batch does not wait. Nor does one of a query that has
        an end, as what it waits for would never come."""
        limits, now = self._options.trigger, self._loop.time()
        if not limits.offsets_min or self._last_ends is not None:
            return False
        due = self._batch_at is None or now - self._batch_at >= limits.delay_max_ms / 1000
        if not due and waits_for_more(self._by_place(), starts, ends, limits):
            return True
        self._batch_at = now
        return False

    def _check_no_loss(self, asked: Mapping[TopicIdPartition, Offsets]) -> None:
        self._loop.submit(self._reading.check_no_loss(self._views, asked)).result()


def _check_ends(view: PartitionView, span: OffsetSpan, first: int) -> None:
    """An earlier batch has planned `span`, or has read up to it: it was there."""
    end = view.log_end_offset or 0
    if span.start < first:
        raise DataLoss(
            f"{view.tip}: offset {span.start} is not in the archive any more, which begins at "
            f"{first}; with failOnDataLoss=false reading goes on there"
        )
    if span.end > end:
        raise DataLoss(
            f"{view.tip}: offset {span.end - 1} is not in the archive any more, which ends at "
            f"{end - 1}; {PASSED_OVER}"
        )


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
