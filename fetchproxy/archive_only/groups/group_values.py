"""What goes into a classic group and comes out of it, as values. No behaviour.

Times are seconds: points in time are loop times, as given by the caller. A `Ticket` stands for a
request that is answered later; the caller makes them, all different.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.error_codes import ErrorCode

Ticket = int
NO_GENERATION = -1


class GroupState(Enum):
    """The values are what DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`protocols` are (name, metadata) in the member's order of preference."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_member_id: bool  # v4+: a first join is answered with an id to join with (KIP-394)
    can_skip_assignment: bool  # v9+ (KIP-814)


@dataclass(frozen=True, slots=True)
class JoinReply:
    """`members` are (member id, instance id, metadata), for the leader alone."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """How a member names itself in every request after its join."""

    member_id: str
    group_instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """`assignments` come from the leader; protocol type and name from v5 on."""

    member: Membership
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    error_code: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


Reply = JoinReply | SyncReply


@dataclass(frozen=True, slots=True)
class GroupLimits:
    members_max: int
    initial_rebalance_delay_s: float


@dataclass(slots=True)
class Member:
    """`join_ticket`, `sync_ticket`: the request that waits for the others, if any."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: tuple[tuple[str, bytes], ...]
    session_ends_at: float
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @classmethod
    def joining(cls, member_id: str, now: float, request: JoinRequest) -> Member:
        return cls(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_s=request.session_timeout_s,
            rebalance_timeout_s=request.rebalance_timeout_s,
            protocols=request.protocols,
            session_ends_at=now + request.session_timeout_s,
        )

    @property
    def waits(self) -> bool:
        """A member that waits for us cannot be late itself."""
        return self.join_ticket is not None or self.sync_ticket is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol_name), b"")
