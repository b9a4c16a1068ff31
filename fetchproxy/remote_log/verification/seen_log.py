"""How far a partition's log was read, by whoever goes through its segments front to back. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.metadata.overlaps import first_difference
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata


@dataclass(slots=True)
class SeenLog:
    """How far the partition's log was read, front to back."""

    anything: bool = False
    end: int = -1  # up to there each event was seen, from where the history was begun
    last: RemoteLogSegmentMetadata | None = None
    lineage: tuple[EpochStart, ...] | None = None  # up to `lineage_end`; None: not known
    lineage_end: int = -1

    def goes_on_with(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """The segment begins where this log ends, or it is another copy of the last one."""
        if metadata.start_offset > self.end + 1:
            return False
        return self.last is None or first_difference(self.last, metadata) is None

    def lineage_before(self, metadata: RemoteLogSegmentMetadata) -> tuple[EpochStart, ...] | None:
        """None: what lies before it is not there, or not known."""
        if self.lineage is None or metadata.start_offset > self.lineage_end + 1:
            return None
        return tuple(e for e in self.lineage if e.start_offset < metadata.start_offset)

    def note_lineage(
        self, metadata: RemoteLogSegmentMetadata, found: tuple[EpochStart, ...] | None
    ) -> None:
        self.anything = True
        if metadata.end_offset >= self.lineage_end:
            self.lineage_end = metadata.end_offset
            self.lineage = found and tuple(
                e for e in found if e.start_offset <= metadata.end_offset
            )
