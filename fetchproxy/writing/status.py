"""The status of one partition's archiving, for console and metrics. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.writing.copier import CopyProgress

# By field of the status.
_GAUGES = {
    "archive_start": metrics.ARCHIVE_START_OFFSET,
    "archive_end": metrics.ARCHIVE_END_OFFSET,
    "lag_offsets": metrics.ARCHIVE_LAG_OFFSETS,
    "margin_offsets": metrics.ARCHIVE_MARGIN_OFFSETS,
    "accumulated_bytes": metrics.REMOTE_COPY_LAG_BYTES,
    "closed_segments": metrics.REMOTE_COPY_LAG_SEGMENTS,
}
# A copy that has used up this share of its time is reported while it is still running.
STALLED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BrokerRetention:
    """The broker's limits of one partition; None: unlimited."""

    ms: int | None
    bytes: int | None


BROKER_UNLIMITED = BrokerRetention(None, None)


def broker_retention(topic_config: Mapping[str, str]) -> BrokerRetention:
    """From a topic's effective settings (DescribeConfigs).

    Brokers with tiered storage of their own (KIP-405) serve what local.retention.* has removed from
    their disks, until retention.*. Without `delete` in cleanup.policy nothing is deleted.
    """
    if "delete" not in topic_config.get("cleanup.policy", "delete"):
        return BROKER_UNLIMITED

    def limit(name: str) -> int | None:
        value = topic_config.get(name)
        return None if value is None or int(value) < 0 else int(value)

    return BrokerRetention(ms=limit("retention.ms"), bytes=limit("retention.bytes"))


class Step(StrEnum):
    """The step of a partition's turn."""

    DELETE = "delete"
    COPY = "copy"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionArchiveStatus:
    """The status as last known. Offsets are None if not known; ends are exclusive. A follower knows
    only the archive's range. `last_success_ms`: epoch ms of the last turn without an error.
    """

    tp: TopicIdPartition
    last_error: str | None = None
    last_success_ms: int | None = None
    stopped: bool = False  # by an error that no retry can mend
    leads: bool = True
    step: Step | None = None  # of the turn under way
    archive_start: int | None = None
    archive_end: int | None = None
    log_start_offset: int | None = None
    last_stable_offset: int | None = None
    high_watermark: int | None = None
    accumulated_bytes: int = 0
    accumulated_end: int | None = None
    bytes_per_offset: float | None = None  # mean of the accumulated batches
    raised_log_start: int = 0  # below it everything was deleted on purpose
    closed_segments: int = 0
    first_unarchived_ms: int | None = None  # timestamp of the first accumulated record
    copy: CopyProgress | None = None  # of the segment being copied to the store
    broker_retention: BrokerRetention = BROKER_UNLIMITED
    retention_used: float | None = None  # share used by unarchived records
    deleted_in_ms: int | None = None  # time until brokers delete unarchived records

    @property
    def lost(self) -> tuple[int, int] | None:
        """First and last offset that the brokers deleted uncopied. None once it is a gap."""
        if self.archive_end is None or self.log_start_offset is None:
            return None
        first = max(self.archive_end, self.accumulated_end or 0, self.raised_log_start)
        return (first, self.log_start_offset - 1) if self.log_start_offset > first else None

    @property
    def unarchived_bytes(self) -> int | None:
        """An estimate, because most of these records were not read yet. None: not known."""
        lag = self.lag_offsets
        if not lag:
            return lag
        if self.bytes_per_offset is None:
            return self.accumulated_bytes or None
        return max(round(lag * self.bytes_per_offset), self.accumulated_bytes)

    def copy_seconds(self, now: float) -> float | None:
        """How long the copy has been under way at loop time `now` (s). None: no copy."""
        return None if self.copy is None else max(now - self.copy.started_at, 0.0)

    @property
    def log_end(self) -> int | None:
        """The brokers' retention does not know the last stable offset: all below this may go."""
        known_offsets = [
            offset
            for offset in (self.high_watermark, self.last_stable_offset)
            if offset is not None
        ]
        return max(known_offsets, default=None)

    @property
    def first_unarchived(self) -> int | None:
        """The first offset on the brokers that is not archived; the log's end if there is none."""
        known_offsets = [
            offset for offset in (self.log_start_offset, self.archive_end) if offset is not None
        ]
        return max(known_offsets, default=None)

    @property
    def lag_offsets(self) -> int | None:
        """Offsets on the brokers, up to the high watermark, that are not archived yet."""
        if self.first_unarchived is None or self.log_end is None:
            return None
        return max(self.log_end - self.first_unarchived, 0)

    @property
    def is_pinned(self) -> bool:
        """Whether all below the last stable offset is archived, and records are above it."""
        stable, end, first = self.last_stable_offset, self.log_end, self.first_unarchived
        return stable is not None and end is not None and stable <= (first or 0) < end

    @property
    def margin_offsets(self) -> int | None:
        """Archive end minus log start. Below 0 the brokers have deleted unarchived records."""
        if self.archive_end is None or self.log_start_offset is None:
            return None
        return self.archive_end - self.log_start_offset


def publish(status: PartitionArchiveStatus) -> None:
    """Set the partition's gauges; unknown values stay as they were. Its counters start at 0 when it
    is led here: otherwise `increase()` does not see a first gap.
    """
    label_values = (status.tp.topic, str(status.tp.partition))
    if label_values not in metrics.series_of(metrics.ARCHIVE_GAPS):
        for counter in (metrics.ARCHIVE_GAPS, metrics.ARCHIVE_TRUNCATED_OFFSETS):
            counter.labels(*label_values)
        for counter in (
            metrics.REMOTE_COPY_REQUESTS,
            metrics.REMOTE_COPY_BYTES,
            metrics.REMOTE_COPY_ERRORS,
        ):
            counter.labels(status.tp.topic)
    for field, gauge in _GAUGES.items():
        value = getattr(status, field)
        if value is not None:
            gauge.labels(*label_values).set(value)


def withdraw(tp: TopicIdPartition) -> None:
    """This archiver does not archive the partition any more: remove its gauges."""
    for gauge in _GAUGES.values():
        gauge.remove(tp.topic, tp.partition)
