"""A member of a consumer group that consumes nothing: joins, shares out, heartbeats, leaves."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import structlog
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

from fetchproxy.brokers import messages
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import Request, body_of, versioned
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable

# The requests of a member of a consumer group, through kafka-python's message classes. No I/O.
#
# Source of flow and codes: Kafka's classic group protocol (KIP-62, KIP-345 for static members,
# KIP-394 for member ids, KIP-429 for the cooperative protocol).

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


# Runs on the proxy's own connections and in the loop. What a part is, and how it is shared out
# among the members, is the `GroupDuties`' matter. Ownership is held by a lease: where the
# coordinator may have given our part to somebody else since (a pause of the process, brokers out
# of reach), `holds` says no before anybody tells us.

log = structlog.get_logger(__name__)

# As Kafka's own consumers: the coordinator answers a JoinGroup at the end of the rebalance timeout.
_JOIN_SLACK_MS = 5_000
_PAUSE_INITIAL_S = 0.1
_PAUSE_MAX_S = 5.0
_PAUSE_JITTER = 0.2
_LEAVE_MAX_S = 3.0
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's group.id, group.instance.id, session.timeout.ms and heartbeat.interval.ms.

    Within the rebalance timeout all members must have joined again; they do at their next
    heartbeat, so the session's will do for it.
    """

    group_id: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int


class GroupDuties(ABC):
    """What the members of this group are for. Called on the loop; none may block."""

    @abstractmethod
    def subscription(self, generation: int) -> bytes:
        """What this member wants, and what it owns since `generation`."""

    @abstractmethod
    def share_out(self, subscriptions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Each member's part. Asked of the group's leader only. Raises ClusterError."""

    @abstractmethod
    def assigned(self, part: bytes) -> bool:
        """Our part from now on. True: something was given back, so that all must join again."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """We own nothing any more: expired, fenced or error."""


class GroupMember:
    """`await member.run()` in a TaskGroup; cancelled, it leaves the group (a static one stays)."""

    def __init__(
        self, cluster: Cluster, settings: GroupSettings, duties: GroupDuties, rng: random.Random
    ) -> None:
        self.state = "joining"
        self.error: str | None = None
        self._cluster = cluster
        self._settings = settings
        self._duties = duties
        self._rng = rng
        self._who = Identity(settings.group_id, settings.instance_id)
        self._synced_id = ""  # the member id of the last whole generation
        self._coordinator: HostPort | None = None
        self._lease_until = _NEVER
        self._owns = False
        self._joined = False  # a whole generation; what is owned outlives the next rebalance
        self._wake = asyncio.Event()

    def holds(self, now: float) -> bool:
        """Whether what was assigned is still ours at loop time `now` (s). Never blocks."""
        return self._owns and now < self._lease_until

    def join_again(self) -> None:
        """The subscription has changed, or what there is to share out."""
        self._wake.set()

    async def run(self) -> None:
        """Ends only by cancellation; brokers that are away are tried again for ever."""
        failures = 0
        try:
            while True:
                try:
                    await self._take_part()
                except ClusterError as error:
                    recovered = self.state == "stable"
                    failures = 1 if recovered else failures + 1
                    self._note(error, first=failures == 1)
                    if error.error_code == FENCED_INSTANCE_ID:
                        # Whoever fenced us came later. To join again would fence it in turn.
                        await asyncio.Event().wait()
                await asyncio.sleep(self._pause_s(failures))
        finally:
            await self._leave()

    # --- one connection's life ---
    async def _take_part(self) -> NoReturn:
        """Raises ClusterError: the connection, the coordinator or the membership is gone."""
        if self._coordinator is None:
            self._coordinator = await self._find_coordinator()
        async with self._cluster.exclusive(self._coordinator) as connection:
            while True:
                if not self._joined or self._wake.is_set():
                    await self._join(connection)
                await self._heartbeat(connection)

    async def _find_coordinator(self) -> HostPort:
        async def ask(connection: BrokerConnection) -> HostPort:
            version = connection.version_of(messages.FIND_COORDINATOR)
            request = find_coordinator_request(version, self._settings.group_id)
            return await connection.request(request, decode_coordinator)

        return await self._cluster.ask_any(ask)

    async def _join(self, connection: BrokerConnection) -> None:
        """Until a generation is whole and nobody has to give anything back."""
        self.state, self._joined = "joining", False
        again = True
        while again:
            self._wake.clear()
            joined = await self._join_once(connection)
            if joined is None:
                continue
            self._who = replace(self._who, member_id=joined.member_id, generation=joined.generation)
            parts: Mapping[str, bytes] = {}
            if joined.members is not None:
                parts = self._duties.share_out(joined.members)
            sent_at = asyncio.get_running_loop().time()
            version = connection.version_of(messages.SYNC_GROUP)
            request = sync_request(version, self._who, parts)
            code, part = await connection.request(request, decode_sync)
            if code == REBALANCE_IN_PROGRESS:
                continue
            self._raise_for(code, "SyncGroup")
            self._renew_lease(sent_at)
            self._owns, self._synced_id = True, self._who.member_id
            again = self._duties.assigned(part) or self._wake.is_set()
        self._joined = True
        self._note_well()

    async def _join_once(self, connection: BrokerConnection) -> Joined | None:
        """None: ask again, now with the member id that was given."""
        settings, before = self._settings, self._lease_until
        request = join_request(
            connection.version_of(messages.JOIN_GROUP),
            self._who,
            self._duties.subscription(self._who.generation),
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.session_timeout_ms,
        )
        # A member that waits in the coordinator for the others is not expired, and needs no
        # heartbeats; nor does it lose anything before it is answered.
        now = asyncio.get_running_loop().time()
        self._lease_until = max(before, now + 2 * settings.session_timeout_ms / 1000)
        try:
            extra_ms = settings.session_timeout_ms + _JOIN_SLACK_MS
            [(code, joined)] = await connection.request_all(
                [request], decode_join, extra_ms=extra_ms
            )
        finally:
            self._lease_until = before
        if code == MEMBER_ID_REQUIRED:
            self._who = replace(self._who, member_id=joined.member_id)
            return None
        if code == UNKNOWN_MEMBER_ID and self._who.member_id:
            self._lose("expired", forget=True)
            return None
        self._raise_for(code, "JoinGroup")
        self._renew_lease(asyncio.get_running_loop().time())  # the session begins with the answer
        return joined

    async def _heartbeat(self, connection: BrokerConnection) -> None:
        """Until the group is to be joined again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                return
            sent_at = loop.time()
            if sent_at >= self._lease_until:
                self._lose("expired")
                raise ClusterUnavailable("paused for longer than the group's session timeout")
            request = heartbeat_request(connection.version_of(messages.HEARTBEAT), self._who)
            code = await connection.request(request, decode_heartbeat)
            if code == REBALANCE_IN_PROGRESS:
                self._wake.set()
                return
            self._raise_for(code, "Heartbeat")
            self._renew_lease(sent_at)
            self._note_well()

    # --- what errors mean ---
    def _raise_for(self, code: int, what: str) -> None:
        if code == 0:
            return
        text = f"{what} in group {self._settings.group_id!r}: error {code}"
        if code in (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE):
            self._coordinator = None
            raise ClusterUnavailable(text, code)
        if code == COORDINATOR_LOAD_IN_PROGRESS:
            raise ClusterUnavailable(text, code)
        if code == FENCED_INSTANCE_ID and self._who.member_id != self._synced_id:
            # The id is of a coordinator that was none any more: no other has heard of it, and they
            # know an earlier one of ours. A member without an id takes its place, as at a start.
            self._lose("expired", forget=True)
            raise ClusterUnavailable(text)
        if code == FENCED_INSTANCE_ID:
            self._lose("fenced")
            text += f": another archiver has the instance id {self._settings.instance_id!r}"
        elif code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
            self._lose("expired", forget=code == UNKNOWN_MEMBER_ID)
        else:
            self._lose("error")
        raise ClusterError(text, code)

    def _note_well(self) -> None:
        if self.error is not None:
            log.info("consumer_group_recovered", group=self._settings.group_id)
        self.state, self.error = "stable", None

    def _note(self, error: ClusterError, *, first: bool) -> None:
        now = asyncio.get_running_loop().time()
        if self._owns and now >= self._lease_until:
            self._lose("expired")
        if isinstance(error, ClusterUnavailable) and error.error_code is None:
            self._coordinator = None  # it may have moved while its broker is away
        self.state = "away"
        self.error = str(error)
        if first:
            log.warning("consumer_group_trouble", group=self._settings.group_id, error=str(error))

    def _lose(self, reason: str, *, forget: bool = False) -> None:
        """Out of the group: what was ours may be somebody else's by now.

        A member id that the coordinator may still know is kept, or the next rebalance would wait
        for a member that never comes.
        """
        owned, self._owns = self._owns, False
        self._joined = False
        member_id = "" if forget else self._who.member_id
        self._who = replace(self._who, member_id=member_id, generation=-1)
        self._lease_until = _NEVER
        if owned:
            self._duties.lost(reason)

    def _renew_lease(self, sent_at: float) -> None:
        """From when the request left: the coordinator counts from when it came."""
        self._lease_until = sent_at + self._settings.session_timeout_ms / 1000

    def _pause_s(self, failures: int) -> float:
        pause_s: float = min(_PAUSE_INITIAL_S * 2 ** min(max(failures - 1, 0), 10), _PAUSE_MAX_S)
        return pause_s * (1 + _PAUSE_JITTER * self._rng.random())

    # --- the end ---
    async def _leave(self) -> None:
        """So that the others need not wait for the session's end; best effort, and short."""
        who, self._owns = self._who, False
        if self._settings.instance_id is not None or not who.member_id:
            return
        try:
            async with asyncio.timeout(_LEAVE_MAX_S):
                address = self._coordinator or await self._find_coordinator()
                async with self._cluster.exclusive(address) as connection:
                    version = connection.version_of(messages.LEAVE_GROUP)
                    await connection.request(leave_request(version, who), decode_leave)
        except (ClusterError, TimeoutError) as error:
            log.info("consumer_group_not_left", group=who.group_id, error=str(error) or "timeout")
