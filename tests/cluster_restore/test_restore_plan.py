"""What happens to each topic, partition and group: decisions from values alone."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from restore_process import group, topic

from fetchproxy.cluster_restore.archived_topics import archived_topic
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.group_plan import PlacedPartition, plan_groups
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener, listener_of
from fetchproxy.cluster_restore.next_step import (
    PartitionEpochSearch,
    PartitionGoal,
    PartitionStep,
    next_step,
    other_first,
    partition_goals,
)
from fetchproxy.cluster_restore.phantoms import Phantoms
from fetchproxy.cluster_restore.plan import (
    FoundPartition,
    FoundTopic,
    LocalHistory,
    LostPartition,
    LostTopic,
    RestorePlan,
    TopicAction,
    diff_lines,
    logs_that_end,
    plan_restore,
    producer_id_blocks,
)
from fetchproxy.cluster_restore.producer_ids import PRODUCER_ID_BLOCKS_MAX, check_producer_ids
from fetchproxy.cluster_restore.state_file import (
    PhantomIdentity,
    RestoreJob,
    RestoreStep,
    read_restore_job,
    write_restore_job,
)
from fetchproxy.cluster_restore.surroundings import padding_notes
from fetchproxy.cluster_state.state import (
    GroupKind,
    GroupWithOffsets,
    OffsetOfGroup,
    PartitionState,
    TopicState,
)
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.model import EpochStart

PHANTOMS = (9_999, 9_998)
REAL = (1, 2, 3)


def partition_now(
    leader: int = 1,
    *,
    replicas: tuple[int, ...] = REAL,
    in_sync: tuple[int, ...] | None = None,
    epoch: int = 0,
    log: tuple[int, int] | None = None,
) -> FoundPartition:
    start, end = (None, None) if log is None else log
    synced = frozenset(replicas if in_sync is None else in_sync)
    return FoundPartition(leader, epoch, replicas, synced, start, end)


def planned(one: FoundPartition | None, brokers: tuple[int, ...] = REAL) -> RestorePlan:
    name, topics = "orders", {}
    if one is not None:
        topics[name] = FoundTopic(name, uuid.uuid4(), {0: one})
    return plan_restore([topic(name, [100], replicas=3)], topics, brokers, PHANTOMS)


@pytest.mark.parametrize(
    ("one", "action"),
    [
        (None, TopicAction.CREATE),
        (partition_now(log=(0, 0)), TopicAction.TAKE),
        (partition_now(log=(100, 100)), TopicAction.KEEP),
        (partition_now(log=(100, 130)), TopicAction.KEEP),
        (partition_now(log=(0, 1)), TopicAction.REFUSE),
        (partition_now(log=(50, 100)), TopicAction.REFUSE),
        (partition_now(-1), TopicAction.REFUSE),  # it may have records
        (partition_now(-1, replicas=PHANTOMS), TopicAction.TAKE),
        (partition_now(9_999, replicas=(*PHANTOMS, *REAL)), TopicAction.TAKE),
        (partition_now(replicas=(9_999, *REAL), log=(100, 100)), TopicAction.TAKE),
    ],
)
def test_a_topic_is_created_taken_kept_or_refused(
    one: FoundPartition | None, action: TopicAction
) -> None:
    [of_topic] = planned(one).topics
    assert of_topic.action is action
    assert bool(of_topic.why) == (action is TopicAction.REFUSE)


HISTORY = LocalHistory(40, (EpochStart(2, 40),))


@pytest.mark.parametrize(
    ("one", "action"),
    [
        (None, TopicAction.CREATE),
        (partition_now(log=(0, 0)), TopicAction.TAKE),
        (replace(partition_now(log=(40, 100)), epoch_end=100), TopicAction.KEEP),
        (replace(partition_now(log=(40, 130)), epoch_end=100), TopicAction.KEEP),
        (replace(partition_now(log=(70, 130)), epoch_end=100), TopicAction.KEEP),  # retention
        (partition_now(log=(100, 130)), TopicAction.KEEP),
        (replace(partition_now(log=(40, 130)), epoch_end=120), TopicAction.REFUSE),
        (replace(partition_now(log=(0, 130)), epoch_end=-1), TopicAction.REFUSE),
        (replace(partition_now(log=(40, 90)), epoch_end=90), TopicAction.REFUSE),
    ],
)
@pytest.mark.parametrize("local", [HISTORY, None])
def test_a_partition_with_archived_records_is_told_from_others(
    one: FoundPartition | None, action: TopicAction, local: LocalHistory | None
) -> None:
    partition = LostPartition(100, 2, 2, local)
    lost = LostTopic("orders", 3, (partition,))
    topics = {} if one is None else {"orders": FoundTopic("orders", uuid.uuid4(), {0: one})}
    [of_topic] = plan_restore([lost], topics, REAL, PHANTOMS).topics
    assert of_topic.action is action


def test_the_plan_names_local_history_and_producer_ids() -> None:
    partition = LostPartition(100, 2, 2, HISTORY, "below 40 leader epochs do not rise")
    plan = plan_restore([LostTopic("orders", 3, (partition,))], {}, REAL, PHANTOMS)
    _, line, producers = diff_lines(plan, 2_345)
    assert "begins at 40 with local history up to 100 (below 40 leader epochs do" in line
    assert producers == "~ producer ids up to 2345 are skipped: up to 3 blocks of 1000"
    [goal] = partition_goals(plan.topics[0])
    # A phantom that leads in epoch 2 hands over in epoch 3.
    assert (goal.leader_epoch, goal.end_offset, goal.local) == (3, 100, HISTORY)


@pytest.mark.parametrize(("highest", "blocks"), [(-1, 0), (0, 1), (999, 1), (1_000, 2)])
def test_blocks_of_producer_ids(highest: int, blocks: int) -> None:
    partition = LostPartition(100, 2, 2, HISTORY)
    plan = plan_restore([LostTopic("orders", 3, (partition,))], {}, REAL, PHANTOMS)
    assert producer_id_blocks(plan, highest) == blocks
    assert producer_id_blocks(RestorePlan(()), highest) == 0


def test_too_many_producer_ids_are_refused() -> None:
    check_producer_ids(PRODUCER_ID_BLOCKS_MAX * 1_000 - 1)
    with pytest.raises(ConfigError, match="run it without --local"):
        check_producer_ids(PRODUCER_ID_BLOCKS_MAX * 1_000)


def test_more_replicas_than_brokers_are_refused() -> None:
    [of_topic] = planned(None, brokers=(1, 2)).topics
    assert of_topic.action is TopicAction.REFUSE
    assert "3 replicas" in of_topic.why


def test_leaders_rotate_over_all_topics() -> None:
    topics = [topic(f"t{n}", [1], replicas=2) for n in range(6)]
    plan = plan_restore(topics, {}, REAL, PHANTOMS)
    assert [one.replicas[0][0] for one in plan.topics] == [1, 2, 3, 1, 2, 3]


def test_the_plan_is_a_diff() -> None:
    lines = list(diff_lines(planned(None)))
    assert lines[0] == "+ topic orders: 1 partition, new"
    assert lines[1].startswith("+     partition 0: begins at 100, leader epoch from 0, replicas")
    [refused] = diff_lines(planned(partition_now(log=(0, 5))))
    assert refused.startswith("! topic orders: refused: it exists and has records: partition 0")


BOTH = (*PHANTOMS, *REAL)
STEPS = [
    (partition_now(-1, replicas=PHANTOMS), PartitionStep.WAIT),
    (partition_now(9_999, replicas=PHANTOMS), PartitionStep.SWAP),
    (partition_now(9_999, replicas=PHANTOMS, in_sync=(9_999,)), PartitionStep.ALONE),
    (partition_now(9_999, replicas=PHANTOMS, in_sync=(9_999,), epoch=4), PartitionStep.SPREAD),
    (partition_now(9_999, replicas=(9_998, 9_999), epoch=0), PartitionStep.LEAD),
    (partition_now(9_999, replicas=PHANTOMS, epoch=4), PartitionStep.SPREAD),
    (
        partition_now(9_999, replicas=(*REAL, *PHANTOMS), in_sync=PHANTOMS, epoch=4),
        PartitionStep.JOIN,
    ),
    (partition_now(9_999, replicas=BOTH, epoch=4), PartitionStep.REMOVE),
    (partition_now(1, epoch=5), PartitionStep.WAIT),
    (partition_now(1, epoch=5, log=(30, 60)), PartitionStep.WAIT),  # it has records
    (partition_now(1, epoch=5, log=(100, 100)), PartitionStep.DONE),
    (partition_now(1, replicas=BOTH, log=(100, 100)), PartitionStep.REMOVE),
    (partition_now(1, log=(0, 0)), PartitionStep.ATTACH),
    (partition_now(1, replicas=BOTH, in_sync=REAL, log=(0, 0)), PartitionStep.FOLLOW),
    (partition_now(1, replicas=BOTH, log=(0, 0)), PartitionStep.LEAD),
]


@pytest.mark.parametrize(("one", "step"), STEPS)
def test_the_next_step_of_a_partition(one: FoundPartition, step: PartitionStep) -> None:
    goal = PartitionGoal(100, 5, REAL)
    assert next_step(goal, one, PHANTOMS, frozenset(REAL)) is step


@pytest.mark.parametrize("placed", [frozenset(), frozenset({1, 2})])
def test_real_brokers_without_the_log_leave_the_in_sync_replicas_first(
    placed: frozenset[int],
) -> None:
    taken = partition_now(9_999, replicas=BOTH)
    assert next_step(PartitionGoal(100, 5, REAL), taken, PHANTOMS, placed) is PartitionStep.ALONE


def test_a_partition_without_archived_records_may_have_new_ones() -> None:
    stray = partition_now(1, replicas=BOTH, log=(30, 60))
    assert next_step(PartitionGoal(0, 0, REAL), stray, PHANTOMS, set()) is PartitionStep.REMOVE


@pytest.mark.parametrize("placed", [frozenset(), frozenset({1}), frozenset({1, 2})])
@pytest.mark.parametrize("one", [one for one, _ in STEPS])
def test_no_real_broker_leads_before_all_are_proven(
    one: FoundPartition, placed: frozenset[int]
) -> None:
    step = next_step(PartitionGoal(100, 5, REAL), one, PHANTOMS, placed)
    if one.leader in PHANTOMS:
        assert step not in (PartitionStep.JOIN, PartitionStep.REMOVE, PartitionStep.DONE)


def test_the_other_phantom_comes_first() -> None:
    assert other_first(BOTH, PHANTOMS) == (9_998, 9_999, *REAL)
    assert other_first(other_first(BOTH, PHANTOMS), PHANTOMS) == BOTH


@given(st.integers(0, 50), st.integers(0, 5_000))
def test_the_number_of_changes_is_found(leader_epoch: int, more: int) -> None:
    actual, search, guesses = leader_epoch + more, PartitionEpochSearch(leader_epoch), 0
    while search.guess != actual:
        guesses += 1
        assert not search.has_failed
        if search.guess < actual:
            search.too_low()
        else:
            search.too_high()
    assert guesses < 40


def test_a_search_among_changing_answers_ends() -> None:
    search = PartitionEpochSearch(3)
    search.too_low()
    search.too_high()
    while not search.has_failed:
        search.too_high()


def test_groups_go_on_and_differences_have_numbers() -> None:
    places = {("t", 0): PlacedPartition(100, 120, 5), ("t", 1): PlacedPartition(7, 7, 5)}
    groups = [
        group("at-end", {("t", 0): 120, ("t", 1): 7}, epoch=5),
        group("within", {("t", 0): 110}, epoch=9),
        group("elsewhere", {("u", 0): 1}),
        GroupWithOffsets("shared", GroupKind.SHARE, (OffsetOfGroup("t", 0, 1),)),
    ]

    plan = plan_groups(groups, places)

    committed = {g: [(o.partition, o.offset, o.leader_epoch) for o in offsets]
                 for g, offsets in plan.offsets.items()}  # fmt: skip
    assert committed == {"at-end": [(0, 100, 5), (1, 7, 5)], "within": [(0, 100, -1)]}
    differences = [
        (one.group, one.partition, one.skipped, one.set_back) for one in plan.differences
    ]
    assert differences == [("at-end", 0, 0, 20), ("within", 0, 10, 10)]
    assert not any(one.repeated_max for one in plan.differences)
    assert list(plan.left_out) == ["shared"]


def test_a_group_that_may_have_read_on_after_the_state_is_named_with_the_most_it_may_repeat() -> (
    None
):
    """The archive goes on after the state was read: from 120 to 150 in partition 0."""
    places = {
        ("t", 0): PlacedPartition(150, 150, 5, old_start_offset=30),
        ("t", 1): PlacedPartition(50, 50, 5, local_start_offset=0, old_start_offset=30),
        ("t", 2): PlacedPartition(9, 9, 5, old_start_offset=9),
        ("u", 0): PlacedPartition(7, 7, 5),
    }
    groups = [group("reads", {("t", 0): 120}), group("at-end", {("t", 0): 150, ("t", 1): 50})]

    plan = plan_groups(groups, places)

    [reads] = plan.differences
    assert (reads.group, reads.new_offset, reads.repeated_max) == ("reads", 120, 30)
    assert (reads.skipped, reads.set_back, reads.archived) == (0, 0, 30)
    # It may have committed first in partition 1 after the state; partition 2 has no record.
    [start] = plan.uncertain_starts
    assert (start.group, start.topic, start.partition, start.records_max) == ("reads", "t", 1, 20)


def test_a_plan_names_the_logs_that_do_not_go_on() -> None:
    def plan_of(**changes: object) -> RestorePlan:
        partition = replace(LostPartition(100, 1_000), **changes)  # type: ignore[arg-type]
        lost = LostTopic("t", 1, (partition,), topic_id=uuid.uuid4())
        return plan_restore([lost], {}, [1], PHANTOMS)

    assert logs_that_end(plan_of()) == {}
    too_many = plan_of(leader_epoch=1_001)
    lines = list(diff_lines(too_many))
    assert any("leader epoch from 0, replicas 1" in line for line in lines)
    [line] = [line for line in lines if line.startswith("! topic t: its new log does not")]
    assert "up to 1,000, and one partition was at 1,001" in line
    assert "beyond the chosen state" in logs_that_end(plan_of(archived_end=120))["t"]


def test_padding_names_the_logs_whose_epochs_nobody_can_raise() -> None:
    topics = [
        LostTopic(name, replicas, (LostPartition(100, 5, epoch),), topic_id=uuid.uuid4())
        for name, replicas, epoch in (("one", 1, 3), ("three", 3, 3), ("zero", 1, 0))
    ]
    notes = list(padding_notes(topics))
    [named] = [note for note in notes if "does not continue" in note]
    assert named.startswith("topic one: ")
    assert "leader epochs up to 3" in named


def test_a_group_within_local_history_needs_no_archive() -> None:
    places = {("t", 0): PlacedPartition(100, 100, 5, local_start_offset=60)}
    groups = [group("within", {("t", 0): 70}), group("below", {("t", 0): 50})]
    within, below = plan_groups(groups, places).differences
    assert (within.group, within.archived, within.repeated_max) == ("within", 0, 30)
    assert (below.group, below.new_offset, below.archived) == ("below", 50, 10)


def test_a_topic_without_archive_begins_where_its_log_ended() -> None:
    state = TopicState("t", uuid.uuid4(), 3, 1, (), (), (PartitionState(0, 10, 500, 8),))
    [partition] = archived_topic(state, {}).partitions
    assert (partition.end_offset, partition.leader_epoch) == (500, 8)


def test_a_partition_whose_end_nobody_knows_is_refused() -> None:
    state = TopicState("t", uuid.uuid4(), 3, 2, (), (), (PartitionState(0, 10, 500, 8),))
    assert "partition 1" in archived_topic(state, {}).why_not


@pytest.mark.parametrize(
    ("configs", "listener"),
    [
        ({}, ("PLAINTEXT", 0)),
        ({"inter.broker.listener.name": "INSIDE",
          "listener.security.protocol.map": "INSIDE:SASL_SSL,OUT:PLAINTEXT"},
         ("INSIDE", 3, "GSSAPI")),
        ({"security.inter.broker.protocol": "SASL_PLAINTEXT",
          "sasl.mechanism.inter.broker.protocol": "PLAIN",
          "listener.security.protocol.map": ""}, ("SASL_PLAINTEXT", 2, "PLAIN")),
        ({"security.inter.broker.protocol": "SSL",
          "listener.security.protocol.map": "SSL:SSL"}, ("SSL", 1)),
    ],
)  # fmt: skip
def test_the_listener_of_brokers_among_themselves(
    configs: dict[str, str | None], listener: tuple[str, int] | tuple[str, int, str]
) -> None:
    assert listener_of(configs) == InterBrokerListener(*listener)


def test_the_file_of_a_restore(tmp_path: Path) -> None:
    path = tmp_path / "job"
    assert read_restore_job(path) is None
    job = RestoreJob("c", 5, (PhantomIdentity(9_999, uuid.uuid4(), uuid.uuid4()),), port=77)
    write_restore_job(path, job.at(RestoreStep.PLACE))
    assert read_restore_job(path) == job.at(RestoreStep.PLACE)
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not the state of a restore"):
        read_restore_job(path)


def test_phantoms_may_be_there_from_their_registration_to_their_end() -> None:
    job = RestoreJob("c", 5, ())
    may = [step for step in RestoreStep if job.at(step).has_phantoms]
    assert may == list(RestoreStep)[1:9]


@pytest.mark.parametrize("count", [2, 8])
def test_each_partition_is_led_by_two_phantoms_in_each_run_the_same(count: int) -> None:
    """Two: of a file that an earlier version has written."""
    identities = tuple(PhantomIdentity(9_999 - n, uuid.uuid4(), uuid.uuid4()) for n in range(count))
    phantoms = Phantoms(identities, ActiveController(Config(), ()))
    pairs = [phantoms.of_partition(topic, n) for topic in ("a", "b") for n in range(40)]
    assert pairs == [phantoms.of_partition(topic, n) for topic in ("a", "b") for n in range(40)]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert Counter(first for first, _ in pairs) == dict.fromkeys(phantoms.ids, 80 // count)
