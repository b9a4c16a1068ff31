"""The life of a remote log segment, as one table. Pure; source: Kafka's RemoteLogSegmentState.

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

Every state may follow itself: an update whose answer was lost is sent again.
"""

from __future__ import annotations

from fetchproxy.model import RemoteLogSegmentState as State

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
