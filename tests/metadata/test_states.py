"""The table of legal transitions, compared with Kafka's own."""

from __future__ import annotations

import pytest
from metadata_contract import segment

from fetchproxy.model import RemoteLogSegmentState as State
from fetchproxy.model import RemotePartitionDeleteState as DeleteState
from fetchproxy.segments.states import LEGAL_NEXT, check_deletion, check_update

# Kafka 4.1, RemoteLogSegmentState.isValidTransition.
KAFKA = {
    (None, State.COPY_SEGMENT_STARTED),
    (State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_STARTED),
    (State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED),
    (State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED),
    (State.COPY_SEGMENT_FINISHED, State.COPY_SEGMENT_FINISHED),
    (State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED),
    (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED),
    (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED),
    (State.DELETE_SEGMENT_FINISHED, State.DELETE_SEGMENT_FINISHED),
}


@pytest.mark.parametrize("new", list(State))
@pytest.mark.parametrize("old", [None, *State])
def test_exactly_kafka_s_transitions(old: State | None, new: State) -> None:
    known = None if old is None else segment(1, 0, 9, old)
    if (old, new) in KAFKA:
        check_update(known, segment(1, 0, 9, new))
    else:
        with pytest.raises(ValueError, match=f"invalid .* to {new.name}"):
            check_update(known, segment(1, 0, 9, new))


def test_every_state_is_in_the_table() -> None:
    assert set(LEGAL_NEXT) == {None, *State}


# Kafka 4.1, RemotePartitionDeleteState.isValidTransition.
KAFKA_DELETION = {
    (None, DeleteState.DELETE_PARTITION_MARKED),
    (DeleteState.DELETE_PARTITION_MARKED, DeleteState.DELETE_PARTITION_MARKED),
    (DeleteState.DELETE_PARTITION_MARKED, DeleteState.DELETE_PARTITION_STARTED),
    (DeleteState.DELETE_PARTITION_STARTED, DeleteState.DELETE_PARTITION_STARTED),
    (DeleteState.DELETE_PARTITION_STARTED, DeleteState.DELETE_PARTITION_FINISHED),
    (DeleteState.DELETE_PARTITION_FINISHED, DeleteState.DELETE_PARTITION_FINISHED),
}


@pytest.mark.parametrize("new", list(DeleteState))
@pytest.mark.parametrize("old", [None, *DeleteState])
def test_exactly_kafka_s_deletions(old: DeleteState | None, new: DeleteState) -> None:
    if (old, new) in KAFKA_DELETION:
        check_deletion(old, new)
    else:
        with pytest.raises(ValueError, match=f"invalid .* to {new.name}"):
            check_deletion(old, new)


@pytest.mark.parametrize("end", [9, 5, 0])
def test_a_finished_segment_may_be_cut(end: int) -> None:
    finished = State.COPY_SEGMENT_FINISHED
    check_update(segment(1, 0, 9, finished), segment(1, 0, end, finished))


def test_a_finished_segment_never_grows() -> None:
    finished = State.COPY_SEGMENT_FINISHED
    with pytest.raises(ValueError, match="ends at 5 and cannot be made to end at 9"):
        check_update(segment(1, 0, 5, finished), segment(1, 0, 9, finished))


def test_the_table_holds_for_updates_too() -> None:
    check_update(None, segment(1, 0, 9))
    check_update(segment(1, 0, 5), segment(1, 0, 9))  # an unfinished copy may change in any way
    with pytest.raises(ValueError, match="a new segment to COPY_SEGMENT_FINISHED"):
        check_update(None, segment(1, 0, 9, State.COPY_SEGMENT_FINISHED))
