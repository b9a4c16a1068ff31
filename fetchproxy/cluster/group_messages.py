"""The requests of a member of a consumer group, through kafka-python's message classes. No I/O.

Source of flow and codes: Kafka's classic group protocol (KIP-62, KIP-345 for static members,
KIP-394 for member ids, KIP-429 for the cooperative protocol).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from fetchproxy.cluster.messages import Request, body_of, versioned
from fetchproxy.config.addresses import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable

COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82

_GROUP = 0  # FindCoordinator's key type
_MANY_COORDINATORS_VERSION = 4
PROTOCOL_TYPE = "consumer"
PROTOCOL = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. `member_id` is empty before the coordinator has given one."""

    group_id: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Joined:
    """`members`: member id -> subscription, for the group's leader who is to assign; else None."""

    member_id: str
    generation: int
    members: Mapping[str, bytes] | None


def find_coordinator_request(version: int, group_id: str) -> Request:
    many = version >= _MANY_COORDINATORS_VERSION
    asked: dict[str, Any] = {"coordinator_keys": [group_id]} if many else {"key": group_id}
    return versioned(FindCoordinatorRequest(key_type=_GROUP, **asked), version)


def decode_coordinator(payload: memoryview, version: int) -> HostPort:
    """Raises ClusterError; ClusterUnavailable where there is no coordinator yet."""
    answer = body_of(FindCoordinatorResponse, payload, version)
    found = answer.coordinators[0] if version >= _MANY_COORDINATORS_VERSION else answer
    if found.error_code in (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE):
        raise ClusterUnavailable("the group has no coordinator yet", found.error_code)
    _raise_for(found.error_code, "FindCoordinator")
    return HostPort(found.host, found.port)


def join_request(
    version: int,
    who: Identity,
    subscription: bytes,
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> Request:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription)
    return versioned(
        JoinGroupRequest(
            group_id=who.group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=who.member_id,
            group_instance_id=who.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
            reason=None,
        ),
        version,
    )


def decode_join(payload: memoryview, version: int) -> tuple[int, Joined]:
    """(error code, answer); with MEMBER_ID_REQUIRED the answer holds the member id alone."""
    answer = body_of(JoinGroupResponse, payload, version)
    leads = answer.error_code == 0 and answer.leader == answer.member_id
    members = None
    if leads and not answer.skip_assignment:
        members = {m.member_id: bytes(m.metadata or b"") for m in answer.members}
    return answer.error_code, Joined(answer.member_id, answer.generation_id, members)


def sync_request(version: int, who: Identity, assignments: Mapping[str, bytes]) -> Request:
    """`assignments`: member id -> its part; empty from all but the group's leader."""
    each = SyncGroupRequest.SyncGroupRequestAssignment
    return versioned(
        SyncGroupRequest(
            group_id=who.group_id,
            generation_id=who.generation,
            member_id=who.member_id,
            group_instance_id=who.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[each(member_id=m, assignment=a) for m, a in assignments.items()],
        ),
        version,
    )


def decode_sync(payload: memoryview, version: int) -> tuple[int, bytes]:
    answer = body_of(SyncGroupResponse, payload, version)
    return answer.error_code, bytes(answer.assignment or b"")


def heartbeat_request(version: int, who: Identity) -> Request:
    return versioned(
        HeartbeatRequest(
            group_id=who.group_id,
            generation_id=who.generation,
            member_id=who.member_id,
            group_instance_id=who.instance_id,
        ),
        version,
    )


def decode_heartbeat(payload: memoryview, version: int) -> int:
    return int(body_of(HeartbeatResponse, payload, version).error_code)


def leave_request(version: int, who: Identity) -> Request:
    leaving = LeaveGroupRequest.MemberIdentity(
        member_id=who.member_id, group_instance_id=who.instance_id, reason="the archiver ends"
    )
    return versioned(LeaveGroupRequest(group_id=who.group_id, members=[leaving]), version)


def decode_leave(payload: memoryview, version: int) -> int:
    return int(body_of(LeaveGroupResponse, payload, version).error_code)


def _raise_for(error_code: int, what: str) -> None:
    if error_code != 0:
        raise ClusterError(f"{what}: error {error_code}", error_code)
