"""Where the archiver reads from: raw, whole, checked batches from a position on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fetchproxy.model import TopicIdPartition
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
