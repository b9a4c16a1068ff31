"""What accumulates a partition's next segment, whatever its source."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import LogTruncated
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.segments.contents import AccumulatedSegment, SegmentSummary
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.sources.segment_writer import SegmentWriter
from fetchproxy.writing.spool import Spool


@dataclass(frozen=True, slots=True)
class LogGap:
    """The log does not have the position any more: it begins above it."""

    log_start_offset: int


@dataclass(eq=False, repr=False)
class SegmentAccumulator(ABC):
    """Accumulates one partition's next segment. Its PartitionArchiver calls one method at a
    time.
    """

    tp: TopicIdPartition
    spool: Spool
    _: KW_ONLY
    cluster: Cluster
    pace: CopyPace
    # As last known. None: not known yet.
    log_start_offset: int | None = None
    last_stable_offset: int | None = None
    # Loop time (s) before the last request that told `last_stable_offset` together with records.
    # -inf: there was none, or the source reads no broker.
    read_at: float = float("-inf")
    # The segment being accumulated or waiting to be copied. None or no bytes: nothing is
    # accumulated.
    accumulated: SegmentSummary | None = None
    closed: AccumulatedSegment | None = None  # waiting to be copied
    # It is one of so many that share what one of them may read at once.
    share: int = 1

    @property
    def writer(self) -> SegmentWriter | None:
        """The writer of the accumulated data. None: there is none, or a broker writes its files."""
        return None

    @abstractmethod
    async def accumulate(
        self, position: int, *, close_short: bool
    ) -> AccumulatedSegment | LogGap | None:
        """Return the closed segment that begins at `position`. None: it cannot be closed yet.

        Accumulated data stay over calls with the same position; another position drops them.
        `close_short`: close the segment with the available records, even if it is short. A source
        whose segments the broker closes ignores it.

        Raises LogTruncated if the log ends below `position`, CorruptSegment, ClusterError, and
        OSError of the disk. After any error except a ClusterError the accumulated data are
        unusable: call `discard`.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Drop the accumulated data and free the disk space. Idempotent."""

    async def find_log_start(self) -> int:
        """The current log start. Raises ClusterError."""
        return (await self._log_offsets()).log_start_offset

    async def _log_offsets(self) -> LogOffsets:
        now = asyncio.get_running_loop().time()
        log_offsets = await self.cluster.log_offsets(self.tp, not_older_than=now)
        self.log_start_offset = log_offsets.log_start_offset
        self.last_stable_offset = log_offsets.last_stable_offset
        return log_offsets

    def _gap(self, position: int, log_offsets: LogOffsets) -> LogGap | None:
        """None: there is no gap. Raises LogTruncated if the log ends below `position`."""
        if position > log_offsets.high_watermark:
            raise LogTruncated(
                f"{self.tp} ends at offset {log_offsets.high_watermark}, archived up to {position}"
            )
        return (
            LogGap(log_offsets.log_start_offset)
            if position < log_offsets.log_start_offset
            else None
        )
