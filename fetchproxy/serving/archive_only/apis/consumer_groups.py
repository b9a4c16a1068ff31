"""The APIs of consumer groups, whose rules are in `groups`. A user who may not join a group learns
nothing about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.committed_offsets import OffsetKey
from fetchproxy.serving.archive_only.groups import (
    ClassicGroup,
    GroupState,
    JoinReply,
    JoinRequest,
    Membership,
    SyncReply,
    SyncRequest,
)
from fetchproxy.serving.archive_only.handling import (
    NODE_ID,
    READ_ONLY,
    ArchiveOnlyParts,
    Request,
    ServedApi,
)
from fetchproxy.serving.limits import ArchiveOnlyLimits

_GROUP, _TRANSACTION = 0, 1  # key types; 2: share groups
_MANY_GROUPS_FROM = 4
_MEMBER_ID_REQUIRED_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9
_REBALANCE_TIMEOUT_MIN_S = 0.1  # so that a group with zero does not spin
_MANY_MEMBERS_FROM = 3
_CLASSIC = "classic"
# Groups described in a step: a group has 1,000 members at most.
GROUPS_AT_ONCE = 2
_NOT_FOUND_FROM = 6  # before, an unknown group is Dead without an error


async def _find_coordinator(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """This node, for every group. There are no transactions and no share groups."""
    fields = await request.read()
    coordinator: dict[str, Any] = {
        "node_id": NODE_ID,
        "host": request.host,
        "port": request.port,
        "error_code": ErrorCode.NONE,
        # Kafka's older versions send the text NONE, and some clients print it.
        "error_message": "NONE" if request.version < _MANY_GROUPS_FROM else "",
    }
    if fields["key_type"] == _TRANSACTION:
        # A producer gives up; with other errors some look for the coordinator for minutes.
        coordinator = _no_coordinator(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, READ_ONLY)
    elif fields["key_type"] != _GROUP:
        words = "an archive coordinates consumer groups only"
        coordinator = _no_coordinator(ErrorCode.INVALID_REQUEST, words)
    refused = _no_coordinator(ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
    if request.version >= _MANY_GROUPS_FROM:
        keys = dict.fromkeys(elements(fields["coordinator_keys"]))
        every = [(coordinator if request.may_join(key) else refused) | {"key": key} for key in keys]
        coordinator = {"coordinators": every}
    elif not request.may_join(fields["key"]):
        coordinator = refused
    return await request.respond(coordinator)


def _no_coordinator(error: ErrorCode, message: str) -> dict[str, Any]:
    return {"node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}


async def _join_group(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Checks that need no group, then the group's own rules (`groups`)."""
    group_id, join = await _join_of(parts.limits, request)
    reply = join if isinstance(join, JoinReply) else await parts.groups.join(group_id, join)
    if reply.protocol_name is None and request.version < _NULL_PROTOCOL_FROM:
        reply = reply._replace(protocol_name="")
    return await request.respond(reply._asdict())


async def _join_of(
    limits: ArchiveOnlyLimits, request: Request
) -> tuple[str, JoinRequest | JoinReply]:
    """The group and the join request, or the refusal. Frees the fields before the wait."""
    fields = await request.read()
    group_id, session_ms = fields["group_id"], fields["session_timeout_ms"]
    low, high = limits.group_session_timeout_min_ms, limits.group_session_timeout_max_ms
    error = ErrorCode.NONE
    if not group_id:
        error = ErrorCode.INVALID_GROUP_ID
    elif not request.may_join(group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif not low <= session_ms <= high:
        error = ErrorCode.INVALID_SESSION_TIMEOUT
    if error is not ErrorCode.NONE:
        return group_id, JoinReply(error, fields["member_id"])
    request.names_group(group_id)
    # v0 has no rebalance timeout: the session timeout counts.
    rebalance_ms = fields["rebalance_timeout_ms"] if request.version else session_ms
    return group_id, JoinRequest(
        member_id=fields["member_id"],
        group_instance_id=fields["group_instance_id"],
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_s=session_ms / 1000,
        rebalance_timeout_s=max(rebalance_ms / 1000, _REBALANCE_TIMEOUT_MIN_S),
        protocol_type=fields["protocol_type"],
        protocols=tuple((p["name"], p["metadata"]) for p in elements(fields["protocols"])),
        requires_member_id=request.version >= _MEMBER_ID_REQUIRED_FROM,
        can_skip_assignment=request.version >= _SKIP_ASSIGNMENT_FROM,
    )


async def _sync_group(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """The leader brings the assignments, every member gets its own (`groups`)."""
    fields = await request.read()
    group_id = fields["group_id"]
    sync = SyncRequest(
        Membership(fields["member_id"], fields["group_instance_id"], fields["generation_id"]),
        tuple((a["member_id"], a["assignment"]) for a in elements(fields["assignments"])),
        fields["protocol_type"],
        fields["protocol_name"],
    )
    del fields  # not kept during the wait
    if request.may_join(group_id):
        reply = await parts.groups.sync(group_id, sync)
    else:
        reply = SyncReply(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return await request.respond(reply._asdict())


async def _heartbeat(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """A member shows that it lives, and learns of a rebalance under way (27)."""
    fields = await request.read()
    member = Membership(fields["member_id"], fields["group_instance_id"], fields["generation_id"])
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if request.may_join(fields["group_id"]):
        error = parts.groups.heartbeat(fields["group_id"], member)
    return await request.respond({"error_code": error})


async def _leave_group(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Members leave, from v3 on several at once; static ones may leave by their instance id."""
    fields = await request.read()
    if not request.may_join(fields["group_id"]):
        refused = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "members": ()}
        return await request.respond(refused)
    if request.version < _MANY_MEMBERS_FROM:
        errors = parts.groups.leave(fields["group_id"], [(fields["member_id"], None)])
        error = ErrorCode.UNKNOWN_MEMBER_ID if errors is None else errors[0]
        return await request.respond({"error_code": error})
    members = [(m["member_id"], m["group_instance_id"]) for m in elements(fields["members"])]
    errors = parts.groups.leave(fields["group_id"], members)
    if errors is None:
        errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
    results = [
        {"member_id": member_id, "group_instance_id": instance, "error_code": error}
        for (member_id, instance), error in zip(members, errors, strict=True)
    ]
    return await request.respond({"members": results})


async def _list_groups(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Groups with members, and groups with commits."""
    fields = await request.read()
    states = {state.lower() for state in elements(fields["states_filter"])}
    types = {kind.lower() for kind in elements(fields["types_filter"])}
    listed_groups = dict.fromkeys(parts.offsets.groups(), ("consumer", GroupState.EMPTY))
    for group in parts.groups.by_id.values():
        listed_groups[group.group_id] = (group.protocol_type or "", group.state)
    groups = [
        {
            "group_id": group_id,
            "protocol_type": protocol_type,
            "group_state": state.value,
            "group_type": _CLASSIC,
        }
        async for group_id, (protocol_type, state) in cooperative(listed_groups.items())
        if request.may_join(group_id)
        and (not states or state.value.lower() in states)
        and (not types or _CLASSIC in types)
    ]
    return await request.respond({"groups": groups})


async def _describe_groups(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """A group's members. A group with only commits is Empty, any other unknown group Dead."""
    group_ids = elements((await request.read())["groups"])
    groups = [
        _described_group(parts, request, group_id)
        async for group_id in cooperative(dict.fromkeys(group_ids), GROUPS_AT_ONCE)
    ]
    return await request.respond({"groups": groups})


def _described_group(parts: ArchiveOnlyParts, request: Request, group_id: str) -> dict[str, Any]:
    blank: dict[str, Any] = {
        "group_id": group_id,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }
    if not request.may_join(group_id):
        return blank | {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "group_state": ""}
    group = parts.groups.by_id.get(group_id)
    if group is not None:
        return {
            "group_id": group_id,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": group.protocol_name or "",
            "members": _members(group),
        }
    if parts.offsets.has_group(group_id):
        return blank | {"group_state": GroupState.EMPTY.value, "protocol_type": "consumer"}
    dead = blank | {"group_state": GroupState.DEAD.value}
    if request.version >= _NOT_FOUND_FROM:
        dead["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
        dead["error_message"] = f"Group {group_id} not found."
    return dead


def _members(group: ClassicGroup) -> list[dict[str, Any]]:
    """Metadata and assignments count only in a stable group."""
    stable = group.state is GroupState.STABLE
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.request.client_id,
            "client_host": f"/{member.request.client_host}",
            "member_metadata": member.metadata(group.protocol_name) if stable else b"",
            "member_assignment": member.assignment if stable else b"",
        }
        for member in group.members.values()
    ]


async def _delete_groups(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Forgets all commits of groups that have no members, with one write for all."""
    errors: dict[str, ErrorCode] = {}
    keys: list[OffsetKey] = []
    async for group_id in cooperative(
        dict.fromkeys(elements((await request.read())["groups_names"]))
    ):
        errors[group_id] = ErrorCode.NONE
        if not request.may_join(group_id):
            errors[group_id] = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif group_id in parts.groups.by_id:
            errors[group_id] = ErrorCode.NON_EMPTY_GROUP
        elif not parts.offsets.has_group(group_id):
            errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            keys += [key for key, _ in parts.offsets.of_group(group_id)]
    if keys:
        try:
            await parts.offsets.commit(dict.fromkeys(keys))
        except OSError:
            failed = ErrorCode.COORDINATOR_NOT_AVAILABLE
            errors |= {group_id: failed for group_id, error in errors.items() if not error}
    results = [{"group_id": group_id, "error_code": error} for group_id, error in errors.items()]
    return await request.respond({"results": results})


APIS = (
    ServedApi(ApiKey.FIND_COORDINATOR, 0, 6, _find_coordinator),
    ServedApi(ApiKey.JOIN_GROUP, 0, 9, _join_group),
    ServedApi(ApiKey.SYNC_GROUP, 0, 5, _sync_group),
    ServedApi(ApiKey.HEARTBEAT, 0, 4, _heartbeat),
    ServedApi(ApiKey.LEAVE_GROUP, 0, 5, _leave_group),
    ServedApi(ApiKey.LIST_GROUPS, 0, 5, _list_groups),
    ServedApi(ApiKey.DESCRIBE_GROUPS, 0, 6, _describe_groups),
    ServedApi(ApiKey.DELETE_GROUPS, 0, 2, _delete_groups),
)
