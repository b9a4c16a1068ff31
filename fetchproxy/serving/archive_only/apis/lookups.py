"""The APIs that describe the archive and its node: topics, settings, the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import MessageFields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.model import ZERO_UUID, TopicIdPartition
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.archive_only.topic_settings import (
    ConfigForm,
    ConfigSource,
    TopicSetting,
)
from fetchproxy.serving.archive_only.topics import ArchivedTopic, ArchiveWatch

_BY_ID_FROM = 12
# Topics described in a step: some with thousands of partitions, of which each takes 0.1 µs.
LOOKUP_TOPICS_AT_ONCE = 20
# Kafka's max.request.partition.size.limit.
_PARTITIONS_MAX = 2000
_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
# Clients cannot change them.
_STATIC = ConfigSource.OF_BROKERS_FILE
_TOPIC_SETTINGS = (
    TopicSetting("cleanup.policy", "delete", ConfigForm.LIST, _STATIC),
    TopicSetting("compression.type", "producer", ConfigForm.TEXT, _STATIC),
    TopicSetting("remote.storage.enable", "true", ConfigForm.BOOLEAN, _STATIC),
    TopicSetting("retention.bytes", "-1", ConfigForm.LONG, _STATIC),
    TopicSetting("retention.ms", "-1", ConfigForm.LONG, _STATIC),
)
_BROKER_SETTINGS = (
    TopicSetting("auto.create.topics.enable", "false", ConfigForm.BOOLEAN, _STATIC),
    TopicSetting("remote.log.storage.system.enable", "true", ConfigForm.BOOLEAN, _STATIC),
)
_BROKERS = 1  # endpoint type; 2: controllers


async def _metadata(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """The archive's topics under their true ids, on the only node.

    Topics are never created. Leader epochs are those of the cluster, if the archive has a state of
    it; else there are none (-1), and clients do not validate positions.
    """
    named = (await request.read())["topics"]
    catalogue = parts.archive.catalogue
    # v0 has no null array: there the empty one means all topics.
    if named is None or (request.version == 0 and not named):
        archived_topics = catalogue.by_name.values()
        topics = [
            topic_fields(parts.archive, topic)
            async for topic in cooperative(archived_topics, LOOKUP_TOPICS_AT_ONCE)
            if request.may_read(topic.name)
        ]
    else:
        # Each topic once, as from a broker: a small request must not make a huge response.
        # From v10 on it may name an id beside the name, which then means nothing.
        unique = {topic["name"] or topic["topic_id"]: topic for topic in named}
        topics = [
            _named_topic(parts.archive, topic, request)
            async for topic in cooperative(unique.values(), LOOKUP_TOPICS_AT_ONCE)
        ]
    return await request.respond(
        {
            "brokers": [{"node_id": NODE_ID, "host": request.host, "port": request.port}],
            "cluster_id": parts.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
        },
    )


def _named_topic(archive: ArchiveWatch, fields: MessageFields, request: Request) -> dict[str, Any]:
    catalogue = archive.catalogue
    name, topic_id = fields["name"], fields["topic_id"] or ZERO_UUID
    if request.version >= _BY_ID_FROM and name is None:
        topic = catalogue.by_id.get(topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = catalogue.by_name.get(name or "") if request.may_read(name or "") else None
        missing = request.missing(name or "")  # as from a broker, also for an absent topic
        topic_id = ZERO_UUID
    if topic is not None and not request.may_read(topic.name):
        topic, missing = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is not None:
        return topic_fields(archive, topic)
    return {"error_code": missing, "name": name, "topic_id": topic_id, "partitions": ()}


def topic_fields(archive: ArchiveWatch, topic: ArchivedTopic) -> dict[str, Any]:
    """A topic as Metadata and DescribeTopicPartitions show it."""
    numbers = range(topic.partition_count)
    partitions = [partition_fields(number) for number in numbers]
    if archive.kept_state is not None and archive.kept_state.knows(topic.topic_id):
        epochs = [
            archive.leader_epoch(TopicIdPartition(topic.topic_id, topic.name, number))
            for number in numbers
        ]
        partitions = [
            {**fields, "leader_epoch": epoch}
            for fields, epoch in zip(partitions, epochs, strict=True)
        ]
    return {"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}


@cache
def partition_fields(number: int) -> Mapping[str, Any]:
    """The same for every topic, so there are as many as the largest topic has partitions."""
    return {
        "partition_index": number,
        "leader_id": NODE_ID,
        "replica_nodes": (NODE_ID,),
        "isr_nodes": (NODE_ID,),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }


async def _describe_topic_partitions(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """The archive's topics page by page, by name."""
    request_fields = await request.read()
    by_name = parts.archive.catalogue.by_name
    named = {topic["name"] for topic in elements(request_fields["topics"])}
    names = named or {name for name in by_name if request.may_read(name)}
    cursor = request_fields["cursor"]
    first, skipped = (cursor["topic_name"], cursor["partition_index"]) if cursor else ("", 0)
    partitions_left = min(max(request_fields["response_partition_limit"], 1), _PARTITIONS_MAX)
    topics: list[dict[str, Any]] = []
    following = None
    async for name in cooperative(name for name in sorted(names) if name >= first):
        if partitions_left == 0:
            following = {"topic_name": name, "partition_index": 0}
            break
        topic = by_name.get(name)
        if topic is None or not request.may_read(name):
            error = request.missing(name)
            topics.append(
                {"error_code": error, "name": name, "topic_id": ZERO_UUID, "partitions": ()}
            )
            continue
        start = max(skipped, 0) if name == first else 0
        end = min(start + partitions_left, topic.partition_count)
        fields = topic_fields(parts.archive, topic)
        fields["partitions"] = fields["partitions"][start:end]
        topics.append(fields)
        partitions_left -= max(end - start, 0)
        if end < topic.partition_count:
            following = {"topic_name": name, "partition_index": end}
            break
    return await request.respond({"topics": topics, "next_cursor": following})


async def _describe_configs(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Of a topic: those that it had in the cluster, if the archive has a state of it. Else, and of
    the node: the few settings that are true of an archive, all read-only.

    `kafka-topics --describe` and the usual consoles ask for them.
    """
    resources = elements((await request.read())["resources"])
    unique = {
        (resource["resource_type"], resource["resource_name"]): resource for resource in resources
    }
    results = [
        _configs_of(parts, request, resource) async for resource in cooperative(unique.values())
    ]
    return await request.respond({"results": results})


def _configs_of(
    parts: ArchiveOnlyParts, request: Request, resource: MessageFields
) -> dict[str, Any]:
    kind, name = resource["resource_type"], resource["resource_name"]
    keys = resource["configuration_keys"]
    result = {"resource_type": kind, "resource_name": name, "configs": ()}
    of_cluster = False
    if kind == _TOPIC:
        if not request.may_read(name) or name not in parts.archive.catalogue.by_name:
            return result | {"error_code": request.missing(name)}
        settings, of_cluster = _settings_of_topic(parts, name)
    elif kind == _BROKER and name in ("", str(NODE_ID)):
        settings = _BROKER_SETTINGS
    else:
        message = "an archive has configurations of topics and of its one node only"
        return result | {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message}
    return result | {
        "configs": [
            {
                "name": key,
                "value": value,
                "read_only": not of_cluster,
                "config_source": source,
                "config_type": form,
            }
            for key, value, form, source in settings
            if keys is None or key in keys
        ]
    }


def _settings_of_topic(parts: ArchiveOnlyParts, name: str) -> tuple[Sequence[TopicSetting], bool]:
    """And whether they are those of the cluster."""
    state, topic = parts.archive.kept_state, parts.archive.catalogue.by_name[name]
    if state is None or not state.knows(topic.topic_id):
        return _TOPIC_SETTINGS, False
    return list(state.settings(topic.topic_id)), True


async def _describe_cluster(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Only this node."""
    endpoint_type = (await request.read())["endpoint_type"]
    node = {"broker_id": NODE_ID, "host": request.host, "port": request.port}
    values = {
        "endpoint_type": endpoint_type,
        "cluster_id": parts.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [node],
    }
    if endpoint_type != _BROKERS:
        values["error_code"] = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        values["error_message"] = "an archive has no controllers"
        values["brokers"] = []
    return await request.respond(values)


APIS = (
    ServedApi(ApiKey.METADATA, 0, 13, _metadata),
    ServedApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, _describe_topic_partitions),
    ServedApi(ApiKey.DESCRIBE_CONFIGS, 1, 4, _describe_configs),
    ServedApi(ApiKey.DESCRIBE_CLUSTER, 0, 2, _describe_cluster),
)
