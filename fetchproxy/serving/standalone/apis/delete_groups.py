"""DeleteGroups: forgets all commits of groups that have no members."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    results = []
    for group_id in elements(request.read()["groups_names"]):
        error = (
            await _delete(parts, group_id)
            if request.may_join(group_id)
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
        results.append({"group_id": group_id, "error_code": error})
    return request.respond({"results": results})


async def _delete(parts: ArchiveOnlyParts, group_id: str) -> ErrorCode:
    if parts.groups.group(group_id) is not None:
        return ErrorCode.NON_EMPTY_GROUP
    keys = [key for key, _ in parts.offsets.of_group(group_id)]
    if not keys:
        return ErrorCode.GROUP_ID_NOT_FOUND
    try:
        await parts.offsets.commit(dict.fromkeys(keys))
    except OSError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


DELETE_GROUPS = ServedApi(ApiKey.DELETE_GROUPS, 0, 2, answer)
