"""Requests that write, from clients that send them without asking: refused in their own form.

Only Produce is advertised (see `table`), so most clients send none of the others. Who does
reads POLICY_VIOLATION and, where there is room, why: better than a connection that closes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import (
    ArchiveOnlyParts,
    Request,
    RequestRefused,
    ServedApi,
)

REASON = "this node serves an archive, which cannot be written to"


async def refuse_produce(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Raises RequestRefused where no acknowledgement is wanted: as a broker does on an error.

    There is no answer then, and silence would mean success.
    """
    asked = request.read()
    if asked["acks"] == 0:
        raise RequestRefused(request.head, f"{REASON}; acks=0 wants no answer")
    refusal = {
        "error_code": ErrorCode.POLICY_VIOLATION,
        "base_offset": -1,
        "error_message": REASON,
    }
    topics = [
        {
            "name": topic["name"],
            "partition_responses": [
                refusal | {"index": partition["index"]}
                for partition in elements(topic["partition_data"])
            ],
        }
        for topic in elements(asked["topic_data"])
    ]
    return request.respond({"responses": topics})


async def refuse_init_producer_id(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    return request.respond({"error_code": ErrorCode.POLICY_VIOLATION, "producer_epoch": -1})


async def refuse_create_topics(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    topics = [
        {"name": topic["name"], "error_code": ErrorCode.POLICY_VIOLATION, "error_message": REASON}
        for topic in elements(request.read()["topics"])
    ]
    return request.respond({"topics": topics})


PRODUCE = ServedApi(ApiKey.PRODUCE, 0, 12, refuse_produce)
REFUSED_WRITES = (
    ServedApi(ApiKey.INIT_PRODUCER_ID, 0, 5, refuse_init_producer_id),
    ServedApi(ApiKey.CREATE_TOPICS, 0, 7, refuse_create_topics),
)
