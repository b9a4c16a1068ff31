"""Metadata: the archive's topics under their true ids, on the one node that there is.

Topics are never created. There is no leader, so there is no leader epoch (-1): clients then neither
fence nor validate positions, and nothing in an archive can be truncated under them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.model import ZERO_UUID
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.topics import ArchivedTopic, Catalogue

_BY_ID_FROM = 12


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()["topics"]
    catalogue = parts.archive.catalogue
    # v0 has no null array: there the empty one means all topics.
    if asked is None or (request.version == 0 and not asked):
        known = catalogue.by_name.values()
        topics = [topic_fields(topic) for topic in known if request.may_read(topic.name)]
    else:
        # Each once, as a broker does: a small request must not make a huge answer.
        wanted = {(topic["name"], topic["topic_id"]): topic for topic in asked}
        topics = [_asked_topic(catalogue, topic, request) for topic in wanted.values()]
    return request.respond(
        {
            "brokers": [{"node_id": NODE_ID, "host": request.host, "port": request.port}],
            "cluster_id": parts.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
        },
    )


def _asked_topic(catalogue: Catalogue, asked: Fields, request: Request) -> dict[str, Any]:
    name, topic_id = asked["name"], asked["topic_id"] or ZERO_UUID
    if request.version >= _BY_ID_FROM and name is None:
        topic = catalogue.by_id.get(topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = catalogue.by_name.get(name or "")
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = ZERO_UUID
        if not request.may_read(name or ""):  # as a broker does, also of one that is not there
            topic, missing = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is not None and not request.may_read(topic.name):
        topic, missing = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is not None:
        return topic_fields(topic)
    return {"error_code": missing, "name": name, "topic_id": topic_id, "partitions": ()}


def topic_fields(topic: ArchivedTopic) -> dict[str, Any]:
    """A topic as Metadata and DescribeTopicPartitions show it."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [partition_fields(number) for number in range(topic.partition_count)],
    }


def partition_fields(number: int) -> dict[str, Any]:
    return {
        "partition_index": number,
        "leader_id": NODE_ID,
        "replica_nodes": (NODE_ID,),
        "isr_nodes": (NODE_ID,),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }


METADATA = ServedApi(ApiKey.METADATA, 0, 13, answer)
