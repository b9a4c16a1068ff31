"""The lives of a remote log segment and of a partition's deletion, as tables. Pure.

Source: Kafka's RemoteLogSegmentState and RemotePartitionDeleteState.

      (new)
        │
        ▼
    COPY_SEGMENT_STARTED ─────────────┐      all objects but the metadata may be missing
        │                             │
        ▼                             │      a copy that failed or was left is deleted
    COPY_SEGMENT_FINISHED             │      readers see this state only
        │                             │
        ▼                             │
    DELETE_SEGMENT_STARTED ◄──────────┘      readers in flight get their grace
        │
        ▼
    DELETE_SEGMENT_FINISHED                  nothing is left but this word

A topic that was deleted takes its partitions through

    (none) ─► DELETE_PARTITION_MARKED ─► DELETE_PARTITION_STARTED ─► DELETE_PARTITION_FINISHED
              found deleted              its segments go              nothing is left of it

Every state may follow itself: an update whose answer was lost is sent again.
"""

from __future__ import annotations

from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.model import RemoteLogSegmentState as State
from fetchproxy.model import RemotePartitionDeleteState as DeleteState

LEGAL_NEXT: dict[State | None, frozenset[State]] = {
    None: frozenset({State.COPY_SEGMENT_STARTED}),
    State.COPY_SEGMENT_STARTED: frozenset(
        {State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED}
    ),
    State.COPY_SEGMENT_FINISHED: frozenset(
        {State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED}
    ),
    State.DELETE_SEGMENT_STARTED: frozenset(
        {State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED}
    ),
    State.DELETE_SEGMENT_FINISHED: frozenset({State.DELETE_SEGMENT_FINISHED}),
}


def check_transition(old: State | None, new: State) -> None:
    """Raises ValueError where `new` may not follow `old`; None is a segment never heard of."""
    if new not in LEGAL_NEXT[old]:
        before = "a new segment" if old is None else old.name
        raise ValueError(f"illegal segment state transition: {before} to {new.name}")


def check_update(known: RemoteLogSegmentMetadata | None, new: RemoteLogSegmentMetadata) -> None:
    """Raises ValueError where `new` may not follow what is `known` of the segment.

    Besides the table: a segment that was cut (unclean leader election) never grows again, so that a
    message of before, which arrives late or twice, cannot bring a dead lineage back.
    """
    check_transition(None if known is None else known.state, new.state)
    if (
        known is not None
        and known.state is new.state is State.COPY_SEGMENT_FINISHED
        and new.end_offset > known.end_offset
    ):
        raise ValueError(
            f"segment {new.segment_id.id} ends at {known.end_offset} and cannot be made to end "
            f"at {new.end_offset} again"
        )


LEGAL_NEXT_DELETION: dict[DeleteState | None, frozenset[DeleteState]] = {
    None: frozenset({DeleteState.DELETE_PARTITION_MARKED}),
    DeleteState.DELETE_PARTITION_MARKED: frozenset(
        {DeleteState.DELETE_PARTITION_MARKED, DeleteState.DELETE_PARTITION_STARTED}
    ),
    DeleteState.DELETE_PARTITION_STARTED: frozenset(
        {DeleteState.DELETE_PARTITION_STARTED, DeleteState.DELETE_PARTITION_FINISHED}
    ),
    DeleteState.DELETE_PARTITION_FINISHED: frozenset({DeleteState.DELETE_PARTITION_FINISHED}),
}


def check_deletion(old: DeleteState | None, new: DeleteState) -> None:
    """Raises ValueError where `new` may not follow `old`; None is a partition nobody deletes."""
    if new not in LEGAL_NEXT_DELETION[old]:
        before = "a partition nobody deletes" if old is None else old.name
        raise ValueError(f"illegal partition deletion: {before} to {new.name}")
