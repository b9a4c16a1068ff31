"""Which OffsetOutOfRange a client may see: the rule, case by case."""

from __future__ import annotations

from uuid import UUID

import pytest
from fetch_entries import entry
from fetchproxy_protocol.fetch import FetchEntry, PartitionKey
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.metadata.archiver_positions import NOT_KNOWN
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    LogOffsets,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.gateway.fetch_routing import CachedLookups, FetchPlan, RouteTable
from fetchproxy.serving.gateway.route_decision import (
    Route,
    RouteDecision,
    Wait,
    decide,
    what_is_waited_for,
)

TP = TopicIdPartition(UUID(int=1), "t", 0)
KEY: PartitionKey = (b"t", 0)


def view(*ranges: tuple[int, int], copying: tuple[int, int] | None = None) -> PartitionView:
    states = [RemoteLogSegmentState.COPY_SEGMENT_FINISHED] * len(ranges)
    if copying is not None:
        ranges, states = (*ranges, copying), [*states, RemoteLogSegmentState(0)]
    segments = [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(TP, UUID(int=i + 1)), a, b, 0, 0, (), 1, state, False
        )
        for i, ((a, b), state) in enumerate(zip(ranges, states, strict=True))
    ]
    return build_view(TP, segments, 0.0)


LOG_OFFSETS = LogOffsets(log_start_offset=500, high_watermark=900, last_stable_offset=900)
NOBODY = None  # no archiver accumulates the partition

LOST, END = Route.LOST, Route.END
REMOTE, LOCAL, RELAY_ERROR, WAIT = Route.REMOTE, Route.LOCAL, Route.RELAY_ERROR, Route.WAIT
CASES = {
    "archived": (7, view((0, 499)), NOBODY, REMOTE),
    "archived and still local": (600, view((0, 700)), NOBODY, REMOTE),
    "above the end": (901, view((0, 499)), NOBODY, RELAY_ERROR),
    "the archive's end, above that of a log that began again": (990, view((0, 989)), NOBODY, WAIT),
    "above the end, nothing archived": (901, view(), NOBODY, RELAY_ERROR),
    "the broker has it": (600, view((0, 499)), NOBODY, LOCAL),
    "at the end": (900, view((0, 499)), NOBODY, LOCAL),
    "below both tiers": (7, view((100, 499)), NOBODY, RELAY_ERROR),
    "in a recorded gap": (150, view((0, 99), (200, 499)), NOBODY, REMOTE),
    "in what cannot be read": (150, build_view(TP, view((0, 99)).segments, 0, (100,)), 0, REMOTE),
    "deleted": (7, build_view(TP, view((0, 499)).segments, 0.0, (), 8), NOBODY, RELAY_ERROR),
    "deleted before a first copy": (7, build_view(TP, (), 0.0, (), 8), 8, RELAY_ERROR),
    # Between the archive's end and the broker's log start.
    "an archiver has it": (450, view((0, 399)), 400, WAIT),
    "an archiver has not looked yet": (450, view((0, 399)), -1, WAIT),
    "nobody accumulates the partition": (450, view((0, 399)), NOBODY, LOST),
    "the archiver is past it": (450, view((0, 399)), 500, LOST),
    "the archiver has what comes next": (420, view((0, 399)), 450, WAIT),
    "its copy is under way": (450, view((0, 399), copying=(400, 499)), NOBODY, WAIT),
    "a copy of what comes next is": (420, view((0, 399), copying=(450, 499)), NOBODY, WAIT),
    "a copy that was left below it": (450, view((0, 399), copying=(380, 420)), NOBODY, LOST),
    # Nothing of the partition is archived.
    "never archived": (7, view(), NOBODY, RELAY_ERROR),
    "its first copy is under way": (7, view(copying=(0, 99)), NOBODY, WAIT),
    "its first segment is accumulated": (7, view(), 0, WAIT),
    "stale, and the archiver began behind it": (7, view(), 500, RELAY_ERROR),
    "and the log has gone on since": (7, view(), 400, RELAY_ERROR),
}


@pytest.mark.parametrize("name", CASES)
def test_each_named_case_has_its_route(name: str) -> None:
    offset, view_seen, archiver_position, decided = CASES[name]
    assert decide(offset, view_seen, LOG_OFFSETS, archiver_position) == decided


@pytest.mark.parametrize(
    ("view_seen", "archiver_position"),
    [(view((0, 399)), 400), (view((0, 399), copying=(400, 499)), NOBODY)],
    ids=["accumulated", "copied"],
)
def test_what_is_on_its_way_for_too_long_is_not_waited_for(
    view_seen: PartitionView, archiver_position: int | None
) -> None:
    assert decide(450, view_seen, LOG_OFFSETS, archiver_position, may_wait=False) == LOST


@pytest.mark.parametrize(
    ("offset", "archiver_position", "waits_for"),
    [
        (450, 400, Wait.ACCUMULATED),
        (420, 450, Wait.ACCUMULATED),
        (450, NOT_KNOWN, Wait.POSITION),
        (450, NOBODY, Wait.COPY),
        (450, 700, Wait.COPY),  # the archiver is past it: who copies was killed
        (990, 400, Wait.LOG_RETURNS),
    ],
)
def test_what_a_held_reader_waits_for(
    offset: int, archiver_position: int | None, waits_for: Wait
) -> None:
    assert what_is_waited_for(offset, LOG_OFFSETS, archiver_position) is waits_for


def test_an_end_that_the_log_does_not_reach_again_is_not_waited_for_for_ever() -> None:
    assert decide(990, view((0, 989)), LOG_OFFSETS, NOBODY, may_wait=False) == RELAY_ERROR


def test_where_the_broker_has_nothing_more_the_reader_is_at_the_end() -> None:
    empty = LogOffsets(log_start_offset=500, high_watermark=500, last_stable_offset=500)
    assert decide(450, view((0, 399)), empty, NOBODY) == END
    assert decide(450, view((0, 399)), empty, 500) == END
    assert decide(450, view((0, 399)), empty, 400) == WAIT, "an archiver has it in its spool"


@given(
    st.integers(-1, 1200),
    st.integers(0, 400),
    st.integers(400, 600),
    st.none() | st.integers(-1, 900),
    st.booleans(),
)
def test_what_any_tier_has_is_never_called_out_of_range(
    offset: int, archive_start: int, archive_end: int, archiver_position: int | None, patient: bool
) -> None:
    view_seen = view((archive_start, archive_end))
    outcome = decide(offset, view_seen, LOG_OFFSETS, archiver_position, may_wait=patient)
    reachable = archive_start <= offset <= archive_end or 500 <= offset <= 900
    if reachable:
        assert outcome in (Route.REMOTE, Route.LOCAL)
    if outcome is Route.RELAY_ERROR:
        assert offset < archive_start or offset > 900
    if outcome is Route.LOST:
        assert archive_end < offset < 500, "only ever forward, past nothing that is"
        assert not patient or archiver_position is None or archiver_position >= 500


class Known:
    def __init__(self, view_seen: PartitionView | None, log_offsets: LogOffsets | None) -> None:
        self.view, self.log_offsets = view_seen, log_offsets

    def knowledge(self) -> CachedLookups:
        return CachedLookups(
            lambda tp: self.view, lambda tp: self.log_offsets, lambda topic, partition: TP
        )


def tps_of(plan: FetchPlan) -> dict[PartitionKey, TopicIdPartition]:
    return {key: view.tp for key, view in plan.remote.items()}


def entries_at(offset: int) -> dict[PartitionKey, FetchEntry]:
    return {KEY: entry(0, offset)}


def caught(offset: int, outcome: Route, now: float = 0.0) -> RouteTable:
    table = RouteTable(permit_ttl_s=60)
    route = table.catch(KEY, offset, now)
    assert route is not None
    assert route.decision is None
    route.decision = RouteDecision(outcome, TP)
    return table


def test_a_partition_is_withheld_while_it_is_judged_and_only_at_that_offset() -> None:
    table = RouteTable(permit_ttl_s=60)
    table.catch(KEY, 7, 0.0)
    known = Known(None, None).knowledge()
    assert at_once(table.plan_in_steps(entries_at(7), 1.0, known)).undecided == {KEY}
    assert not at_once(table.plan_in_steps(entries_at(8), 1.0, known)).kept_from_broker


def test_a_reader_of_the_archive_crosses_to_the_broker_at_its_log_start() -> None:
    table = caught(7, Route.REMOTE)
    known = Known(view((0, 600)), LOG_OFFSETS).knowledge()
    assert tps_of(at_once(table.plan_in_steps(entries_at(499), 1.0, known))) == {KEY: TP}
    assert not at_once(table.plan_in_steps(entries_at(500), 1.0, known)).kept_from_broker


def test_a_permit_runs_out_and_the_next_catch_renews_it_without_a_judgement() -> None:
    table = caught(7, Route.REMOTE)
    known = Known(view((0, 499)), LOG_OFFSETS).knowledge()
    assert at_once(table.plan_in_steps(entries_at(20), 59.0, known)).remote
    assert not at_once(table.plan_in_steps(entries_at(30), 61.0, known)).kept_from_broker, (
        "one fetch must pass for a new permit"
    )
    route = table.catch(KEY, 30, 61.0)
    assert route is not None
    assert route.decision is not None
    assert tps_of(at_once(table.plan_in_steps(entries_at(30), 62.0, known))) == {KEY: TP}


def test_other_partitions_of_a_permitted_topic_need_no_catch() -> None:
    table = caught(7, Route.REMOTE)
    known = Known(view((0, 499)), LOG_OFFSETS).knowledge()
    other = (b"t", 5)
    both = {**entries_at(7), other: entry(5, 3)}
    assert set(at_once(table.plan_in_steps(both, 1.0, known)).remote) == {KEY, other}
    assert set(at_once(table.plan_in_steps(both, 61.0, known)).remote) == set()


def test_an_error_that_was_judged_true_is_passed_on_once() -> None:
    table = caught(7, Route.RELAY_ERROR)
    known = Known(view(), LOG_OFFSETS).knowledge()
    assert not at_once(table.plan_in_steps(entries_at(7), 0.1, known)).kept_from_broker
    assert table.catch(KEY, 7, 0.2) is None
    assert table.catch(KEY, 7, 0.3) is not None, "the next one is judged anew"


@pytest.mark.parametrize("outcome", [Route.WAIT, Route.END, Route.REFUSED])
def test_what_the_broker_cannot_answer_is_not_asked_of_it(outcome: Route) -> None:
    table = caught(7, outcome)
    known = Known(view(), None).knowledge()
    assert at_once(table.plan_in_steps(entries_at(7), 0.4, known)).undecided == {KEY}
    assert at_once(table.plan_in_steps(entries_at(7), 59.0, known)).undecided == {KEY}
    assert not at_once(table.plan_in_steps(entries_at(8), 0.4, known)).kept_from_broker, (
        "the client has gone elsewhere"
    )


def test_behind_lost_offsets_the_broker_is_asked_and_the_skip_is_told_once() -> None:
    table = RouteTable(permit_ttl_s=60)
    route = table.catch(KEY, 450, 0.0)
    assert route is not None
    route.decision = RouteDecision(Route.LOST, TP, forward_to=500)
    known = Known(view((0, 399)), LOG_OFFSETS).knowledge()
    plan = at_once(table.plan_in_steps(entries_at(450), 0.1, known))
    assert (plan.broker_offsets, plan.kept_from_broker) == ({KEY: 500}, frozenset())
    assert not table.skipped_ranges, "it has nothing yet"
    assert not at_once(table.plan_in_steps(entries_at(520), 0.2, known)).broker_offsets
    assert table.skipped_ranges == [(TP, 450, 499)]
    assert not table.routes


def test_what_the_broker_has_again_is_its_to_answer_at_once() -> None:
    table = caught(7, Route.LOCAL)
    known = Known(view(), None).knowledge()
    assert not at_once(table.plan_in_steps(entries_at(7), 0.1, known)).kept_from_broker


def test_what_the_client_was_told_is_judged_anew_when_it_asks_again() -> None:
    for outcome in (Route.RELAY_ERROR, Route.REFUSED):
        table = caught(7, outcome)
        table.error_sent(KEY)
        assert not table.routes
    table = caught(7, Route.REMOTE)
    table.error_sent(KEY)
    assert table.routes, "an error of the store says nothing about the offset"


def test_partitions_take_turns() -> None:
    table = RouteTable(permit_ttl_s=60)
    known = Known(view((0, 499)), LOG_OFFSETS).knowledge()
    keys = [(b"t", n) for n in range(3)]
    entries = {key: entry(key[1], 3) for key in keys}
    for key in keys:
        route = table.catch(key, 3, 0.0)
        assert route is not None
        route.decision = RouteDecision(Route.REMOTE, TP)
    assert list(at_once(table.plan_in_steps(entries, 1.0, known)).remote) == keys
    table.move_to_end(keys[0])
    assert list(at_once(table.plan_in_steps(entries, 1.0, known)).remote) == [*keys[1:], keys[0]]
