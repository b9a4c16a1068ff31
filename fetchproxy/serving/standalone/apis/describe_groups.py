"""DescribeGroups: who is in a group. One that only has commits is Empty, any other Dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.groups import ClassicGroup, GroupState
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

_NOT_FOUND_FROM = 6  # before, an unknown group is shown as Dead and without error


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = elements(request.read()["groups"])
    groups = [_describe(parts, request, group_id) for group_id in dict.fromkeys(asked)]
    return request.respond({"groups": groups})


def _describe(parts: ArchiveOnlyParts, request: Request, group_id: str) -> dict[str, Any]:
    if not request.may_join(group_id):
        return {
            "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED,
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    group = parts.groups.group(group_id)
    if group is not None:
        return {
            "group_id": group_id,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": group.protocol_name or "",
            "members": _members(group),
        }
    known = parts.offsets.has_group(group_id)
    described = {
        "group_id": group_id,
        "group_state": (GroupState.EMPTY if known else GroupState.DEAD).value,
        "protocol_type": "consumer" if known else "",
        "protocol_data": "",
        "members": (),
    }
    if not known and request.version >= _NOT_FOUND_FROM:
        described["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
        described["error_message"] = f"Group {group_id} not found."
    return described


def _members(group: ClassicGroup) -> list[dict[str, Any]]:
    """Metadata and assignments count only while they are settled."""
    stable = group.state is GroupState.STABLE
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": f"/{member.client_host}",
            "member_metadata": member.metadata(group.protocol_name) if stable else b"",
            "member_assignment": member.assignment if stable else b"",
        }
        for member in group.members.values()
    ]


DESCRIBE_GROUPS = ServedApi(ApiKey.DESCRIBE_GROUPS, 0, 6, answer)
