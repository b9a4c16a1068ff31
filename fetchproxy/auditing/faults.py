"""What a verification of the archive finds, as values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, in_order


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`byte_position` lies in the object, `offset` in the log; None where neither applies."""

    topic: str
    partition: int
    object_key: str
    byte_position: int | None
    offset: int | None
    what: str

    @classmethod
    def of(
        cls,
        tip: TopicIdPartition,
        object_key: str,
        what: str,
        offset: int | None = None,
        byte_position: int | None = None,
    ) -> Self:
        return cls(tip.topic, tip.partition, object_key, byte_position, offset, what)

    def __str__(self) -> str:
        place = "" if self.byte_position is None else f" at byte {self.byte_position}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.topic}-{self.partition}: {self.object_key}{place}{offset}: {self.what}"


@dataclass(frozen=True, slots=True, order=True)
class NotKnown:
    """What the archive does not tell, as it was written before it was recorded; no fault."""

    topic: str
    partition: int
    what: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.what}"


@dataclass(slots=True)
class VerifyReport:
    partitions: int = 0
    segments: int = 0  # finished ones that were checked
    segments_unfinished: int = 0  # copies or deletions that are under way or were left
    size_bytes: int = 0  # of the checked segments' logs
    faults: list[Fault] = field(default_factory=list)
    segments_overlapping: int = 0  # two archivers met and copied some offsets twice; no fault
    not_known: list[NotKnown] = field(default_factory=list)
    concerns: list[Condition] = field(default_factory=list)  # what there is to know; no faults
    # Where new ones are: no fault, and what a writer of the store without a key can add.
    segments_not_encrypted: int = 0

    def add(self, other: VerifyReport) -> None:
        """Of other partitions."""
        for each in fields(self):
            total = getattr(self, each.name)
            total += getattr(other, each.name)
            setattr(self, each.name, total)

    def sort(self) -> None:
        self.not_known.sort()
        self.faults.sort(key=_place)
        self.concerns = list(in_order(self.concerns))

    @property
    def clean(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class RepairReport:
    """In words, a line each. `repairs`: what was made again (would be, in a dry run); `refusals`:
    what could not be, and why.
    """

    repairs: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def _place(fault: Fault) -> tuple[str, int, str, int, int]:
    position = -1 if fault.byte_position is None else fault.byte_position
    offset = -1 if fault.offset is None else fault.offset
    return fault.topic, fault.partition, fault.object_key, position, offset
