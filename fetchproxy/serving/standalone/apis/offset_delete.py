"""OffsetDelete: forgets commits, as `kafka-consumer-groups --delete-offsets` asks.

Kafka refuses it for topics that members still read. Here a group that has members is refused as a
whole: what they subscribe to is theirs, and not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.committed_offsets import OffsetKey
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    group = asked["group_id"]
    error = ErrorCode.NONE
    if not request.may_join(group):
        refused = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": ()}
        return request.respond(refused)
    if parts.groups.group(group) is not None:
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    elif not parts.offsets.has_group(group):
        return request.respond({"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": ()})
    keys = [
        OffsetKey(group, topic["name"], partition["partition_index"])
        for topic in elements(asked["topics"])
        for partition in elements(topic["partitions"])
    ]
    if error is ErrorCode.NONE:
        try:
            allowed = (key for key in keys if request.may_read(key.topic))
            await parts.offsets.commit(dict.fromkeys(allowed))
        except OSError:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    topics = [
        {
            "name": key.topic,
            "partitions": [
                {
                    "partition_index": key.partition,
                    "error_code": error
                    if request.may_read(key.topic)
                    else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                }
            ],
        }
        for key in keys
    ]
    return request.respond({"topics": topics})


OFFSET_DELETE = ServedApi(ApiKey.OFFSET_DELETE, 0, 0, answer)
