"""JoinGroup: checks that need no group, then the group's own rules (`groups`)."""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.groups import JoinReply, JoinRequest
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.limits import StandaloneLimits

_MEMBER_ID_REQUIRED_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9
_REBALANCE_TIMEOUT_MIN_S = 0.1  # so that a group that is told zero does not spin


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    group_id, join = _read(parts.limits, request)
    reply = join if isinstance(join, JoinReply) else await parts.groups.join(group_id, join)
    name = reply.protocol_name
    if name is None and request.version < _NULL_PROTOCOL_FROM:
        name = ""
    members = [
        {"member_id": member_id, "group_instance_id": instance, "metadata": metadata}
        for member_id, instance, metadata in reply.members
    ]
    return request.respond(
        {
            "error_code": reply.error_code,
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            "protocol_name": name,
            "leader": reply.leader,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id,
            "members": members,
        },
    )


def _read(limits: StandaloneLimits, request: Request) -> tuple[str, JoinRequest | JoinReply]:
    """The group and what it is asked, or the refusal. The fields are not kept while it waits."""
    asked = request.read()
    error = _error(limits, request, asked)
    if error is not ErrorCode.NONE:
        return asked["group_id"], JoinReply(error, asked["member_id"])
    return asked["group_id"], _join_request(request, asked)


def _error(limits: StandaloneLimits, request: Request, asked: Fields) -> ErrorCode:
    if not asked["group_id"]:
        return ErrorCode.INVALID_GROUP_ID
    if not request.may_join(asked["group_id"]):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    low, high = limits.group_session_timeout_min_ms, limits.group_session_timeout_max_ms
    if not low <= asked["session_timeout_ms"] <= high:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _join_request(request: Request, asked: Fields) -> JoinRequest:
    session_s = asked["session_timeout_ms"] / 1000
    # v0 has no rebalance timeout: the session's counts.
    rebalance_s = asked["rebalance_timeout_ms"] / 1000 if request.version else session_s
    return JoinRequest(
        member_id=asked["member_id"],
        group_instance_id=asked["group_instance_id"],
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_s=session_s,
        rebalance_timeout_s=max(rebalance_s, _REBALANCE_TIMEOUT_MIN_S),
        protocol_type=asked["protocol_type"],
        protocols=tuple((p["name"], p["metadata"]) for p in elements(asked["protocols"])),
        requires_member_id=request.version >= _MEMBER_ID_REQUIRED_FROM,
        can_skip_assignment=request.version >= _SKIP_ASSIGNMENT_FROM,
    )


JOIN_GROUP = ServedApi(ApiKey.JOIN_GROUP, 0, 9, answer)
