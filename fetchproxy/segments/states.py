"""Which state of a segment, and of a partition's deletion, may follow which. Pure."""

from __future__ import annotations

from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)

_State = RemoteLogSegmentState
DeleteState = RemotePartitionDeleteState
# The states of a remote log segment and of a partition's deletion: Kafka's RemoteLogSegmentState
# and RemotePartitionDeleteState.
#
#       (new)
#         │
#         ▼
#     COPY_SEGMENT_STARTED ─────────────┐      all objects but the metadata may be missing
#         │                             │
#         ▼                             │      a copy that failed or was left is deleted
#     COPY_SEGMENT_FINISHED             │      readers see this state only
#         │                             │
#         ▼                             │
#     DELETE_SEGMENT_STARTED ◄──────────┘      readers in flight get their grace
#         │
#         ▼
#     DELETE_SEGMENT_FINISHED                  only this word is left
#
# The partitions of a deleted topic go through
#
#     (none) ─► DELETE_PARTITION_MARKED ─► DELETE_PARTITION_STARTED ─► DELETE_PARTITION_FINISHED
#               found deleted              its segments go              nothing is left of it
#
# Every state may follow itself: an update whose response was lost is sent again.
LEGAL_NEXT: dict[_State | None, frozenset[_State]] = {
    None: frozenset({_State.COPY_SEGMENT_STARTED}),
    _State.COPY_SEGMENT_STARTED: frozenset(
        {_State.COPY_SEGMENT_FINISHED, _State.DELETE_SEGMENT_STARTED}
    ),
    _State.COPY_SEGMENT_FINISHED: frozenset({_State.DELETE_SEGMENT_STARTED}),
    _State.DELETE_SEGMENT_STARTED: frozenset({_State.DELETE_SEGMENT_FINISHED}),
    _State.DELETE_SEGMENT_FINISHED: frozenset(),
}


def check_update(recorded: RemoteLogSegmentMetadata | None, new: RemoteLogSegmentMetadata) -> None:
    """Raises ValueError if `new` may not follow the `recorded` metadata of the segment.

    Besides `LEGAL_NEXT`: a segment that was cut (unclean leader election) never grows again. So an
    old message that arrives late or twice cannot bring a dead lineage back.
    """
    old = None if recorded is None else recorded.state
    if new.state is not old and new.state not in LEGAL_NEXT[old]:
        before = "a new segment" if old is None else old.name
        raise ValueError(f"invalid segment state transition: {before} to {new.state.name}")
    if (
        recorded is not None
        and recorded.state is new.state is _State.COPY_SEGMENT_FINISHED
        and new.end_offset > recorded.end_offset
    ):
        raise ValueError(
            f"segment {new.segment_id.id} ends at {recorded.end_offset} and cannot be made to end "
            f"at {new.end_offset} again"
        )


def check_deletion(old: DeleteState | None, new: DeleteState) -> None:
    """Raises ValueError if `new` may not follow `old`. None: nobody deletes the partition."""
    following = DeleteState.DELETE_PARTITION_MARKED if old is None else old + 1
    if new not in (old, following):
        before = "a partition nobody deletes" if old is None else old.name
        raise ValueError(f"invalid partition deletion: {before} to {new.name}")
