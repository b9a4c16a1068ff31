"""Heartbeat: a member says that it lives, and hears that a rebalance is under way (27)."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.groups import Membership
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    member = Membership(asked["member_id"], asked["group_instance_id"], asked["generation_id"])
    error = (
        parts.groups.heartbeat(asked["group_id"], member)
        if request.may_join(asked["group_id"])
        else ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    return request.respond({"error_code": error})


HEARTBEAT = ServedApi(ApiKey.HEARTBEAT, 0, 4, answer)
