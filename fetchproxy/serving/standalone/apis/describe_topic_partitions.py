"""DescribeTopicPartitions (KIP-966): the archive's topics page by page, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.model import ZERO_UUID
from fetchproxy.serving.standalone.apis.metadata import topic_fields
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

# Kafka's max.request.partition.size.limit.
PARTITIONS_MAX = 2000


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    by_name = parts.archive.catalogue.by_name
    named = {topic["name"] for topic in elements(asked["topics"])}
    shown = named or {name for name in by_name if request.may_read(name)}
    cursor = asked["cursor"]
    first, skipped = (cursor["topic_name"], cursor["partition_index"]) if cursor else ("", 0)
    left = min(max(asked["response_partition_limit"], 1), PARTITIONS_MAX)
    topics: list[dict[str, Any]] = []
    following = None
    for name in sorted(shown):
        if name < first:
            continue
        if left == 0:
            following = {"topic_name": name, "partition_index": 0}
            break
        topic = by_name.get(name)
        allowed = request.may_read(name)
        if topic is None or not allowed:
            error = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if allowed
                else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            topics.append(
                {"error_code": error, "name": name, "topic_id": ZERO_UUID, "partitions": ()}
            )
            continue
        start = max(skipped, 0) if name == first else 0
        end = min(start + left, topic.partition_count)
        fields = topic_fields(topic)
        fields["partitions"] = fields["partitions"][start:end]
        topics.append(fields)
        left -= max(end - start, 0)
        if end < topic.partition_count:
            following = {"topic_name": name, "partition_index": end}
            break
    return request.respond({"topics": topics, "next_cursor": following})


DESCRIBE_TOPIC_PARTITIONS = ServedApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, answer)
