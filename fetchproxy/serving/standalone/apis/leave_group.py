"""LeaveGroup: members go, from v3 on several at once, static ones also by their instance id."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

_MANY_FROM = 3


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    if not request.may_join(asked["group_id"]):
        refused = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "members": ()}
        return request.respond(refused)
    if request.version < _MANY_FROM:
        errors = parts.groups.leave(asked["group_id"], [(asked["member_id"], None)])
        error = ErrorCode.UNKNOWN_MEMBER_ID if errors is None else errors[0]
        return request.respond({"error_code": error})
    members = [(m["member_id"], m["group_instance_id"]) for m in elements(asked["members"])]
    errors = parts.groups.leave(asked["group_id"], members)
    if errors is None:
        errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
    results = [
        {"member_id": member_id, "group_instance_id": instance, "error_code": error}
        for (member_id, instance), error in zip(members, errors, strict=True)
    ]
    return request.respond({"members": results})


LEAVE_GROUP = ServedApi(ApiKey.LEAVE_GROUP, 0, 5, answer)
