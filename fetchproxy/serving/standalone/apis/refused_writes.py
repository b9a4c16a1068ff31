"""Requests that write, from clients that send them without asking: refused in their own form.

Only Produce is advertised (see `table`), so most clients send none of the others. Who does
reads POLICY_VIOLATION and, where there is room, why: better than a connection that closes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy.serving.standalone.handling import (
    ArchiveOnlyParts,
    Request,
    RequestRefused,
    ServedApi,
)
from protocol.apis import ApiKey, ErrorCode
from protocol.message_tables import (
    CREATE_TOPICS_REQUEST,
    CREATE_TOPICS_RESPONSE,
    INIT_PRODUCER_ID_RESPONSE,
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
)
from protocol.messages import elements
from protocol.primitives import Buffer

REASON = "this node serves an archive, which cannot be written to"


async def refuse_produce(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Raises RequestRefused where no acknowledgement is wanted: as a broker does on an error.

    There is no answer then, and silence would mean success.
    """
    asked = request.read(PRODUCE_REQUEST)
    if asked["acks"] == 0:
        raise RequestRefused("PRODUCE", request.version, f"{REASON}; acks=0 wants no answer")
    refusal = {"error_code": ErrorCode.POLICY_VIOLATION, "error_message": REASON}
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                refusal | {"index": partition["index"]}
                for partition in elements(topic["partitions"])
            ],
        }
        for topic in elements(asked["topics"])
    ]
    return request.respond(PRODUCE_RESPONSE, {"topics": topics})


async def refuse_init_producer_id(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    values = {"error_code": ErrorCode.POLICY_VIOLATION}
    return request.respond(INIT_PRODUCER_ID_RESPONSE, values)


async def refuse_create_topics(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    topics = [
        {"name": topic["name"], "error_code": ErrorCode.POLICY_VIOLATION, "error_message": REASON}
        for topic in elements(request.read(CREATE_TOPICS_REQUEST)["topics"])
    ]
    return request.respond(CREATE_TOPICS_RESPONSE, {"topics": topics})


PRODUCE = ServedApi(ApiKey.PRODUCE, 0, 12, refuse_produce)
REFUSED_WRITES = (
    ServedApi(ApiKey.INIT_PRODUCER_ID, 0, 5, refuse_init_producer_id),
    ServedApi(ApiKey.CREATE_TOPICS, 0, 7, refuse_create_topics),
)
