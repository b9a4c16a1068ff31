"""FindCoordinator: this node, for every group. There are no transactions and no share groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi

_GROUP = 0  # key type; 1: transactions, 2: share groups
_MANY_FROM = 4


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    found: dict[str, Any] = {
        "node_id": NODE_ID,
        "host": request.host,
        "port": request.port,
        "error_code": ErrorCode.NONE,
        # Kafka's older versions say NONE in words, and some clients print it.
        "error_message": "NONE" if request.version < _MANY_FROM else "",
    }
    if asked["key_type"] != _GROUP:
        found = {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "an archive coordinates consumer groups only",
        }
    refused = {
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "error_message": "",
    }
    if request.version >= _MANY_FROM:
        keys = dict.fromkeys(elements(asked["coordinator_keys"]))
        every = [(found if request.may_join(key) else refused) | {"key": key} for key in keys]
        found = {"coordinators": every}
    elif not request.may_join(asked["key"]):
        found = refused
    return request.respond(found)


FIND_COORDINATOR = ServedApi(ApiKey.FIND_COORDINATOR, 0, 6, answer)
