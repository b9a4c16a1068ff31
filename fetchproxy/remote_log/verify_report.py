"""What a verification of the archive finds, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`byte_position` lies in the object, `offset` in the log; None where neither applies."""

    topic: str
    partition: int
    object_key: str
    byte_position: int | None
    offset: int | None
    what: str

    def __str__(self) -> str:
        place = "" if self.byte_position is None else f" at byte {self.byte_position}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.topic}-{self.partition}: {self.object_key}{place}{offset}: {self.what}"


@dataclass(frozen=True, slots=True, order=True)
class RecordedGap:
    """Offsets that were lost before they could be copied, both inclusive; information, no fault."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    partitions: int
    segments: int  # finished ones that were checked
    segments_unfinished: int  # copies or deletions that are under way or were left
    size_bytes: int  # of the checked segments' logs
    gaps: tuple[RecordedGap, ...]
    faults: tuple[Fault, ...]

    @property
    def clean(self) -> bool:
        return not self.faults
