"""Where partitions begin at a chosen state; which rights are missing, in words. No parts."""

from __future__ import annotations

import uuid

import pytest
from restore_process import state_of, topic

from fetchproxy.cluster_restore.archived_topics import archived_topic
from fetchproxy.cluster_restore.needed_rights import (
    CLUSTER,
    NeededRight,
    missing_rights,
    needed_rights,
    rights_text,
    rights_to_begin,
)
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener, listener_at
from fetchproxy.cluster_restore.plan import (
    PlannedTopic,
    RestoreBy,
    RestorePlan,
    TopicAction,
    beyond_state,
    diff_lines,
)
from fetchproxy.cluster_restore.surroundings import brokers_notes
from fetchproxy.cluster_state.state import PartitionState, TopicState
from fetchproxy.config.values import HostPort

STATE = TopicState("t", uuid.uuid4(), 1, 1, (), (), (PartitionState(0, 10, 500, 8),))


@pytest.mark.parametrize(
    ("journal_end", "at_state", "end", "archived_end"),
    [
        (700, False, 700, None),
        (700, True, 500, 700),
        (500, True, 500, None),
        (400, True, 400, None),  # lost, as without --at
        (400, False, 400, None),
    ],
)
def test_no_partition_begins_above_its_end_in_a_chosen_state(
    journal_end: int, at_state: bool, end: int, archived_end: int | None
) -> None:
    [partition] = archived_topic(STATE, {}, {0: journal_end}, at_state=at_state).partitions
    assert (partition.end_offset, partition.archived_end) == (end, archived_end)
    assert partition.leader_epoch == 8


def test_partitions_that_a_chosen_state_has_not_are_named() -> None:
    later = archived_topic(STATE, {}, {0: 700, 1: 3}, at_state=True)
    plan = RestorePlan((PlannedTopic(later, TopicAction.CREATE, ((1,),)),))
    [first, second] = beyond_state(plan)
    assert first.startswith("t-0: the archive has offsets 500 to 699, which are later")
    assert second.startswith("t-1: the archive has it, but")
    assert f"! not in the new log: {first}" in list(diff_lines(plan))
    assert "choose a later state" in archived_topic(STATE, {}, {0: 700, 1: 3}).why_not


def test_a_partition_whose_end_the_chosen_state_has_not_is_refused() -> None:
    unknown = TopicState("t", uuid.uuid4(), 1, 1)
    assert "partition 0" in archived_topic(unknown, {}, {0: 700}, at_state=True).why_not
    assert archived_topic(unknown, {}, {0: 700}).why_not == ""


def test_a_missing_right_comes_with_the_command_that_adds_it() -> None:
    missing = [
        NeededRight("CLUSTER_ACTION", CLUSTER, "to lead", True),
        NeededRight("READ", ("topic", "a b"), "to set offsets"),
        NeededRight("READ", ("topic", "c"), "to set offsets"),
    ]
    assert list(rights_text(missing, "User:ann", "k:9092")) == [
        "CLUSTER_ACTION on the cluster is missing (to lead): kafka-acls.sh --bootstrap-server "
        "k:9092 --add --allow-principal User:ann --operation ClusterAction --cluster",
        "READ on topic a b, c is missing (to set offsets): kafka-acls.sh --bootstrap-server "
        "k:9092 --add --allow-principal User:ann --operation Read --topic 'a b' --topic c",
    ]


def test_create_on_the_cluster_counts_for_each_topic() -> None:
    create = NeededRight("CREATE", ("topic", "t"), "to make it", True)
    assert missing_rights([create], {("topic", "t"): ()}) == [create]
    assert missing_rights([create], {("topic", "t"): (), CLUSTER: ("CREATE",)}) == []
    assert missing_rights([create], {}) == []  # brokers that do not tell


@pytest.mark.parametrize("by", list(RestoreBy))
def test_a_plan_needs_rights_on_its_topics(by: RestoreBy) -> None:
    archived = topic("t", [5])
    plan = RestorePlan((PlannedTopic(archived, TopicAction.CREATE),))
    vital = [one for one in needed_rights(by, plan, state_of([archived])) if one.is_vital]
    assert [one for one in vital if one.resource == CLUSTER] == []
    operations = {one.operation for one in vital if one.resource == ("topic", "t")}
    more = {"WRITE", "DELETE"} if by is RestoreBy.PADDING else set()
    assert operations == {"CREATE", "DESCRIBE"} | more


def test_phantoms_need_describe_only_to_learn_the_controllers() -> None:
    operations = [{one.operation for one in rights_to_begin(tells)} for tells in (False, True)]
    assert operations[0] == {"CLUSTER_ACTION", "ALTER", "DESCRIBE_CONFIGS"}
    assert operations[1] == operations[0] | {"DESCRIBE"}


LISTENERS = {
    "advertised.listeners": "IN://b1:9091,OUT://example.org:9093",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SASL_SSL",
}


@pytest.mark.parametrize(
    ("configs", "address", "listener"),
    [
        (LISTENERS, HostPort("example.org", 9093), InterBrokerListener("OUT", 3, "GSSAPI")),
        (LISTENERS, HostPort("b1", 9091), InterBrokerListener("IN", 0)),
        (LISTENERS, HostPort("elsewhere", 9093), None),
        ({"listeners": "SSL://:9093"}, HostPort("b1", 9093), InterBrokerListener("SSL", 1)),
        ({"listeners": "SSL://[::1]:9"}, HostPort("::1", 9), InterBrokerListener("SSL", 1)),
    ],
)  # fmt: skip
def test_the_listener_at_which_clients_reach_a_broker(
    configs: dict[str, str | None], address: HostPort, listener: InterBrokerListener | None
) -> None:
    assert listener_at(configs, address) == listener


def test_what_brokers_tell_of_themselves_is_noted() -> None:
    [auto, balancer] = brokers_notes({"auto.create.topics.enable": "true"}, ["t"])
    assert "is true" in auto
    assert "stop it" in balancer
    [balancer] = brokers_notes({"auto.create.topics.enable": "false"}, ["__CruiseControlMetrics"])
    assert "stop Cruise Control" in balancer
    [unknown, _] = brokers_notes(None, [])
    assert "may not read" in unknown
