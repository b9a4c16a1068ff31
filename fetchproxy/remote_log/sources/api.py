"""Where the archiver gets segments from, as it sees it: whatever the source, a GatheredSegment.

`broker` gathers a segment from fetched batches (`batch_gatherer`, over a `LogSource`), `log-dirs`
takes a broker's rolled segment file (`log_dirs_gatherer`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment
from fetchproxy.remote_log.sources.spool import Spool
from protocol.record_batch import BatchHeader


@dataclass(frozen=True, slots=True)
class LogRead:
    """Whole batches from a position on, none above the LSO that the source knew of.

    `headers` point into `records`. Empty headers: nothing more can be read now.
    """

    records: memoryview
    headers: tuple[BatchHeader, ...]
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset), see `aborted_txns`
    log_start_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class LogGap:
    """The log has lost the position: it begins above it now."""

    log_start_offset: int


class LogSource(ABC):
    @abstractmethod
    async def log_start_offset(self, tip: TopicIdPartition) -> int:
        """As it is now. Raises ClusterError."""

    @abstractmethod
    async def read(self, tip: TopicIdPartition, position: int, bytes_max: int) -> LogRead | LogGap:
        """At least one batch if there is one, more while they fit into `bytes_max` bytes.

        Raises LogTruncated where the log ends below `position`, CorruptSegment for a batch that
        fails its CRC-32C or is none, ClusterError.
        """


class SegmentGatherer(ABC):
    """One partition's next segment, for one PartitionArchiver, which calls one method at a time.

    `log_start_offset` and `last_stable_offset` are those that it last heard of; None: not yet.
    """

    log_start_offset: int | None = None
    last_stable_offset: int | None = None

    @property
    @abstractmethod
    def gathered_bytes(self) -> int:
        """Bytes of the segment that is being gathered or waits to be copied."""

    @property
    def gathered_end(self) -> int | None:
        """One past the last offset of that segment; None: nothing is gathered."""
        return None

    @property
    def first_timestamp_ms(self) -> int | None:
        """Of the first record of that segment; None: nothing is gathered, or it is not known."""
        return None

    @abstractmethod
    async def find_log_start(self) -> int:
        """The log start as it is now. Raises ClusterError."""

    @abstractmethod
    async def gather(self, position: int, *, close_short: bool) -> GatheredSegment | LogGap | None:
        """The segment that begins at `position`; None: it cannot be closed yet.

        What was gathered is kept over calls with the same position, and gone with another one. The
        segment's file stays until `discard`. `close_short`: nobody waits for more, so what is there
        makes a segment, however short; a source whose segments others close pays no heed to it.

        Raises as `LogSource.read`, OSError of the disk. After any error but a ClusterError what was
        gathered is of no use: call `discard`.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Forget what was gathered and give the disk space back. Idempotent."""


class SegmentSource(ABC):
    """Makes gatherers; one for all partitions of an archiver."""

    @abstractmethod
    def gatherer(self, tip: TopicIdPartition, spool: Spool) -> SegmentGatherer: ...
