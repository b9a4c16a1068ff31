"""A connection's knowledge of its partitions: the broker's own response against older log
offsets.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from fetch_entries import entry
from fetchproxy_protocol.fetch import PartitionKey

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import (
    LogOffsets,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.gateway.fetch_routing import CachedLookups, RouteTable
from fetchproxy.serving.gateway.route_decision import Route, RouteDecision

TP = TopicIdPartition(UUID(int=1), "t", 0)
KEY: PartitionKey = (b"t", 0)
STALE = LogOffsets(log_start_offset=0, high_watermark=900, last_stable_offset=900)


def knowledge(log_offsets: LogOffsets) -> CachedLookups:
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TP, UUID(int=2)), 0, 499, 0, 0, (), 1, finished, False
    )
    view = build_view(TP, [segment], 0.0)
    return CachedLookups(lambda tp: view, lambda tp: log_offsets, lambda topic, number: TP)


@pytest.mark.parametrize(
    ("offset", "is_remote"),
    [(100, True), (99, True), (101, False)],
    ids=["caught", "below it", "above it"],
)
def test_edges_from_before_the_catch_do_not_send_it_back_to_the_broker(
    offset: int, is_remote: bool
) -> None:
    """The broker would say "out of range" again, so empty rounds would follow at network speed."""
    table = RouteTable(permit_ttl_s=60)
    route = table.catch(KEY, 100, 0.0)
    assert route is not None
    route.decision = RouteDecision(Route.REMOTE, TP)
    entries = {KEY: entry(0, offset)}
    plan = at_once(table.plan_in_steps(entries, 1.0, knowledge(STALE)))
    assert (KEY in plan.remote) is is_remote


def test_partitions_that_did_not_change_are_not_looked_at_again() -> None:
    """A permit is not a reason to go through a large session at each fetch."""
    table = RouteTable(permit_ttl_s=60)
    asked_of: list[int] = []

    def identify(topic: bytes, partition: int) -> TopicIdPartition:
        asked_of.append(partition)
        return TP

    known = knowledge(STALE)
    known = CachedLookups(known.view, known.log_offsets, identify)
    entries = {(b"t", n): entry(n, 600) for n in range(100)}
    table.catch((b"t", 0), 600, 0.0)
    at_once(table.plan_in_steps(entries, 1.0, known, []))
    assert len(asked_of) == 99, "once, as the permit is new"
    table.catch((b"t", 0), 600, 2.0)
    at_once(table.plan_in_steps(entries, 3.0, known, [(b"t", 5)]))
    assert len(asked_of) == 100


def test_a_broker_that_lacks_what_the_leader_has_is_not_judged_twice() -> None:
    table = RouteTable(permit_ttl_s=60)
    route = table.catch(KEY, 100, 0.0)
    assert route is not None
    route.decision = RouteDecision(Route.LOCAL, TP)
    entries = {KEY: entry(0, 100)}
    known = knowledge(STALE)
    assert not table.denied_again(KEY, 101)
    assert not at_once(table.plan_in_steps(entries, 0.5, known)).kept_from_broker, (
        "the broker is asked again"
    )
    assert table.denied_again(KEY, 100)
    assert not table.denied_again(KEY, 100), "that was said: then it is judged anew"


def test_a_permit_that_ran_out_permits_nothing() -> None:
    table = RouteTable(permit_ttl_s=60)
    assert not table.permitted(b"t", 0.0)
    table.catch(KEY, 100, 0.0)
    assert table.permitted(b"t", 59.0)
    assert not table.permitted(b"t", 61.0)


def test_another_leader_epoch_than_the_checked_one_is_the_brokers_to_judge() -> None:
    """It answers FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, or "out of range", which is a catch."""
    table = RouteTable(permit_ttl_s=60)
    known = knowledge(LogOffsets(500, 900, 900))
    other = (b"t", 1)

    def kept_from_broker(*leader_epochs: int) -> frozenset[PartitionKey]:
        entries = {
            (b"t", number): entry(number, 100, leader_epoch=epoch)
            for number, epoch in enumerate(leader_epochs)
        }
        return at_once(table.plan_in_steps(entries, 1.0, known)).kept_from_broker

    def caught(leader_epoch: int) -> None:
        route = table.catch(KEY, 100, 0.0, leader_epoch)
        assert route is not None
        route.decision = RouteDecision(Route.REMOTE, TP)

    caught(5)
    assert kept_from_broker(5) == {KEY}
    assert not kept_from_broker(6)
    assert kept_from_broker(5, 5) == {KEY}, "of the other partition no epoch has been checked"
    assert kept_from_broker(-1, -1) == {KEY, other}, "nothing to check"
    assert not kept_from_broker(4, 4)
    caught(6)
    assert not kept_from_broker(5)
    assert kept_from_broker(6) == {KEY}
