"""SyncGroup: the leader brings the assignment, everybody gets theirs (`groups`)."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.groups import Membership, SyncReply, SyncRequest
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    group_id, sync = _read(request)
    if request.may_join(group_id):
        reply = await parts.groups.sync(group_id, sync)
    else:
        reply = SyncReply(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return request.respond(
        {
            "error_code": reply.error_code,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol_name,
            "assignment": reply.assignment,
        },
    )


def _read(request: Request) -> tuple[str, SyncRequest]:
    """The group and what it is asked. The fields are not kept while it waits."""
    asked = request.read()
    return asked["group_id"], SyncRequest(
        Membership(asked["member_id"], asked["group_instance_id"], asked["generation_id"]),
        tuple((a["member_id"], a["assignment"]) for a in elements(asked["assignments"])),
        asked["protocol_type"],
        asked["protocol_name"],
    )


SYNC_GROUP = ServedApi(ApiKey.SYNC_GROUP, 0, 5, answer)
