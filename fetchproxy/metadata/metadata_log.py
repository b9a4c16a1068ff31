"""MetadataLog: the port to the metadata topic. Knows bytes and offsets, nothing of segments.

Implementations: `cluster.metadata_log` over Kafka; a small one in memory in tests/metadata, which
passes the same contract suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log it is: one that was created again has another id."""

    log_id: UUID
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets `start` up to but not including `end` of one partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Values by rising offset. `next_offset`: where to go on; equal to what was asked: no news."""

    values: tuple[tuple[int, bytes], ...]
    next_offset: int


class MetadataLog(ABC):
    """Every method raises RemoteStorageError where the log cannot be reached or refuses."""

    @abstractmethod
    async def open(self) -> LogIdentity:
        """Create it if it is absent, look at it if it is there; may be called again.

        Raises ConfigError for one that would lose events; the message says how to mend it.
        """

    @abstractmethod
    async def append(self, partition: int, value: bytes) -> int:
        """The value's offset; durable when it returns.

        After an error it may have been appended or not, also once more than once and later than
        now: whoever reads must not mind.
        """

    @abstractmethod
    async def bounds(self, partition: int) -> LogBounds:
        """What was appended before the call is below `end`."""

    @abstractmethod
    async def read(self, partition: int, from_offset: int) -> LogChunk:
        """Some values from an offset within the bounds on; may wait a little where none is."""
