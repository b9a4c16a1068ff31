"""Reads the new cluster: which brokers are alive, where partitions are, where logs begin."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.leaders import LeaderEpochEnd
from fetchproxy.brokers.messages import raise_for
from fetchproxy.cluster_restore.plan import FoundPartition, FoundTopic, Place
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ConfigError
from fetchproxy.model import LogOffsets, TopicIdPartition

_BROKER_RESOURCE = 4  # of DescribeConfigs
_QUORUM_TOPIC = "__cluster_metadata"
_ALL_ADDRESSES = ("", "0.0.0.0", "::")
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_PROTOCOL_NAMES = {number: name for name, number in _SECURITY_PROTOCOLS.items()}


class InterBrokerListener(NamedTuple):
    """What brokers use among themselves. `security_protocol`: Kafka's number. `mechanism`: of SASL,
    if the protocol has it.
    """

    name: str
    security_protocol: int
    mechanism: str = ""

    @property
    def protocol(self) -> str:
        return _PROTOCOL_NAMES[self.security_protocol]

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


class FoundTopics(NamedTuple):
    """`brokers`: alive, by id."""

    cluster_id: str
    brokers: Mapping[int, HostPort]
    topics: Mapping[str, FoundTopic]


async def read_placements(cluster: Cluster, names: Iterable[str] | None = None) -> FoundTopics:
    """Topics with their replicas, without offsets. `names` None: all. Raises ClusterError."""

    async def ask(connection: BrokerConnection) -> Any:
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=None if names is None else [topic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return await connection.call(request, MetadataResponse)

    response = await cluster.ask_any(ask)
    brokers = {one.node_id: HostPort(one.host, one.port) for one in response.brokers}
    topics = {}
    for one in response.topics:
        if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        raise_for(one.error_code, f"Metadata of topic {one.name}")
        topics[one.name] = FoundTopic(one.name, one.topic_id, _partitions(one.partitions))
    return FoundTopics(response.cluster_id or "", brokers, topics)


def _partitions(described: Iterable[Any]) -> dict[int, FoundPartition]:
    return {
        one.partition_index: FoundPartition(
            one.leader_id,
            one.leader_epoch,
            tuple(one.replica_nodes),
            frozenset(one.isr_nodes),
        )
        for one in described
    }


async def with_offsets(
    cluster: Cluster,
    topics: Mapping[str, FoundTopic],
    phantoms: Collection[int],
    known: Collection[Place] = (),
) -> dict[str, FoundTopic]:
    """The topics with the ends of their logs, as real leaders tell them now; without those of the
    partitions that are `known`.
    """
    tps = {
        (topic.name, number): TopicIdPartition(topic.topic_id, topic.name, number)
        for topic in topics.values()
        for number, partition in topic.partitions.items()
        if partition.leader >= 0
        and partition.leader not in phantoms
        and (topic.name, number) not in known
    }
    await cluster.topics_by_name({topic for topic, _ in tps}, max_age_ms=0)
    now = asyncio.get_running_loop().time()
    offsets_by_partition = await cluster.fetch_log_offsets(list(tps.values()), not_older_than=now)
    result = dict(topics)
    for topic in topics.values():
        partitions = dict(topic.partitions)
        for number, partition in topic.partitions.items():
            tp = tps.get((topic.name, number))
            offsets = None if tp is None else offsets_by_partition[tp]
            if isinstance(offsets, LogOffsets):
                partitions[number] = replace(
                    partition,
                    log_start_offset=offsets.log_start_offset,
                    log_end_offset=offsets.high_watermark,
                )
        result[topic.name] = replace(topic, partitions=partitions)
    return result


async def with_epoch_ends(
    cluster: Cluster, topics: Mapping[str, FoundTopic], epochs: Mapping[Place, int]
) -> dict[str, FoundTopic]:
    """The topics with the ends of these leader epochs, as real leaders tell them now."""
    partitions = {name: dict(topics[name].partitions) for name, _ in epochs}

    def tell(tp: TopicIdPartition, response: LeaderEpochEnd | ClusterError) -> None:
        if response is not None and not isinstance(response, ClusterError):
            epoch, end = epochs[tp.topic, tp.partition], response[1]
            present = partitions[tp.topic][tp.partition]
            epoch_end = end.end_offset if end.epoch == epoch else -1
            partitions[tp.topic][tp.partition] = replace(present, epoch_end=epoch_end)

    tps = {
        TopicIdPartition(topics[name].topic_id, name, number): epoch
        for (name, number), epoch in epochs.items()
    }
    await cluster.ask_epoch_ends(tps, tell)
    return {
        name: replace(topic, partitions=partitions.get(name, topic.partitions))
        for name, topic in topics.items()
    }


async def controllers(cluster: Cluster) -> list[HostPort]:
    """The addresses of the controllers, from Kafka 3.9 on. Raises ConfigError, ClusterError."""

    async def ask(connection: BrokerConnection) -> Any:
        if connection.versions.get(ApiKey.DESCRIBE_QUORUM, (0, -1))[1] < 2:
            raise ConfigError(
                f"broker {connection.address} does not return the controllers' addresses; name "
                "them with --controllers HOST:PORT[,…]"
            )
        kind = DescribeQuorumRequest.TopicData
        partition = kind.PartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[kind(topic_name=_QUORUM_TOPIC, partitions=[partition])]
        )
        return await connection.call(request, DescribeQuorumResponse)

    response = await cluster.ask_any(ask)
    raise_for(response.error_code, "DescribeQuorum (it needs the right DESCRIBE on the cluster)")
    addresses = [HostPort(one.host, one.port) for node in response.nodes for one in node.listeners]
    if not addresses:
        raise ConfigError(
            "the brokers do not return the controllers' addresses; name them with --controllers"
        )
    return addresses


async def configs_of_broker(cluster: Cluster, broker_id: int) -> dict[str, str | None]:
    """Raises ClusterError."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE,
        resource_name=str(broker_id),
        configuration_keys=None,
    )
    request = DescribeConfigsRequest(resources=[resource])
    addresses = await cluster.brokers()
    async with cluster.exclusive(addresses[broker_id]) as connection:
        [result] = (await connection.call(request, DescribeConfigsResponse)).results
    raise_for(result.error_code, f"DescribeConfigs of broker {broker_id}")
    return {one.name: one.value for one in result.configs}


def listener_at(configs: Mapping[str, str | None], address: HostPort) -> InterBrokerListener | None:
    """The listener of a broker that advertises `address`. None: none does, as behind a load
    balancer. Raises ConfigError. Pure.
    """
    advertised = configs.get("advertised.listeners") or configs.get("listeners") or ""
    for one in advertised.split(","):
        name, _, place = one.strip().partition("://")
        host, _, port = place.rpartition(":")
        if port == str(address.port) and host.strip("[]") in (address.host, *_ALL_ADDRESSES):
            chosen = {"inter.broker.listener.name": name, "security.inter.broker.protocol": name}
            return listener_of({**configs, **chosen})
    return None


def listener_of(configs: Mapping[str, str | None]) -> InterBrokerListener:
    """The listener that a broker's configuration names. Raises ConfigError. Pure."""
    protocol = configs.get("security.inter.broker.protocol") or "PLAINTEXT"
    name = configs.get("inter.broker.listener.name") or protocol
    pairs = (configs.get("listener.security.protocol.map") or "").split(",")
    protocols = dict(pair.strip().rsplit(":", 1) for pair in pairs if ":" in pair)
    protocol = protocols.get(name, protocol)
    if protocol not in _SECURITY_PROTOCOLS:
        raise ConfigError(f"listener {name} of the brokers has the unknown protocol {protocol}")
    mechanism = configs.get("sasl.mechanism.inter.broker.protocol") or "GSSAPI"
    number = _SECURITY_PROTOCOLS[protocol]
    return InterBrokerListener(name, number, mechanism if protocol.startswith("SASL") else "")
