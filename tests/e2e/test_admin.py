"""Admin requests through the proxy have the broker's own effect and its own response."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest
from archived_topics import MakeReplayed
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from lab.kafka import KafkaServer, run_tool

pytestmark = pytest.mark.kafka

S = 30.0


@pytest.fixture(scope="module")
def through(proxy: ProxyProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": proxy.bootstrap})


@pytest.fixture(scope="module")
def direct(kafka_server: KafkaServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_server.bootstrap})


def configs(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, tuple[object, ...]]:
    resource = ConfigResource(kind, name)
    entries = admin.describe_configs([resource])[resource].result(S)
    return {
        entry.name: (entry.value, entry.is_read_only, entry.is_default, entry.is_sensitive)
        for entry in entries.values()
    }


def test_a_topics_life(through: AdminClient, direct: AdminClient) -> None:
    name = "admin-life"
    new = NewTopic(name, 2, 1, config={"retention.ms": "123456"})
    through.create_topics([new])[name].result(S)
    again = through.create_topics([new])[name]
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        again.result(S)
    wait_for(
        "two partitions",
        lambda: len(direct.list_topics(name, timeout=S).topics[name].partitions) == 2,
    )
    through.create_partitions([NewPartitions(name, 3)])[name].result(S)
    wait_for(
        "three partitions",
        lambda: len(direct.list_topics(name, timeout=S).topics[name].partitions) == 3,
    )
    resource = ConfigResource(ResourceType.TOPIC, name)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "654321", incremental_operation=AlterConfigOpType.SET)
    )
    through.incremental_alter_configs([resource])[resource].result(S)
    wait_for(
        "the new setting",
        lambda: configs(direct, ResourceType.TOPIC, name)["retention.ms"][0] == "654321",
    )
    assert configs(through, ResourceType.TOPIC, name) == configs(direct, ResourceType.TOPIC, name)
    through.delete_topics([name])[name].result(S)
    wait_for("its end", lambda: name not in direct.list_topics(timeout=S).topics)


def test_the_brokers_configuration(through: AdminClient, direct: AdminClient) -> None:
    """The answer is unchanged even with the broker's address: it is configuration, not a route."""
    configs_through, its = (configs(admin, ResourceType.BROKER, "1") for admin in (through, direct))
    assert configs_through == its
    assert "log.dirs" in configs_through


def test_the_clusters_description(
    through: AdminClient, direct: AdminClient, proxy: ProxyProcess, kafka_server: KafkaServer
) -> None:
    cluster_through, its = (
        admin.describe_cluster(request_timeout=S).result(S) for admin in (through, direct)
    )
    assert cluster_through.cluster_id == its.cluster_id
    assert [node.id for node in cluster_through.nodes] == [node.id for node in its.nodes] == [1]
    assert cluster_through.controller.id == its.controller.id
    assert its.nodes[0].port == kafka_server.port
    for node in (*cluster_through.nodes, cluster_through.controller):
        assert node.host == "127.0.0.1"
        assert node.port not in (kafka_server.port, proxy.port)


def test_delete_records_and_what_is_left(
    through: AdminClient, direct: AdminClient, kafka_server: KafkaServer
) -> None:
    data = TopicData(kafka_server.create_topic("admin-delete-records"))
    produce(kafka_server.bootstrap, data, 100)
    target = TopicPartition(data.topic, 0, 40)
    deleted = through.delete_records([target])[target].result(S)
    assert deleted.low_watermark == 40
    for admin in (through, direct):  # the topic has no archive
        partition_key = TopicPartition(data.topic, 0)
        earliest = admin.list_offsets({partition_key: OffsetSpec.earliest()})[partition_key].result(
            S
        )
        assert (earliest.offset, earliest.timestamp) == (40, -1)


def test_groups_and_topics_are_listed_alike(through: AdminClient, direct: AdminClient) -> None:
    def groups(admin: AdminClient) -> set[tuple[str, str]]:
        result = admin.list_consumer_groups(request_timeout=S).result(S)
        assert not result.errors
        return {(group.group_id, group.state.name) for group in result.valid}

    def topics(admin: AdminClient) -> dict[str, list[tuple[int, int, list[int]]]]:
        topics = admin.list_topics(timeout=S).topics
        return {
            name: [(p.id, p.leader, p.replicas) for p in topic.partitions.values()]
            for name, topic in topics.items()
        }

    assert groups(through) == groups(direct)
    assert topics(through) == topics(direct)


Tool = Callable[[str], list[str]]


def tool(main_class: str, *arguments: str) -> Tool:
    def run(bootstrap: str) -> list[str]:
        result = run_tool(
            f"org.apache.kafka.tools.{main_class}", "--bootstrap-server", bootstrap, *arguments
        )
        return result.stdout.splitlines()

    return run


def test_javas_topic_command(proxy: ProxyProcess, kafka_server: KafkaServer) -> None:
    name = "admin-java"
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "3")(proxy.bootstrap)
    describe = tool("TopicCommand", "--describe", "--topic", name)
    described_through, its = describe(proxy.bootstrap), describe(kafka_server.bootstrap)
    assert described_through == its
    assert len(described_through) == 4
    tool("TopicCommand", "--delete", "--topic", name)(proxy.bootstrap)


def test_javas_offset_tool_sees_both_tiers(
    replayed: MakeReplayed, proxy: ProxyProcess, kafka_server: KafkaServer
) -> None:
    topic = replayed("none").topic

    def offset(bootstrap: str, time: str) -> str:
        (line,) = tool("GetOffsetShell", "--topic", topic, "--time", time)(bootstrap)
        return line

    assert offset(proxy.bootstrap, "earliest") == f"{topic}:0:0"
    assert offset(kafka_server.bootstrap, "earliest") == f"{topic}:0:1103"
    assert offset(proxy.bootstrap, "latest") == f"{topic}:0:1200"
    assert offset(proxy.bootstrap, "-4") == f"{topic}:0:1103"
    assert offset(proxy.bootstrap, "-5") == f"{topic}:0:1199"
