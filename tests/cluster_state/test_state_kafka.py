"""The state of a real broker with ACLs: all of it, and by name what a user may not see."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from secured_clients import USERS, as_user

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_state.document import decode_state, encode_state
from fetchproxy.cluster_state.missing_parts import rights_in_words
from fetchproxy.cluster_state.reading import read_cluster_state
from fetchproxy.cluster_state.state import (
    PRODUCER_ID_UNKNOWN,
    AclState,
    ClusterState,
    GroupKind,
    OffsetOfGroup,
    QuotaState,
)
from fetchproxy.config.load import Setting, load_config
from lab.kafka import run_tool
from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

RECORDS, COMMITTED = 50, 20
CONFIGS_TOOL = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[SecuredKafka]]) -> Iterator[SecuredKafka]:
    broker = SecuredKafka(USERS, {"log.retention.ms": "86400000"})
    for kafka in serve_part("kafka", broker):
        _fill(kafka)
        yield kafka


@pytest.fixture(scope="module")
def topic(kafka: SecuredKafka) -> str:
    return "orders-of-state"


def _fill(kafka: SecuredKafka) -> None:
    topic = "orders-of-state"
    kafka.create_topic(topic, 2, config={"max.message.bytes": "500000"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"value %d" % number, partition=0)
    assert producer.flush(60) == 0
    for group, protocol in (("classic-group", "classic"), ("new-group", "consumer")):
        _commit(kafka.bootstrap, topic, group, protocol)
    where = ("--bootstrap-server", kafka.bootstrap, "--alter", "--add-config")
    run_tool(
        CONFIGS_TOOL, *where, "producer_byte_rate=1024", "--entity-type", "users",
        "--entity-name", "alice", "--entity-type", "clients", "--entity-default",
    )  # fmt: skip
    run_tool(
        CONFIGS_TOOL, *where, "log.cleaner.threads=2", "--entity-type", "brokers",
        "--entity-default",
    )  # fmt: skip
    kafka.allow("alice", topic, "READ")


def _commit(bootstrap: str, topic: str, group: str, protocol: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while consumer.poll(1.0) is None:
        assert time.monotonic() < deadline
    consumer.commit(offsets=[TopicPartition(topic, 0, COMMITTED, "so far")], asynchronous=False)
    consumer.close()


async def state_of(bootstrap: str, login: dict[str, object] | None = None) -> ClusterState:
    values: dict[str, Any] = {"cluster.bootstrap": bootstrap, **(login or {})}
    config = load_config(None, {}, [Setting(k, str(v), "test") for k, v in values.items()])
    async with Cluster(config.cluster) as cluster:
        return await read_cluster_state(cluster, lambda name: True, lambda: 1700000000000)


async def test_all_that_a_new_cluster_needs_is_read(kafka: SecuredKafka, topic: str) -> None:
    state = await state_of(kafka.bootstrap)
    assert state.missing == ()
    assert not {one.name for one in state.topics} & {"__consumer_offsets", "__transaction_state"}
    [orders] = [one for one in state.topics if one.name == topic]
    assert orders.replication_factor == 1
    assert orders.partition_count == 2
    assert orders.configs == (("max.message.bytes", "500000"),)
    assert ("retention.ms", "86400000") in orders.inherited
    assert not {"max.message.bytes", "cleanup.policy"} & dict(orders.inherited).keys()
    ends = [(one.partition, one.log_start_offset, one.log_end_offset) for one in orders.partitions]
    assert ends == [(0, 0, RECORDS), (1, 0, 0)]
    assert all(one.leader_epoch >= 0 for one in orders.partitions)
    groups = {group.group_id: group for group in state.groups}
    assert groups["classic-group"].kind is GroupKind.CLASSIC
    assert groups["new-group"].kind is GroupKind.CONSUMER
    for group in groups.values():
        [committed] = group.offsets
        metadata = "so far\0"  # confluent-kafka's own end of a text
        assert committed == OffsetOfGroup(topic, 0, COMMITTED, committed.leader_epoch, metadata)
    alice = AclState("TOPIC", topic, "LITERAL", "User:alice", "*", "READ", "ALLOW")
    assert alice in state.acls
    entity = (("client-id", None), ("user", "alice"))
    assert QuotaState(entity, "producer_byte_rate", 1024.0) in state.quotas
    assert state.scram_users == tuple(sorted(USERS))
    assert ("log.cleaner.threads", "2") in state.broker_configs
    assert state.producer_id_max > PRODUCER_ID_UNKNOWN
    assert decode_state(encode_state(state), "key") == state


async def test_each_right_that_a_user_lacks_is_named(kafka: SecuredKafka, topic: str) -> None:
    kafka.allow("archiver", topic, "DESCRIBE")
    login = as_user("archiver", "PLAIN")
    state = await state_of(kafka.sasl, login)
    assert [one.name for one in state.topics] == [topic]
    assert state.groups == state.acls == state.quotas == state.scram_users == ()
    assert {one.right for one in state.missing} == {
        "DESCRIBE on the cluster",
        "DESCRIBE_CONFIGS on the cluster",
        "DESCRIBE_CONFIGS on all topics",
        "READ on the archived topics",
    }
    assert re.search(
        r"DESCRIBE on the cluster \(for groups .*, ACLs, SCRAM users\)",
        rights_in_words(state.missing),
    )

    kafka.allow("archiver", "kafka-cluster", "DESCRIBE", "DESCRIBE_CONFIGS", resource="BROKER")
    kafka.allow("archiver", "*", "DESCRIBE", "DESCRIBE_CONFIGS", "READ")
    state = await state_of(kafka.sasl, login)
    assert {one.right for one in state.missing} == {"DESCRIBE on all groups"}
    [missing] = state.missing
    assert missing.what == "groups classic-group, new-group"

    kafka.allow("archiver", "*", "DESCRIBE", resource="GROUP")
    assert (await state_of(kafka.sasl, login)).missing == ()
