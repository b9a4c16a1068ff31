"""What retention has passed, and which segments may go. Pure: it reads and deletes nothing.

As Kafka's RemoteLogManager (RetentionSizeData, RetentionTimeData) does it: oldest first, ending at
the first segment that is to stay, by its newest record's timestamp and by the bytes above the
limit. Bytes count once: those of finished segments, without what two of them both hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from fetchproxy.remote_log.retention.retention_settings import Retention
from fetchproxy.remote_log.retention.spare_copies import Segments, spare_copies, stand_ins

State = RemoteLogSegmentState


def retained_from(view: PartitionView, retention: Retention, now_ms: int) -> int | None:
    """The first offset that retention keeps; None: it deletes nothing.

    The newest segment always stays, as Kafka's active one does: where it ends the archive goes on,
    and no clock, however wrong, makes the archive empty. A segment whose metadata cannot be read
    stays too, and so does what is above it: nobody knows what it holds.
    """
    if not view.segments or (retention.remote_ms < 0 and retention.remote_bytes < 0):
        return None
    first_to_stay = min([view.segments[-1].end_offset, *view.unreadable[:1]])
    surplus = 0
    if retention.remote_bytes >= 0:
        surplus = sum(size for _, size in counted_bytes(view)) - retention.remote_bytes
    start = None
    for segment, size in counted_bytes(view):
        if segment.end_offset >= first_to_stay:
            break
        passed = 0 <= retention.remote_ms <= now_ms - newest_timestamp_ms(segment)
        if not passed and not 0 < size <= surplus:
            break
        surplus -= size
        start = segment.end_offset + 1
    return start


def newest_timestamp_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Of its records; without any timestamp the time of its copy, as Kafka takes its file's."""
    if segment.max_timestamp_ms >= 0:
        return segment.max_timestamp_ms
    return segment.event_timestamp_ms


def counted_bytes(view: PartitionView) -> Iterator[tuple[RemoteLogSegmentMetadata, int]]:
    """Every segment of the view with the bytes that no segment before it has.

    Of one that overlaps, or was cut by an election, its share by offsets.
    """
    counted_to = view.raised_log_start
    for segment in view.segments:
        last = segment.end_offset
        copied = last if segment.copied_end_offset is None else segment.copied_end_offset
        first = max(segment.start_offset, counted_to)
        whole = copied - segment.start_offset + 1
        yield segment, segment.segment_size_bytes * (last - first + 1) // whole
        counted_to = last + 1


@dataclass(frozen=True, slots=True)
class Removals:
    """What is to become DELETE_SEGMENT_STARTED, what of it may lose its objects, oldest first.

    `stand_ins`: by id, of what goes though it is not below the log start, the segments that hold
    its offsets and have to be there for that; None: there are none, so it must not go.
    `next_at_ms`: when (epoch ms) the first of those that still wait is due; None: none waits.
    """

    hide: tuple[RemoteLogSegmentMetadata, ...]
    delete: tuple[RemoteLogSegmentMetadata, ...]
    waiting: tuple[RemoteLogSegmentMetadata, ...]  # hidden; readers in flight have their grace
    next_at_ms: int | None
    stand_ins: Mapping[UUID, Segments | None]


def plan_removals(
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
    *,
    now_ms: int,
    grace_ms: int,
    attempt_age_max_ms: int,
) -> Removals:
    """`segments`: all that the metadata name, in whatever state, as old as `view`.

    Hidden are segments below the log start, attempts older than `attempt_age_max_ms`, as nobody
    works on them any more, and copies as old all of whose offsets others hold (two archivers met).
    """
    # What is of another history of the log stays until a person says otherwise (`LogHistory`).
    segments = tuple(
        s for s in segments if s.state is not State.COPY_SEGMENT_FINISHED or view.history.shows(s)
    )
    spare = spare_copies(segments, view, now_ms - attempt_age_max_ms)
    hide: list[RemoteLogSegmentMetadata] = []
    delete: list[RemoteLogSegmentMetadata] = []
    waiting: list[RemoteLogSegmentMetadata] = []
    later: list[int] = []
    for segment in segments:
        hidden = segment.state is State.DELETE_SEGMENT_STARTED
        due_ms = segment.event_timestamp_ms + (grace_ms if hidden else attempt_age_max_ms)
        if hidden:
            (delete if due_ms <= now_ms else waiting).append(segment)
        elif segment.state is State.COPY_SEGMENT_STARTED:
            if due_ms <= now_ms:
                hide.append(segment)
        elif segment.end_offset < view.raised_log_start or segment.segment_id.id in spare:
            hide.append(segment)
        if now_ms < due_ms and segment.state is not State.COPY_SEGMENT_FINISHED:
            later.append(due_ms)
    standing = {
        s.segment_id.id: spare.get(s.segment_id.id) or stand_ins(s, view)
        for s in (*hide, *delete)
        if s.end_offset >= view.raised_log_start
    }
    next_at_ms = min(later, default=None)
    return Removals(tuple(hide), tuple(delete), tuple(waiting), next_at_ms, standing)
