"""DescribeCluster: one node, this one."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi

_BROKERS = 1  # endpoint type; 2 would be controllers


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    endpoint_type = request.read()["endpoint_type"]
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
    return request.respond(values)


DESCRIBE_CLUSTER = ServedApi(ApiKey.DESCRIBE_CLUSTER, 0, 2, answer)
