"""Which OffsetOutOfRange a client may see: the rule of DESIGN §4.7, case by case."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.gateway.fetch_marks import FetchMarks, Knowledge
from fetchproxy.gateway.judgement import Judgement, Verdict, decide
from fetchproxy.metadata.partition_view import PartitionView, build_view
from fetchproxy.model import (
    LogEdges,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from protocol.fetch_request import FetchPartition, PartitionKey

TIP = TopicIdPartition(UUID(int=1), "t", 0)
KEY: PartitionKey = (b"t", 0)


def view(*ranges: tuple[int, int], started: bool = False) -> PartitionView:
    states = [RemoteLogSegmentState.COPY_SEGMENT_FINISHED] * len(ranges)
    if started:
        ranges, states = (*ranges, (10**6, 10**6)), [*states, RemoteLogSegmentState(0)]
    segments = [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(TIP, UUID(int=i + 1)), a, b, 0, 0, (), 1, state, False
        )
        for i, ((a, b), state) in enumerate(zip(ranges, states, strict=True))
    ]
    return build_view(TIP, segments, 0.0)


EDGES = LogEdges(log_start_offset=500, high_watermark=900, last_stable_offset=900)

CASES = {
    "archived": (7, view((0, 499)), Verdict.REMOTE),
    "archived and still local": (600, view((0, 700)), Verdict.REMOTE),
    "above the end": (901, view((0, 499)), Verdict.PASS_ON),
    "above the end, nothing archived": (901, view(), Verdict.PASS_ON),
    "the broker has it": (600, view((0, 499)), Verdict.LOCAL),
    "at the end": (900, view((0, 499)), Verdict.LOCAL),
    "below both tiers": (7, view((100, 499)), Verdict.PASS_ON),
    "a recorded gap": (150, view((0, 99), (200, 499)), Verdict.PASS_ON),
    "between the tiers, perhaps on its way": (450, view((0, 399)), Verdict.HOLD),
    "never archived": (7, view(), Verdict.PASS_ON),
    "its first copy is under way": (7, view(started=True), Verdict.HOLD),
    "deleted": (7, build_view(TIP, view((0, 499)).segments, 0.0, (), 8), Verdict.PASS_ON),
    "deleted before a first copy": (7, build_view(TIP, (), 0.0, (9,), 8), Verdict.PASS_ON),
}


@pytest.mark.parametrize("name", CASES)
def test_decide(name: str) -> None:
    offset, seen, verdict = CASES[name]
    assert decide(offset, seen, EDGES, archiving=False) is verdict


def test_while_a_first_segment_is_gathered_nobody_is_sent_away() -> None:
    assert decide(7, view(), EDGES, archiving=True) is Verdict.HOLD
    empty = LogEdges(log_start_offset=900, high_watermark=900, last_stable_offset=900)
    assert decide(7, view(), empty, archiving=True) is Verdict.PASS_ON, "nothing will ever come"


@given(st.integers(-1, 1200), st.integers(0, 400), st.integers(400, 600))
def test_what_any_tier_has_is_never_called_out_of_range(
    offset: int, archive_start: int, archive_end: int
) -> None:
    verdict = decide(offset, view((archive_start, archive_end)), EDGES, False)
    reachable = archive_start <= offset <= archive_end or 500 <= offset <= 900
    if reachable:
        assert verdict in (Verdict.REMOTE, Verdict.LOCAL)
    if verdict is Verdict.PASS_ON:
        assert offset < archive_start or offset > 900


class Known:
    def __init__(self, seen: PartitionView | None, edges: LogEdges | None) -> None:
        self.view, self.edges = seen, edges

    def knowledge(self) -> Knowledge:
        return Knowledge(
            lambda tip: self.view, lambda tip: self.edges, lambda topic, partition: TIP
        )


def asked(offset: int) -> dict[PartitionKey, FetchPartition]:
    return {KEY: FetchPartition(0, offset, 1000, b"")}


def caught(offset: int, verdict: Verdict, now: float = 0.0) -> FetchMarks:
    marks = FetchMarks(permit_ttl_s=60)
    mark = marks.catch(KEY, offset, now)
    assert mark is not None
    assert mark.judgement is None
    mark.judgement = Judgement(verdict, TIP)
    mark.withheld_until = now + 0.5
    return marks


def test_a_partition_is_withheld_while_it_is_judged_and_only_at_that_offset() -> None:
    marks = FetchMarks(permit_ttl_s=60)
    marks.catch(KEY, 7, 0.0)
    known = Known(None, None).knowledge()
    assert marks.split(asked(7), 1.0, known).judging == {KEY}
    assert not marks.split(asked(8), 1.0, known).withheld


def test_a_reader_of_the_archive_crosses_to_the_broker_at_its_log_start() -> None:
    marks = caught(7, Verdict.REMOTE)
    known = Known(view((0, 600)), EDGES).knowledge()
    assert marks.split(asked(499), 1.0, known).remote == {KEY: TIP}
    assert not marks.split(asked(500), 1.0, known).withheld


def test_a_permit_runs_out_and_the_next_catch_renews_it_without_a_judgement() -> None:
    marks = caught(7, Verdict.REMOTE)
    known = Known(view((0, 499)), EDGES).knowledge()
    assert marks.split(asked(20), 59.0, known).remote
    assert not marks.split(asked(30), 61.0, known).withheld, "one fetch must pass for a new permit"
    mark = marks.catch(KEY, 30, 61.0)
    assert mark is not None
    assert mark.judgement is not None
    assert marks.split(asked(30), 62.0, known).remote == {KEY: TIP}


def test_other_partitions_of_a_permitted_topic_need_no_catch() -> None:
    marks = caught(7, Verdict.REMOTE)
    known = Known(view((0, 499)), EDGES).knowledge()
    other = (b"t", 5)
    both = {**asked(7), other: FetchPartition(5, 3, 1, b"")}
    assert set(marks.split(both, 1.0, known).remote) == {KEY, other}
    assert set(marks.split(both, 61.0, known).remote) == set()


def test_an_error_that_was_judged_true_is_passed_on_once() -> None:
    marks = caught(7, Verdict.PASS_ON)
    known = Known(view(), EDGES).knowledge()
    assert not marks.split(asked(7), 0.1, known).withheld
    assert marks.catch(KEY, 7, 0.2) is None
    assert marks.catch(KEY, 7, 0.3) is not None, "the next one is judged anew"


@pytest.mark.parametrize("verdict", [Verdict.HOLD, Verdict.LOCAL])
def test_what_is_undecided_is_not_asked_again_at_network_speed(verdict: Verdict) -> None:
    marks = caught(7, verdict)
    known = Known(view(), None).knowledge()
    assert marks.split(asked(7), 0.4, known).judging == {KEY}
    assert not marks.split(asked(7), 0.6, known).withheld


def test_partitions_take_turns() -> None:
    marks = FetchMarks(permit_ttl_s=60)
    known = Known(view((0, 499)), EDGES).knowledge()
    keys = [(b"t", n) for n in range(3)]
    wanted = {key: FetchPartition(key[1], 3, 1, b"") for key in keys}
    for key in keys:
        mark = marks.catch(key, 3, 0.0)
        assert mark is not None
        mark.judgement = Judgement(Verdict.REMOTE, TIP)
    assert list(marks.split(wanted, 1.0, known).remote) == keys
    marks.served(keys[0])
    assert list(marks.split(wanted, 1.0, known).remote) == [*keys[1:], keys[0]]
