"""What a verification and a repair of the archive report."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.observability.health import Condition, Kind, condition_order, in_order, of_object


@dataclass(slots=True)
class VerifyReport:
    partitions: int = 0
    segments: int = 0  # finished segments that were checked
    segments_unfinished: int = 0  # copies or deletions in progress or abandoned
    size_bytes: int = 0  # of the checked segments' logs
    faults: list[Condition] = field(default_factory=list)
    # Objects that could not be read, though all others could, twice. They are no faults: they may
    # be read later.
    unread: list[Condition] = field(default_factory=list)
    segments_overlapping: int = 0  # two archivers copied some offsets twice; no fault
    # What the archive does not record, as its data are older than such records; no faults.
    not_known: list[Condition] = field(default_factory=list)
    # Notes for the operator; no faults.
    published_conditions: list[Condition] = field(default_factory=list)
    # Keys of `.log` objects, only if new segments are encrypted. No fault, but somebody who can
    # write to the store without a key may have added them.
    not_encrypted: list[str] = field(default_factory=list)

    def add(self, other: VerifyReport) -> None:
        """Add the report of other partitions."""
        for report_field in fields(self):
            total = getattr(self, report_field.name)
            total += getattr(other, report_field.name)
            setattr(self, report_field.name, total)

    def sort(self) -> None:
        for conditions in (self.not_known, self.faults, self.unread):
            conditions.sort(key=condition_order)
        self.not_encrypted.sort()
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


def fault_fields(fault: Condition) -> dict[str, str | int | None]:
    """The JSON names and the columns of a fault."""
    return {
        "topic": fault.topic,
        "partition": fault.partition,
        "object_key": fault.object_key,
        "byte_position": fault.byte_position,
        "offset": fault.first_offset,
        "what": fault.what,
    }


def unread(segment: RemoteLogSegmentMetadata, object_key: str, error: Exception) -> Condition:
    """The segment could not be checked now, which says nothing of its content."""
    message = f"offsets {segment.start_offset} to {segment.end_offset}: {error}"
    tp, first = segment.topic_id_partition, segment.start_offset
    return of_object(Kind.OBJECT_NOT_READABLE, tp, object_key, message, first, retriable=True)
