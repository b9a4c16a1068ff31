"""What the archiver says of one partition, for console and metrics. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import (
    ARCHIVE_END_OFFSET,
    ARCHIVE_LAG_OFFSETS,
    ARCHIVE_MARGIN_OFFSETS,
    ARCHIVE_START_OFFSET,
    REMOTE_COPY_LAG_BYTES,
    REMOTE_COPY_LAG_SEGMENTS,
)
from fetchproxy.remote_log.partition_archiver import Progress


@dataclass(frozen=True, slots=True)
class PartitionArchiveStatus:
    """Offsets as last known, None where not known; ends are exclusive.

    `lag_offsets`: below the last stable offset and not archived yet. `margin_offsets`: archive end
    minus the broker's log start; below 0, data was lost before it was copied. `last_success_ms`:
    epoch ms of the last turn without an error. `stopped`: an error that no retry can mend.
    """

    tip: TopicIdPartition
    archive_start: int | None
    archive_end: int | None
    log_start_offset: int | None
    last_stable_offset: int | None
    gathered_bytes: int
    last_error: str | None
    last_success_ms: int | None
    stopped: bool

    @property
    def topic(self) -> str:
        return self.tip.topic

    @property
    def partition(self) -> int:
        return self.tip.partition

    @property
    def lag_offsets(self) -> int | None:
        begin = self.log_start_offset if self.archive_end is None else self.archive_end
        if begin is None or self.last_stable_offset is None:
            return None
        return max(self.last_stable_offset - begin, 0)

    @property
    def margin_offsets(self) -> int | None:
        if self.archive_end is None or self.log_start_offset is None:
            return None
        return self.archive_end - self.log_start_offset


def publish(status: PartitionArchiveStatus, progress: Progress) -> None:
    """Set the partition's gauges; what is not known is left as it was."""
    place = (status.topic, str(status.partition))
    for gauge, value in (
        (ARCHIVE_START_OFFSET, status.archive_start),
        (ARCHIVE_END_OFFSET, status.archive_end),
        (ARCHIVE_LAG_OFFSETS, status.lag_offsets),
        (ARCHIVE_MARGIN_OFFSETS, status.margin_offsets),
        (REMOTE_COPY_LAG_BYTES, progress.gathered_bytes),
        (REMOTE_COPY_LAG_SEGMENTS, progress.closed_segments),
    ):
        if value is not None:
            gauge.labels(*place).set(value)


def withdraw(tip: TopicIdPartition) -> None:
    """The partition is archived here no more: its gauges go."""
    for gauge in (
        ARCHIVE_START_OFFSET,
        ARCHIVE_END_OFFSET,
        ARCHIVE_LAG_OFFSETS,
        ARCHIVE_MARGIN_OFFSETS,
        REMOTE_COPY_LAG_BYTES,
        REMOTE_COPY_LAG_SEGMENTS,
    ):
        if (tip.topic, str(tip.partition)) in gauge._metrics:
            gauge.remove(tip.topic, str(tip.partition))
