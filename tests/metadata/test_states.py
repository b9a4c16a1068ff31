"""The table of legal transitions, against Kafka's own words."""

from __future__ import annotations

import pytest

from fetchproxy.metadata.states import LEGAL_NEXT, check_transition
from fetchproxy.model import RemoteLogSegmentState as State

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
    if (old, new) in KAFKA:
        check_transition(old, new)
    else:
        with pytest.raises(ValueError, match=f"illegal .* to {new.name}"):
            check_transition(old, new)


def test_every_state_is_in_the_table() -> None:
    assert set(LEGAL_NEXT) == {None, *State}
