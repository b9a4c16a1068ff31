"""The topics of a cluster with their settings, and the ends and epochs of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fetchproxy_protocol.apis import ErrorCode, error_text
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for
from fetchproxy.cluster_state.missing_parts import MissingParts, call_decoded, in_words
from fetchproxy.cluster_state.state import (
    PRODUCER_ID_UNKNOWN,
    NamedValues,
    PartitionState,
    TopicState,
)
from fetchproxy.errors import ClusterError
from fetchproxy.model import ZERO_UUID, LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import cooperative, pieces

# Brokers flag them, but not those of every vendor do.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
# Of one request each: what a thread decodes in a few ms.
TOPICS_PER_REQUEST = 20
PARTITIONS_PER_REQUEST = 500
_TOPIC_RESOURCE = 2  # of DescribeConfigs
_OF_TOPIC, _DEFAULT = 1, 5  # a config's source
_CONFIGS_RIGHT = "DESCRIBE_CONFIGS on all topics"
_ENDS_RIGHT = "DESCRIBE on all topics"
_PRODUCERS_RIGHT = "READ on the archived topics"
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class _Configs:
    of_topic: NamedValues = ()
    inherited: NamedValues = ()


async def read_topics(cluster: Cluster, missing: MissingParts) -> tuple[TopicState, ...]:
    """All topics that this user may see, without the brokers' internal ones, sorted. Raises
    ClusterError.
    """
    topics = [
        topic
        for topic in await cluster.topics(max_age_ms=0)
        if not topic.is_internal and topic.name not in INTERNAL_TOPICS
    ]
    replicas = await _replication_factors(cluster, topics)
    ends = await _ends(cluster, topics, missing)
    configs = await _configs(cluster, [topic.name for topic in topics], missing)
    return tuple(
        [
            TopicState(
                topic.name,
                topic.topic_id,
                replicas.get(topic.name, -1),
                max(topic.leaders, default=-1) + 1,
                configs.get(topic.name, _Configs()).of_topic,
                configs.get(topic.name, _Configs()).inherited,
                tuple(ends.get(topic.name, ())),
            )
            async for topic in cooperative(topics)
        ]
    )


async def _replication_factors(cluster: Cluster, topics: Sequence[TopicInfo]) -> dict[str, int]:
    """The largest of a topic's partitions."""
    of_topic = MetadataRequest.MetadataRequestTopic
    factors: dict[str, int] = {}
    for some in _of_so_many_partitions(topics):
        request = MetadataRequest(
            topics=[of_topic(name=topic.name, topic_id=ZERO_UUID) for topic in some],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

        async def ask(connection: BrokerConnection, request: Any = request) -> Any:
            return await call_decoded(connection, request, MetadataResponse)

        for topic in (await cluster.ask_any(ask)).topics:
            factors[topic.name] = max(
                (len(one.replica_nodes) for one in topic.partitions), default=-1
            )
    return factors


def _of_so_many_partitions(topics: Sequence[TopicInfo]) -> Iterator[list[TopicInfo]]:
    some, number = list[TopicInfo](), 0
    for topic in topics:
        some.append(topic)
        number += len(topic.leaders)
        if number >= PARTITIONS_PER_REQUEST:
            yield some
            some, number = [], 0
    if some:
        yield some


async def _ends(
    cluster: Cluster, topics: Sequence[TopicInfo], missing: MissingParts
) -> Mapping[str, list[PartitionState]]:
    tps = [
        TopicIdPartition(topic.topic_id, topic.name, number)
        for topic in topics
        for number in sorted(topic.leaders)
    ]
    now = asyncio.get_running_loop().time()
    offsets_by_partition = await cluster.fetch_log_offsets(tps, not_older_than=now)
    epochs = {topic.name: topic.leaders for topic in topics}
    ends: dict[str, list[PartitionState]] = {}
    failed: dict[str, list[TopicIdPartition]] = {}
    errors: dict[str, ClusterError] = {}
    async for tp in cooperative(tps):
        log_offsets = offsets_by_partition[tp]
        if isinstance(log_offsets, LogOffsets):
            start, end = log_offsets.log_start_offset, log_offsets.high_watermark
            epoch = epochs[tp.topic][tp.partition][1]
            state = PartitionState(tp.partition, min(start, end), end, epoch)
            ends.setdefault(tp.topic, []).append(state)
        elif log_offsets.error_code not in _GONE:
            failed.setdefault(tp.topic, []).append(tp)
            errors[tp.topic] = log_offsets
    async for topic, partitions in cooperative(failed.items()):
        what = f"the ends of {in_words(str(tp) for tp in partitions)}"
        denied = errors[topic].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        missing.add(what, str(errors[topic]), _ENDS_RIGHT if denied else "")
    return ends


async def _configs(
    cluster: Cluster, names: Sequence[str], missing: MissingParts
) -> Mapping[str, _Configs]:
    configs_by_topic: dict[str, _Configs] = {}
    refused: list[str] = []
    for some in pieces(names, TOPICS_PER_REQUEST):
        try:
            response = await cluster.ask_any(_ask_configs(some))
        except ClusterError as error:
            missing.note("the settings of topics", error, _CONFIGS_RIGHT)
            break
        for result in response.results:
            if result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                refused.append(result.resource_name)
            elif result.error_code not in _GONE:
                raise_for(result.error_code, f"DescribeConfigs of {result.resource_name}")
                configs_by_topic[result.resource_name] = _Configs(
                    _of_source(result.configs, lambda source: source == _OF_TOPIC),
                    _of_source(result.configs, lambda source: source not in (_OF_TOPIC, _DEFAULT)),
                )
    if refused:
        what = f"the settings of topics {in_words(refused)}"
        missing.add(what, "the brokers refuse them", _CONFIGS_RIGHT)
    return configs_by_topic


def _ask_configs(names: Sequence[str]) -> Callable[[BrokerConnection], Any]:
    of_topic = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            of_topic(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    return lambda connection: call_decoded(connection, request, DescribeConfigsResponse)


def _of_source(configs: Any, is_source: Callable[[int], bool]) -> NamedValues:
    return tuple(
        sorted(
            (config.name, config.value)
            for config in configs
            if is_source(config.config_source) and config.value is not None
        )
    )


async def read_producer_id_max(
    cluster: Cluster, tps: Collection[TopicIdPartition], missing: MissingParts
) -> int:
    """The highest id of a producer that the brokers still remember in one of `tps`."""

    async def ask(
        connection: BrokerConnection, topics: Mapping[TopicIdPartition, TopicInfo]
    ) -> Mapping[TopicIdPartition, int | ClusterError]:
        ids_or_errors: dict[TopicIdPartition, int | ClusterError] = {}
        for some in pieces(topics, PARTITIONS_PER_REQUEST):
            ids_or_errors.update(await _producer_ids(connection, some))
        return ids_or_errors

    outcomes = await cluster.ask_leaders(tps, ask)
    errors = {tp.topic: one for tp, one in outcomes.items() if isinstance(one, ClusterError)}
    if errors:
        error = next(iter(errors.values()))
        denied = error.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        what = f"producers' ids in {in_words(errors)}"
        missing.add(what, str(error), _PRODUCERS_RIGHT if denied else "")
    ids = [one for one in outcomes.values() if not isinstance(one, ClusterError)]
    return max(ids, default=PRODUCER_ID_UNKNOWN)


async def _producer_ids(
    connection: BrokerConnection, tps: Sequence[TopicIdPartition]
) -> Mapping[TopicIdPartition, int | ClusterError]:
    by_topic: dict[str, dict[int, TopicIdPartition]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, {})[tp.partition] = tp
    of_topic = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[
            of_topic(name=name, partition_indexes=list(some)) for name, some in by_topic.items()
        ]
    )
    response = await call_decoded(connection, request, DescribeProducersResponse)
    nothing = ClusterError("DescribeProducers was answered without the partition")
    ids_or_errors: dict[TopicIdPartition, int | ClusterError] = dict.fromkeys(tps, nothing)
    for topic in response.topics:
        for one in topic.partitions:
            what, code = f"DescribeProducers of {topic.name}", one.error_code
            ids = (producer.producer_id for producer in one.active_producers)
            place = by_topic.get(topic.name, {}).get(one.partition_index)
            if place is not None and code:
                ids_or_errors[place] = ClusterError(f"{what}: {error_text(code)}", code)
            elif place is not None:
                ids_or_errors[place] = max(ids, default=PRODUCER_ID_UNKNOWN)
    return ids_or_errors
