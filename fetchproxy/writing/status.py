"""What the archiver says of one partition, for console and metrics. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogEdges, TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.writing.margin import UNLIMITED, BrokerRetention, Margin, broker_retention
from fetchproxy.writing.partition_archiver import ManagedPartition, Progress, Step

_GAUGES = (
    metrics.ARCHIVE_START_OFFSET,
    metrics.ARCHIVE_END_OFFSET,
    metrics.ARCHIVE_LAG_OFFSETS,
    metrics.ARCHIVE_MARGIN_OFFSETS,
    metrics.REMOTE_COPY_LAG_BYTES,
    metrics.REMOTE_COPY_LAG_SEGMENTS,
)
# A copy that has used up this share of its time is worth a look while there is one to look at.
STALLED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionArchiveStatus(Progress):
    """Offsets as last known, None where not known; ends are exclusive.

    `lag_offsets`: on the brokers below the last stable offset, and not archived yet.
    `margin_offsets`: archive end minus the broker's log start; below 0, the brokers have deleted
    what is not archived. `last_success_ms`: epoch ms of the last turn without an error. `stopped`:
    an error that no retry can mend. A follower knows no more than the archive's range.
    """

    tip: TopicIdPartition
    last_error: str | None
    last_success_ms: int | None
    stopped: bool
    leads: bool = True
    step: Step | None = None  # of the turn under way
    broker_retention: BrokerRetention = UNLIMITED
    retention_used: float | None = None  # see `margin`
    deleted_in_ms: int | None = None  # see `margin`

    @property
    def lost(self) -> tuple[int, int] | None:
        """First and last offset that the brokers have deleted and nobody has copied. As long as the
        archive has not gone on behind them; then it has a recorded gap.
        """
        if self.archive_end is None or self.log_start_offset is None:
            return None
        first = max(self.archive_end, self.gathered_end or 0, self.raised_log_start)
        return (first, self.log_start_offset - 1) if self.log_start_offset > first else None

    @property
    def unarchived_bytes(self) -> int | None:
        """An estimate, as nobody has read most of it yet."""
        lag = self.lag_offsets
        if lag is None or self.bytes_per_offset is None:
            return None if lag is None else self.gathered_bytes
        return max(round(lag * self.bytes_per_offset), self.gathered_bytes)

    def copy_seconds(self, now: float) -> float | None:
        """How long the copy has been under way at loop time `now`; None: there is none."""
        return None if self.copy is None else max(now - self.copy.started_at, 0.0)

    @property
    def topic(self) -> str:
        return self.tip.topic

    @property
    def partition(self) -> int:
        return self.tip.partition

    @property
    def lag_offsets(self) -> int | None:
        known = [at for at in (self.log_start_offset, self.archive_end) if at is not None]
        if not known or self.last_stable_offset is None:
            return None
        return max(self.last_stable_offset - max(known), 0)

    @property
    def margin_offsets(self) -> int | None:
        if self.archive_end is None or self.log_start_offset is None:
            return None
        return self.archive_end - self.log_start_offset


def partition_archive_status(
    partition: ManagedPartition,
    *,
    topic_config: Mapping[str, str] | None,
    margin: Margin,
    edges: LogEdges | None,
) -> PartitionArchiveStatus:
    """The range is what step 3 has seen; its end, of a leader, what its own copies made of it.
    `edges` of the brokers' log, as they said whether or not a turn got as far as to read it.
    """
    progress, view, tip = partition.archiver.progress, partition.view, partition.tip
    start, end = progress.archive_start, progress.archive_end
    if view is not None:
        start = start if view.log_start_offset is None else view.log_start_offset
        end = view.log_end_offset if end is None else end
    if not partition.leads:
        edges = None
    log_start, stable = _newest_edges(progress, edges, partition.stopped)
    known = {each.name: getattr(progress, each.name) for each in fields(progress)}
    known |= {"archive_start": start, "archive_end": end}
    known |= {"log_start_offset": log_start, "last_stable_offset": stable}
    known |= {"bytes_per_offset": _bytes_per_offset(view) or progress.bytes_per_offset}
    return PartitionArchiveStatus(
        **known,
        tip=tip,
        last_error=partition.last_error or partition.local_retention.refusal(tip.topic),
        last_success_ms=partition.last_success_ms,
        stopped=partition.stopped,
        leads=partition.leads,
        step=partition.step,
        broker_retention=broker_retention(topic_config or {}),
        retention_used=margin.used,
        deleted_in_ms=margin.deleted_in_ms,
    )


def _newest_edges(
    progress: Progress, edges: LogEdges | None, stopped: bool
) -> tuple[int | None, int | None]:
    """Log start and last stable offset. Both only rise, but in a log that begins again."""
    if edges is None:
        return progress.log_start_offset, progress.last_stable_offset
    if stopped:
        return edges.log_start_offset, edges.last_stable_offset
    return (
        max(edges.log_start_offset, progress.log_start_offset or 0),
        max(edges.last_stable_offset, progress.last_stable_offset or 0),
    )


def _bytes_per_offset(view: PartitionView | None) -> float | None:
    if view is None or not view.segments:
        return None
    last = view.segments[-1]
    return last.segment_size_bytes / (last.end_offset - last.start_offset + 1)


def publish(status: PartitionArchiveStatus) -> None:
    """Set the partition's gauges; what is not known is left as it was. Its counters begin at 0 when
    it is led here: `increase()` does not see a first gap otherwise.
    """
    place = (status.tip.topic, str(status.tip.partition))
    if place not in metrics.ARCHIVE_GAPS._metrics:
        for counter in (metrics.ARCHIVE_GAPS, metrics.ARCHIVE_TRUNCATED_OFFSETS):
            counter.labels(*place)
        for counter in (
            metrics.REMOTE_COPY_REQUESTS,
            metrics.REMOTE_COPY_BYTES,
            metrics.REMOTE_COPY_ERRORS,
        ):
            counter.labels(status.tip.topic)
    values = (
        status.archive_start,
        status.archive_end,
        status.lag_offsets,
        status.margin_offsets,
        status.gathered_bytes,
        status.closed_segments,
    )
    for gauge, value in zip(_GAUGES, values, strict=True):
        if value is not None:
            gauge.labels(*place).set(value)


def withdraw(tip: TopicIdPartition) -> None:
    """The partition is archived here no more: its gauges go."""
    for gauge in _GAUGES:
        gauge.remove(tip.topic, tip.partition)
