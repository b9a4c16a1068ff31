"""What the archive has of compacted logs for a new cluster: whole copies. Pure.

A whole copy goes to the new brokers with its original batches: brokers have all of a compacted log.
It begins at its first record, and ends where the new records begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fetchproxy.metadata.partition_view import PartitionView


@dataclass(frozen=True, slots=True)
class CopyState:
    """Of one partition. `begun_at_ms`: when the copy was begun (epoch ms); None: no copy is whole
    yet.
    """

    topic: str
    partition: int
    begun_at_ms: int | None
    start_offset: int | None = None
    end_offset: int | None = None
    segments: int = 0
    size_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return self.begun_at_ms is not None


def copy_state(view: PartitionView) -> CopyState | None:
    """None: the log is not archived as a compacted one."""
    copy, tp = view.history.compacted, view.tp
    if copy is None:
        return None
    if not copy.number:
        return CopyState(tp.topic, tp.partition, None)
    return CopyState(
        tp.topic,
        tp.partition,
        copy.begun_at_ms,
        view.log_start_offset,
        view.log_end_offset,
        len(view.segments),
        sum(segment.segment_size_bytes for segment in view.segments),
    )


def is_served_whole(view: PartitionView) -> bool:
    """Whether the new brokers get all records of the partition, whatever else they get."""
    state = copy_state(view)
    return state is not None and state.is_whole


def copy_lines(states: Iterable[CopyState]) -> Iterator[str]:
    """One sentence for each topic."""
    by_topic: dict[str, list[CopyState]] = {}
    for state in states:
        by_topic.setdefault(state.topic, []).append(state)
    for topic, partitions in sorted(by_topic.items()):
        whole = [state for state in partitions if state.is_whole]
        size_bytes = sum(state.size_bytes for state in whole)
        segments = sum(state.segments for state in whole)
        yield (
            f"compacted topic {topic}: whole copies of {len(whole)} of {len(partitions)} "
            f"partitions, {size_bytes:,} bytes in {segments:,} segments"
        )
