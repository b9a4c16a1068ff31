"""The findings of a verification of the archive."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition, in_order


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`byte_position`: in the object. `offset`: in the log. None: does not apply."""

    topic: str
    partition: int
    object_key: str
    byte_position: int | None
    offset: int | None
    what: str

    @classmethod
    def of(
        cls,
        tp: TopicIdPartition,
        object_key: str,
        what: str,
        offset: int | None = None,
        byte_position: int | None = None,
    ) -> Self:
        return cls(tp.topic, tp.partition, object_key, byte_position, offset, what)

    @classmethod
    def unread(cls, segment: RemoteLogSegmentMetadata, object_key: str, error: Exception) -> Self:
        """The segment could not be checked now, which says nothing of its content."""
        what = f"offsets {segment.start_offset} to {segment.end_offset}: {error}"
        return cls.of(segment.topic_id_partition, object_key, what, segment.start_offset)

    def __str__(self) -> str:
        place = "" if self.byte_position is None else f" at byte {self.byte_position}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.topic}-{self.partition}: {self.object_key}{place}{offset}: {self.what}"


@dataclass(frozen=True, slots=True, order=True)
class NotKnown:
    """A fact that the archive does not record: its data are older than such records. No fault."""

    topic: str
    partition: int
    what: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.what}"


@dataclass(slots=True)
class VerifyReport:
    partitions: int = 0
    segments: int = 0  # finished segments that were checked
    segments_unfinished: int = 0  # copies or deletions in progress or abandoned
    size_bytes: int = 0  # of the checked segments' logs
    faults: list[Fault] = field(default_factory=list)
    # Objects that could not be read, though all others could, twice. They are no faults: they may
    # be read later.
    unread: list[Fault] = field(default_factory=list)
    segments_overlapping: int = 0  # two archivers copied some offsets twice; no fault
    not_known: list[NotKnown] = field(default_factory=list)
    published_conditions: list[Condition] = field(
        default_factory=list
    )  # notes for the operator; no faults
    # Counted only if new segments are encrypted. No fault, but somebody who can write to the store
    # without a key may have added them.
    segments_not_encrypted: int = 0

    def add(self, other: VerifyReport) -> None:
        """Add the report of other partitions."""
        for each in fields(self):
            total = getattr(self, each.name)
            total += getattr(other, each.name)
            setattr(self, each.name, total)

    def sort(self) -> None:
        self.not_known.sort()
        self.faults.sort(key=_place)
        self.unread.sort(key=_place)
        self.published_conditions = list(in_order(self.published_conditions))

    @property
    def clean(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class RepairReport:
    """One line of text each. `repairs`: objects that were repaired, or would be in a dry run.
    `refusals`: objects that could not be repaired, and why.
    """

    repairs: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def _place(fault: Fault) -> tuple[str, int, str, int, int]:
    position = -1 if fault.byte_position is None else fault.byte_position
    offset = -1 if fault.offset is None else fault.offset
    return fault.topic, fault.partition, fault.object_key, position, offset
