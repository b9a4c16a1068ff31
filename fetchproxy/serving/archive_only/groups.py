"""The consumer groups of an archive without brokers: state machines, and their coordinator."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from sys import getsizeof
from typing import NamedTuple, TypeVar

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.observability.metrics import ARCHIVE_ONLY_GROUPS, LIMITS_REACHED
from fetchproxy.runtime.cooperative import checkpoint
from fetchproxy.serving.limits import ArchiveOnlyLimits

R = TypeVar("R")

# Times are seconds. Points in time are loop times from the caller.

Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), in order of preference
NO_GENERATION = -1
NewMemberId = Callable[[str], str]  # from a client id or an instance id
# Protocols of one member. Clients send one for each assignor, four at most.
PROTOCOLS_MAX = 100
# Overhead of each, without its names, measured on 64-bit Python 3.11 and rounded up.
GROUP_BYTES = 2_048
MEMBER_BYTES = 1_024
PROTOCOL_BYTES = 64
OFFSET_BYTES = 512


class GroupState(Enum):
    """The values are those that DescribeGroups and ListGroups show."""

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
    protocols: Protocols
    requires_member_id: bool  # v4+: a first join gets an id to join with (KIP-394)
    can_skip_assignment: bool  # v9+ (KIP-814)


class JoinReply(NamedTuple):
    """The response's fields. `members`: only for the leader."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: Sequence[Mapping[str, object]] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """A member's identity in every request after its join."""

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


class SyncReply(NamedTuple):
    """The response's fields."""

    error_code: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


# Sends the response to a request, at once or later. Called once.
RespondToJoin = Callable[[JoinReply], None]
RespondToSync = Callable[[SyncReply], None]


@dataclass(slots=True)
class _Member:
    """`respond_to_join`, `respond_to_sync`: set while a request waits for the other members."""

    member_id: str
    request: JoinRequest  # the first one, with the last one's timeouts and protocols
    session_ends_at: float
    assignment: bytes = b""
    respond_to_join: RespondToJoin | None = None
    respond_to_sync: RespondToSync | None = None
    _sized: tuple[JoinRequest, int] | None = None

    @property
    def request_bytes(self) -> int:
        """Counted once for each request: a group's size is asked for at each join."""
        if self._sized is None or self._sized[0] is not self.request:
            self._sized = self.request, join_bytes(self.request)
        return self._sized[1]

    @property
    def group_instance_id(self) -> str | None:
        return self.request.group_instance_id

    @property
    def waits(self) -> bool:
        """A member that waits for us cannot be late itself."""
        return self.respond_to_join is not None or self.respond_to_sync is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((data for name, data in self.request.protocols if name == protocol_name), b"")


# One group of the classic protocol as a state machine: requests and times in, responses out. Pure.
#
#     EMPTY ─join─► PREPARING_REBALANCE ─all joined─► COMPLETING_REBALANCE ─leader's sync─► STABLE
#
# Joins, leaves and silent members lead back to PREPARING_REBALANCE, and from there to EMPTY when no
# member is left. Rules: Kafka's GroupMetadataManager (ClassicGroup). The caller passes the time,
# and calls `advance` at `next_deadline`.


_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE


class ClassicGroup:
    def __init__(
        self, group_id: str, limits: ArchiveOnlyLimits, new_member_id: NewMemberId
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, _Member] = {}
        self.pending: dict[str, float] = {}  # assigned member ids -> valid until
        # How many members have each protocol, so that a join costs by its own protocols alone.
        self._members_with = Counter[str]()
        self._members_max = limits.group_members_max
        self._initial_delay_s = limits.group_initial_rebalance_delay_ms / 1000
        self._new_member_id = new_member_id
        self._static: dict[str, str] = {}  # instance id -> member id
        self._joins_from = self._joins_until = 0.0  # when a rebalance may end, and must end
        self._not_synced: set[str] = set()
        self._syncs_until = 0.0

    def next_deadline(self) -> float | None:
        """When `advance` must be called if nothing else happens before."""
        times = [m.session_ends_at for m in self.members.values() if not m.waits]
        times += self.pending.values()
        if self.state is _PREPARING:
            waits = self._joins_from if self._all_joined() else self._joins_until
            times.append(max(waits, self._joins_from))
        if self.state is _COMPLETING:
            times.append(self._syncs_until)
        return min(times, default=None)

    @property
    def unused(self) -> bool:
        """No member is in it or about to join. (Its commits are kept elsewhere.)"""
        return self.state is GroupState.EMPTY and not self.pending

    def join(self, now: float, request: JoinRequest, respond: RespondToJoin) -> None:
        """Answered at once, or when the others have joined."""
        error = self._join_error(request)
        if error is not ErrorCode.NONE:
            respond(JoinReply(error, request.member_id))
        elif not request.member_id:
            self._join_first(now, request, respond)
        elif self.pending.pop(request.member_id, None) is not None:
            self._add(now, request, respond, request.member_id)
        else:
            self._join_again(now, request, respond, self.members[request.member_id])

    def sync(self, now: float, request: SyncRequest, respond: RespondToSync) -> None:
        """Answered with the member's assignment once the leader has sent it."""
        error = self._member_error(request.member)
        if error is ErrorCode.NONE and self.state is _PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE and self._other_protocol(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not ErrorCode.NONE:
            respond(SyncReply(error))
            return
        member = self.members[request.member.member_id]
        self._note_life(now, member.member_id)
        if self.state is GroupState.STABLE:
            respond(self._sync_reply(member))
            return
        self._respond_to_sync(
            member, ErrorCode.REBALANCE_IN_PROGRESS
        )  # the member's earlier request
        member.respond_to_sync = respond
        self._not_synced.discard(member.member_id)
        if member.member_id == self.leader:
            assigned = dict(request.assignments)
            for other in self.members.values():
                other.assignment = assigned.get(other.member_id, b"")
            self.state = GroupState.STABLE
            self._not_synced.clear()
            for other in self.members.values():
                self._note_life(now, other.member_id)
                self._respond_to_sync(other, ErrorCode.NONE)

    def heartbeat(self, now: float, member: Membership) -> ErrorCode:
        error = self._member_error(member)
        if error is ErrorCode.NONE:
            self._note_life(now, member.member_id)
            if self.state is _PREPARING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, now: float, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """A static member may leave without its member id (an administrator removes it)."""
        if group_instance_id is not None:
            static_member = self._static.get(group_instance_id)
            if static_member is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id not in ("", static_member):
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = static_member
        if self.pending.pop(member_id, None) is not None:
            self._maybe_complete_join(now)
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(now, [self.members[member_id]])
        return ErrorCode.NONE

    def check_commit(self, now: float, member: Membership) -> ErrorCode:
        """Whether the member may commit offsets now; counts as a sign of life."""
        if member.generation < 0 and not member.member_id and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # a reader that assigns itself partitions
        error = self._member_error(member)
        if error is ErrorCode.NONE:
            self._note_life(now, member.member_id)
            if self.state is _COMPLETING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def advance(self, now: float) -> None:
        """Do what is due: end sessions, and joins and syncs that have waited long enough."""
        expired = [m for m in self.members.values() if not m.waits and m.session_ends_at <= now]
        for member_id in [m for m, until in self.pending.items() if until <= now]:
            del self.pending[member_id]
        self._remove(now, expired)
        if self.state is _COMPLETING and self._syncs_until <= now:
            self._remove(now, [self.members[member_id] for member_id in self._not_synced])
        if self.state is _PREPARING and max(self._joins_until, self._joins_from) <= now:
            self._complete_join(now)
        self._maybe_complete_join(now)

    def kill(self) -> None:
        """Deleted, or its owner closes: waiting members must look for the coordinator."""
        self.state = GroupState.DEAD
        for member in self.members.values():
            self._respond_to_sync(member, ErrorCode.NOT_COORDINATOR)
            self._drop_join(member, ErrorCode.NOT_COORDINATOR)
        self.members.clear()
        self._members_with.clear()
        self.pending.clear()
        self._static.clear()

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        member_id, instance = request.member_id, request.group_instance_id
        if not request.protocol_type or not 0 < len(request.protocols) <= PROTOCOLS_MAX:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if member_id and member_id not in self.pending:
            error = self._identity_error(member_id, instance)
            if error is not ErrorCode.NONE:
                return error
        if self.members and not self._has_protocol_for(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_known = (
            member_id in self.members or member_id in self.pending or instance in self._static
        )
        if not is_known and len(self.members) + len(self.pending) >= self._members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _has_protocol_for(self, request: JoinRequest) -> bool:
        member_id = request.member_id
        if not member_id and request.group_instance_id is not None:
            member_id = self._static.get(request.group_instance_id, "")
        replaced = self.members.get(member_id)
        others = len(self.members) - (replaced is not None)
        if others and request.protocol_type != self.protocol_type:
            return False
        replaced_protocols = set() if replaced is None else _names(replaced.request)
        return any(
            self._members_with[name] - (name in replaced_protocols) == others
            for name in _names(request)
        )

    def _count(self, request: JoinRequest) -> None:
        self._members_with.update(_names(request))

    def _discount(self, request: JoinRequest) -> None:
        for name in _names(request):
            self._members_with[name] -= 1
            if not self._members_with[name]:
                del self._members_with[name]

    def _join_first(self, now: float, request: JoinRequest, respond: RespondToJoin) -> None:
        instance = request.group_instance_id
        member_id = self._new_member_id(request.client_id if instance is None else instance)
        if instance is not None and instance in self._static:
            self._replace_static(now, request, respond, member_id)
        elif instance is None and request.requires_member_id:
            self.pending[member_id] = now + request.session_timeout_s
            respond(JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(now, request, respond, member_id)

    def _add(
        self, now: float, request: JoinRequest, respond: RespondToJoin, member_id: str
    ) -> None:
        member = _Member(member_id, request, now + request.session_timeout_s)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        self._count(request)
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member_id
        member.respond_to_join = respond
        if self.state is _PREPARING and self._joins_from > now:
            # A group's first rebalance: more members may follow soon.
            self._joins_from = min(now + self._initial_delay_s, self._joins_until)
        self._rebalance(now)

    def _join_again(
        self, now: float, request: JoinRequest, respond: RespondToJoin, member: _Member
    ) -> None:
        if member.request.protocols == request.protocols and (
            self.state is _COMPLETING  # it lost the response
            or (self.state is GroupState.STABLE and member.member_id != self.leader)
        ):
            respond(self._join_reply(member))
            return
        self._drop_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._discount(member.request)
        self._count(request)
        member.request = replace(
            member.request,
            protocols=request.protocols,
            session_timeout_s=request.session_timeout_s,
            rebalance_timeout_s=request.rebalance_timeout_s,
        )
        member.respond_to_join = respond
        self._rebalance(now)

    def _replace_static(
        self, now: float, request: JoinRequest, respond: RespondToJoin, member_id: str
    ) -> None:
        """A static member came back (KIP-345): it keeps its place, its former self is fenced."""
        instance = request.group_instance_id
        assert instance is not None
        old = self.members[self._static[instance]]
        self._respond_to_sync(old, ErrorCode.FENCED_INSTANCE_ID)
        self._drop_join(old, ErrorCode.FENCED_INSTANCE_ID)
        member = _Member(member_id, request, now + request.session_timeout_s, old.assignment)
        self._discount(old.request)
        self._count(request)
        self.members = {
            (member_id if m is old else key): (member if m is old else m)
            for key, m in self.members.items()
        }
        self._static[instance] = member_id
        former_leader = self.leader
        if self.leader == old.member_id:
            self.leader = member_id
        if self.state is not GroupState.STABLE or self._select_protocol() != self.protocol_name:
            member.respond_to_join = respond
            self._rebalance(now)
            return
        leads = self.leader == member_id and request.can_skip_assignment
        reply = self._join_reply(member)._replace(
            # An older client that read its own id here would assign again, and wait for syncs.
            leader=(self.leader if request.can_skip_assignment else former_leader) or "",
            members=self._member_rows() if leads else (),
            skip_assignment=leads,
        )
        respond(reply)

    def _drop_join(self, member: _Member, error: ErrorCode) -> None:
        self._respond_to_join(member, JoinReply(error, member.member_id))

    def _respond_to_join(self, member: _Member, reply: JoinReply) -> None:
        respond, member.respond_to_join = member.respond_to_join, None
        if respond is not None:
            respond(reply)

    def _rebalance(self, now: float) -> None:
        """Begin a rebalance unless one is under way; end it if all members have joined."""
        if self.state is not _PREPARING:
            first = self.state is GroupState.EMPTY
            if self.state is _COMPLETING:
                for member in self.members.values():
                    if member.waits:
                        self._note_life(now, member.member_id)  # it could not send a sign of life
                    self._respond_to_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                    member.assignment = b""
            self.state = _PREPARING
            longest = self._longest_rebalance_s()
            delay = self._initial_delay_s if first else 0.0
            self._joins_from = now + min(delay, longest)
            self._joins_until = now + longest
        self._maybe_complete_join(now)

    def _maybe_complete_join(self, now: float) -> None:
        if self.state is _PREPARING and self._joins_from <= now and self._all_joined():
            self._complete_join(now)

    def _all_joined(self) -> bool:
        return not self.pending and all(
            m.respond_to_join is not None for m in self.members.values()
        )

    def _complete_join(self, now: float) -> None:
        for member in list(self.members.values()):
            if member.respond_to_join is None and member.group_instance_id is None:
                del self.members[member.member_id]  # it did not come in time
                self._discount(member.request)
        joined = [m for m in self.members.values() if m.respond_to_join is not None]
        if self.members and not joined:
            # Only static members, and none came: they keep their places until their sessions end.
            self._joins_until = now + self._longest_rebalance_s()
            return
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol_name = self.leader = None
            return
        if self.leader not in self.members or self.members[self.leader].respond_to_join is None:
            self.leader = joined[0].member_id
        self.protocol_name = self._select_protocol()
        self.state = _COMPLETING
        self._not_synced = set(self.members)
        self._syncs_until = now + self._longest_rebalance_s()
        for member in joined:
            self._note_life(now, member.member_id)
            self._respond_to_join(member, self._join_reply(member))

    def _remove(self, now: float, members: Sequence[_Member]) -> None:
        """Members left or went silent; the others share their partitions."""
        for member in members:
            self._drop_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._respond_to_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
            del self.members[member.member_id]
            self._discount(member.request)
            self._not_synced.discard(member.member_id)
            if member.group_instance_id is not None:
                self._static.pop(member.group_instance_id, None)
        if members:
            self._rebalance(now)

    def _select_protocol(self) -> str | None:
        """Each member votes for its first protocol that all have; None without members."""
        count = len(self.members)
        common = {name for name, having in self._members_with.items() if having == count}
        votes = Counter(
            next(name for name, _ in member.request.protocols if name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0] if votes else None

    def _note_life(self, now: float, member_id: str) -> None:
        member = self.members[member_id]
        member.session_ends_at = now + member.request.session_timeout_s

    def _longest_rebalance_s(self) -> float:
        return max((m.request.rebalance_timeout_s for m in self.members.values()), default=0.0)

    def _join_reply(self, member: _Member) -> JoinReply:
        return JoinReply(
            member_id=member.member_id,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=self._member_rows() if member.member_id == self.leader else (),
        )

    def _member_rows(self) -> Sequence[Mapping[str, object]]:
        return [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "metadata": m.metadata(self.protocol_name),
            }
            for m in self.members.values()
        ]

    def _sync_reply(self, member: _Member) -> SyncReply:
        return SyncReply(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _respond_to_sync(self, member: _Member, error: ErrorCode) -> None:
        respond, member.respond_to_sync = member.respond_to_sync, None
        if respond is not None:
            respond(SyncReply(error) if error else self._sync_reply(member))

    def _identity_error(self, member_id: str, instance: str | None) -> ErrorCode:
        if instance is not None and self._static.get(instance, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members or (instance is not None and instance not in self._static):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _member_error(self, member: Membership) -> ErrorCode:
        error = self._identity_error(member.member_id, member.group_instance_id)
        if error is ErrorCode.NONE and member.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _other_protocol(self, request: SyncRequest) -> bool:
        kind, name = request.protocol_type, request.protocol_name
        return (kind is not None and kind != self.protocol_type) or (
            name is not None and name != self.protocol_name
        )


def _names(request: JoinRequest) -> set[str]:
    return {name for name, _ in request.protocols}


# All client data that stays is counted, including names: Kafka allows ids of 32 KiB.


class GroupMemory:
    """Memory of groups and their commits: `archive_only.groups_bytes_max`. Takers give it back."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.kept_bytes = 0

    def has_room(self, more_bytes: int) -> bool:
        return more_bytes <= 0 or self.kept_bytes + more_bytes <= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Negative: gives memory back."""
        self.kept_bytes += size_bytes


def group_bytes(group: ClassicGroup) -> int:
    names = [group.group_id, group.protocol_type or "", *group.pending]
    members = sum(member_bytes(member) for member in group.members.values())
    return GROUP_BYTES + texts_bytes(names) + members


def member_bytes(member: _Member) -> int:
    return member.request_bytes + getsizeof(member.assignment)


def join_bytes(request: JoinRequest) -> int:
    """Bytes of a joining member; its id is made from its instance id or client id."""
    instance = request.group_instance_id or ""
    names = [request.client_id, request.client_host, instance, instance or request.client_id]
    names.append(request.protocol_type)
    brought = sum(
        PROTOCOL_BYTES + getsizeof(name) + getsizeof(data) for name, data in request.protocols
    )
    return MEMBER_BYTES + texts_bytes(names) + brought


def texts_bytes(texts: Iterable[str]) -> int:
    return sum(getsizeof(text) for text in texts)


@dataclass(eq=False, repr=False)
class GroupCoordinator:
    """Passes each request to its group, and calls each group by its own timer.
    `_new_member_id(prefix)` makes an id that was never used before.
    """

    _limits: ArchiveOnlyLimits
    _memory: GroupMemory
    _new_member_id: NewMemberId
    by_id: dict[str, ClassicGroup] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)  # bytes, by group
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)

    def close(self) -> None:
        """Ends all timers; waiting members must look for a coordinator."""
        for group in list(self.by_id.values()):
            group.kill()
            self._settle(group)

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        """Returns when all members have joined, or the request's rebalance timeout is over."""
        group = self.by_id.get(group_id)
        if group is None:
            if request.member_id:
                return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self.by_id) >= self._limits.groups_max:
                LIMITS_REACHED.labels("groups_max").inc()
                return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
            group = ClassicGroup(group_id, self._limits, self._new_member_id)
        if self._is_full(self._more_bytes(group, request)):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        self.by_id[group_id] = group
        reply: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group.join(self._now(), request, partial(_give, reply))
        self._note_size(group)
        self._settle(group)
        join_reply = await reply
        await checkpoint(len(group.members))  # all members get their replies in the same moment
        return join_reply

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        """Returns when the leader has sent all assignments."""
        group = self.by_id.get(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        assignment_bytes = sum(len(data) for _, data in request.assignments)
        had = sum(len(member.assignment) for member in group.members.values())
        if self._is_full(assignment_bytes - had):
            return SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
        reply: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        group.sync(self._now(), request, partial(_give, reply))
        del request  # frees the rest of the request during the wait
        self._note_size(group)
        self._settle(group)
        sync_reply = await reply
        await checkpoint(len(group.members))
        return sync_reply

    def heartbeat(self, group_id: str, member: Membership) -> ErrorCode:
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.heartbeat(self._now(), member)
        self._settle(group)
        return error

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode] | None:
        """An error for each (member id, instance id); None: there is no such group."""
        group = self.by_id.get(group_id)
        if group is None:
            return None
        errors = [group.leave(self._now(), *member) for member in members]
        self._note_size(group)
        self._settle(group)
        return errors

    def check_commit(self, group_id: str, member: Membership) -> ErrorCode:
        group = self.by_id.get(group_id)
        if group is None:
            # Readers that assign themselves partitions belong to no generation.
            return ErrorCode.NONE if member.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        error = group.check_commit(self._now(), member)
        self._settle(group)
        return error

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _note_size(self, group: ClassicGroup) -> None:
        size = group_bytes(group)
        self._memory.take(size - self._sizes.get(group.group_id, 0))
        self._sizes[group.group_id] = size

    def _more_bytes(self, group: ClassicGroup, request: JoinRequest) -> int:
        """How much more the group holds after the join, at most."""
        more = join_bytes(request)
        if group.group_id not in self._sizes:
            more += GROUP_BYTES + texts_bytes([group.group_id])
        before = group.members.get(request.member_id)
        return more if before is None else more - member_bytes(before)

    def _is_full(self, more_bytes: int) -> bool:
        if self._memory.has_room(more_bytes):
            return False
        LIMITS_REACHED.labels("groups_bytes_max").inc()
        return True

    def _settle(self, group: ClassicGroup) -> None:
        """Set its timer, or forget the group if it is unused."""
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        if group.unused or group.state is GroupState.DEAD:
            self.by_id.pop(group.group_id, None)
            self._memory.take(-self._sizes.pop(group.group_id, 0))
        else:
            deadline = group.next_deadline()
            if deadline is not None:
                loop = asyncio.get_running_loop()
                self._timers[group.group_id] = loop.call_at(deadline, self._advance, group)
        ARCHIVE_ONLY_GROUPS.set(len(self.by_id))

    def _advance(self, group: ClassicGroup) -> None:
        # The loop may call a timer early by its clock's resolution.
        deadline = group.next_deadline()
        now = self._now()
        group.advance(now if deadline is None else max(now, deadline))
        self._note_size(group)
        self._settle(group)


def _give(reply: asyncio.Future[R], value: R) -> None:
    if not reply.done():  # else its client has gone
        reply.set_result(value)
