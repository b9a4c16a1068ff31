"""Which states stay, which one counts at a time, and what is beyond the archive."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.cluster_state.comparison import (
    BeyondArchive,
    compared_groups,
    compared_partitions,
)
from fetchproxy.cluster_state.kept_states import EACH_KEPT_MS, served_their_time, state_at
from fetchproxy.cluster_state.state import (
    ClusterState,
    GroupKind,
    GroupWithOffsets,
    OffsetOfGroup,
    PartitionState,
    TopicState,
)
from fetchproxy.segments.object_keys import (
    archive_wide_folders,
    check_key,
    cluster_state_key,
    cluster_states_folder,
    parse_cluster_state_key,
    parse_topic_folder,
)
from fetchproxy.storage.archive_objects import ClusterStateObject

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def states_read_at(*times: int) -> list[ClusterStateObject]:
    return [ClusterStateObject(at, "c", str(at)) for at in sorted(times)]


def after_each(times: list[int], retention_ms: int) -> list[ClusterStateObject]:
    """What stays if each write removes what has served its time."""
    states: list[ClusterStateObject] = []
    for at in sorted(set(times)):
        states += states_read_at(at)
        gone = list(served_their_time(states, at, retention_ms))
        states = [one for one in states if one not in gone]
    return states


def test_each_minute_of_the_last_hour_and_one_of_each_hour_before() -> None:
    states = after_each([minute * MINUTE for minute in range(3 * 24 * 60)], 2 * DAY)
    now = states[-1].read_at_ms
    recent = [one for one in states if one.read_at_ms >= now - EACH_KEPT_MS]
    assert len(recent) == 61
    older = states[: -len(recent)]
    assert {one.read_at_ms % HOUR for one in older} == {59 * MINUTE}
    assert 46 <= len(older) <= 48
    assert older[0].read_at_ms <= now - 2 * DAY + HOUR


@given(st.lists(st.integers(0, 10 * DAY), min_size=1), st.integers(0, 5 * DAY))
def test_the_newest_stays_and_so_does_one_for_each_kept_hour(
    times: list[int], retention_ms: int
) -> None:
    states = after_each(times, retention_ms)
    now = max(times)
    assert states[-1].read_at_ms == now
    for at in times:
        if at >= max(now - retention_ms, 0):
            of_its_hour = [one for one in states if one.read_at_ms // HOUR == at // HOUR]
            assert of_its_hour
    # What counted when the kept time begins is there still.
    before = [at for at in times if at <= now - retention_ms]
    if before:
        counts = state_at(states, now - retention_ms)
        assert counts is not None
        assert counts.read_at_ms // HOUR == max(before) // HOUR


def test_a_state_counts_from_its_time_on() -> None:
    states = states_read_at(10, 20, 30)
    assert state_at(states, 9) is None
    assert [getattr(state_at(states, at), "read_at_ms", None) for at in (10, 19, 20, 99)] == [
        *(10, 10, 20, 30),
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.integers(0, 2**63 - 1))
def test_keys_are_read_back_and_sort_by_time(cluster_id: str, at: int) -> None:
    key = cluster_state_key("archive/", cluster_id, at)
    assert check_key(key) == key
    assert parse_cluster_state_key("archive/", key) == (cluster_id, at)
    assert parse_cluster_state_key("other/", key) is None
    if at:
        assert cluster_state_key("archive/", "zzz", at - 1) < key


@pytest.mark.parametrize("name", ["", "x", "1-", f"{'0' * 20}", f"{'9' * 20}-YQ", f"{'0' * 20}-YR"])
def test_other_names_in_the_folder_are_not_states(name: str) -> None:
    assert parse_cluster_state_key("", cluster_states_folder("") + name) is None


def test_the_folder_is_no_topics_and_a_mirror_copies_it() -> None:
    assert parse_topic_folder(cluster_states_folder("").rstrip("/")) is None
    assert cluster_states_folder("archive/") in archive_wide_folders("archive/")


def test_groups_beyond_the_archive_are_named_with_numbers() -> None:
    topic = UUID(int=1)
    state = ClusterState(
        "c",
        1,
        (
            TopicState(
                "orders",
                topic,
                1,
                3,
                partitions=tuple(PartitionState(number, 10, 100) for number in range(3)),
            ),
        ),
        (
            GroupWithOffsets(
                "g",
                GroupKind.CLASSIC,
                (
                    OffsetOfGroup("orders", 0, 90),
                    OffsetOfGroup("orders", 1, 50),
                    OffsetOfGroup("orders", 2, 70),
                ),
            ),
            GroupWithOffsets("h", GroupKind.SHARE, (OffsetOfGroup("deleted", 0, 5),)),
        ),
    )
    ends = {(topic, 0): 80, (topic, 1): 100}
    not_archived = [one.not_archived for one in compared_partitions(state, ends)]
    assert not_archived == [20, 0, 90]
    of_g, of_h = compared_groups(state, ends)
    assert of_g.lag_offsets == 10 + 50 + 30
    assert of_g.beyond == (BeyondArchive("g", "orders", 0, 90, 80),)
    assert of_g.beyond[0].offsets == 10
    assert of_h.lag_offsets is None
    assert of_h.beyond == ()
