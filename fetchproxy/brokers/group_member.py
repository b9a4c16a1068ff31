"""A member of a consumer group that consumes no records: joins, assigns, heartbeats, leaves.

Source of flow and codes: Kafka's classic group protocol (KIP-62, KIP-345 for static members,
KIP-394 for member ids, KIP-429 for the cooperative protocol).

A lease limits ownership. If the coordinator may have given our part to another member by now (a
pause of the process, brokers out of reach), `holds` is False before any broker tells us.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog
from fetchproxy_protocol.apis import ErrorCode, error_text
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

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.runtime.retrying import Backoff

log = structlog.get_logger(__name__)

_GROUP = 0  # FindCoordinator's key type
_PROTOCOL_TYPE = "consumer"
_PROTOCOL = "cooperative-sticky"

# Added to the rebalance timeout, because JoinGroup is answered only when that ends. As in Kafka's
# own consumers.
_JOIN_SLACK_MS = 5_000
_PAUSES = Backoff(100, 5_000, 0.2)
_LEAVE_MAX_S = 3.0
_NEVER = float("-inf")
_NO_COORDINATOR_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's settings. The session timeout is also the rebalance timeout: members join again at
    their next heartbeat.
    """

    group_id: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int


class AssignorCallbacks(ABC):
    """Callbacks of the assignor: what the group's members divide among them. Called on the loop;
    no method may block.
    """

    @abstractmethod
    def subscription(self, generation: int) -> bytes:
        """What this member wants, and what it owns since `generation`."""

    @abstractmethod
    def assign(self, subscriptions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Each member's part. Only the group's leader calls this. Raises ClusterError."""

    @abstractmethod
    def assigned(self, part: bytes) -> bool:
        """Take over our new part. True: we gave something back, so all members must join again."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """We own nothing any more. `reason`: expired, fenced or error."""


@dataclass(eq=False, repr=False)
class GroupMember:
    """A member of a consumer group that consumes no records. `await member.run()` in a TaskGroup.
    If cancelled, it leaves (a static member stays).
    """

    _cluster: Cluster
    _settings: GroupSettings
    _assignor: AssignorCallbacks
    _rng: random.Random
    state: str = "joining"
    error: str | None = None
    _member_id: str = ""  # empty until the coordinator assigns one
    _generation: int = -1
    _synced_id: str = ""  # the member id of the last whole generation
    _coordinator: HostPort | None = None
    _lease_until: float = _NEVER
    _owns: bool = False
    _joined: bool = False  # to a whole generation; ownership outlives the next rebalance
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def holds(self, now: float) -> bool:
        """Whether our part is still ours at loop time `now` (s). Never blocks."""
        return self._owns and now < self._lease_until

    def join_again(self) -> None:
        """Called when the subscription or the work to share out has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Ends only by cancellation. Retries for ever while brokers are away."""
        failures = 0
        try:
            while True:
                try:
                    await self._take_part()
                except ClusterError as error:
                    recovered = self.state == "stable"
                    failures = 1 if recovered else failures + 1
                    self._note(error, first=failures == 1)
                    if error.error_code == ErrorCode.FENCED_INSTANCE_ID:
                        # A later member has our instance id. Joining again would fence that member.
                        await asyncio.Event().wait()
                pause_ms = _PAUSES.pause_ms(max(failures, 1), self._rng.random())
                await asyncio.sleep(pause_ms / 1000)
        finally:
            await self._leave()

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
        group_id = self._settings.group_id
        request = FindCoordinatorRequest(key_type=_GROUP, key=group_id, coordinator_keys=[group_id])

        async def ask(connection: BrokerConnection) -> HostPort:
            response = await connection.call(request, FindCoordinatorResponse)
            coordinator = response.coordinators[0] if response.coordinators else response
            if coordinator.error_code in _NO_COORDINATOR_YET:
                raise ClusterUnavailable("the group has no coordinator yet", coordinator.error_code)
            raise_for(coordinator.error_code, "FindCoordinator")
            return HostPort(coordinator.host, coordinator.port)

        return await self._cluster.ask_any(ask)

    async def _join(self, connection: BrokerConnection) -> None:
        """Join until a generation is whole and no member has to give anything back."""
        self.state, self._joined = "joining", False
        rejoins = True
        while rejoins:
            self._wake.clear()
            join_response = await self._join_once(connection)
            if join_response is None:
                continue
            self._member_id, self._generation = join_response.member_id, join_response.generation_id
            assignments: Mapping[str, bytes] = {}
            if (
                join_response.leader == join_response.member_id
                and not join_response.skip_assignment
            ):
                members = {m.member_id: bytes(m.metadata or b"") for m in join_response.members}
                assignments = self._assignor.assign(members)
            sent_at = asyncio.get_running_loop().time()
            each = SyncGroupRequest.SyncGroupRequestAssignment
            request = SyncGroupRequest(
                **self._as_member(),
                protocol_type=_PROTOCOL_TYPE,
                protocol_name=_PROTOCOL,
                assignments=[each(member_id=m, assignment=part) for m, part in assignments.items()],
            )
            sync_response = await connection.call(request, SyncGroupResponse)
            if sync_response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            self._raise_for(sync_response.error_code, "SyncGroup")
            self._renew_lease(sent_at)
            self._owns, self._synced_id = True, self._member_id
            part = bytes(sync_response.assignment or b"")
            rejoins = self._assignor.assigned(part) or self._wake.is_set()
        self._joined = True
        self._note_well()

    def _as_member(self) -> dict[str, Any]:
        return {
            "group_id": self._settings.group_id,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": self._settings.instance_id,
        }

    async def _join_once(self, connection: BrokerConnection) -> Any:
        """The response; None: ask again, now with the assigned member id."""
        settings, before = self._settings, self._lease_until
        subscription = self._assignor.subscription(self._generation)
        request = JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.session_timeout_ms,
            member_id=self._member_id,
            group_instance_id=settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=subscription)
            ],
            reason=None,
        )
        # The coordinator does not expire a member that waits there for the others. That member
        # needs no heartbeats and loses nothing before the response.
        now = asyncio.get_running_loop().time()
        self._lease_until = max(before, now + 2 * settings.session_timeout_ms / 1000)
        try:
            extra_ms = settings.session_timeout_ms + _JOIN_SLACK_MS
            join_response = await connection.call(request, JoinGroupResponse, extra_ms)
        finally:
            self._lease_until = before
        code = join_response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = join_response.member_id
            return None
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self._member_id:
            self._lose("expired", forget=True)
            return None
        self._raise_for(code, "JoinGroup")
        self._renew_lease(asyncio.get_running_loop().time())  # the session begins with the response
        return join_response

    async def _heartbeat(self, connection: BrokerConnection) -> None:
        """Send heartbeats until the group must be joined again."""
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
            request = HeartbeatRequest(**self._as_member())
            code = (await connection.call(request, HeartbeatResponse)).error_code
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._wake.set()
                return
            self._raise_for(code, "Heartbeat")
            self._renew_lease(sent_at)
            self._note_well()

    def _raise_for(self, code: int, operation: str) -> None:
        if code == 0:
            return
        text = f"{operation} in group {self._settings.group_id!r}: {error_text(code)}"
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinator = None
            raise ClusterUnavailable(text, code)
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise ClusterUnavailable(text, code)
        if code == ErrorCode.FENCED_INSTANCE_ID and self._member_id != self._synced_id:
            # The member id is from a broker that was no longer the coordinator. Others know only
            # our earlier id. A member without an id takes its place, as at a start.
            self._lose("expired", forget=True)
            raise ClusterUnavailable(text)
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._lose("fenced")
            text += f": another archiver has the instance id {self._settings.instance_id!r}"
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose("expired", forget=code == ErrorCode.UNKNOWN_MEMBER_ID)
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
            log.warning(
                "consumer_group_trouble",
                group=self._settings.group_id,
                error=str(error),
                hint="if this continues, check the brokers and this user's READ right on the "
                "group; a fenced archiver needs its own instance id",
            )

    def _lose(self, reason: str, *, forget: bool = False) -> None:
        """We are out of the group: another member may own our part by now.

        The member id is kept if the coordinator may still know it. Otherwise the next rebalance
        would wait for a member that never comes.
        """
        owned, self._owns = self._owns, False
        self._joined = False
        self._member_id = "" if forget else self._member_id
        self._generation = -1
        self._lease_until = _NEVER
        if owned:
            self._assignor.lost(reason)

    def _renew_lease(self, sent_at: float) -> None:
        """Counts from when the request left: the coordinator counts from its later arrival."""
        self._lease_until = sent_at + self._settings.session_timeout_ms / 1000

    async def _leave(self) -> None:
        """Spares the others the wait for the session timeout. Best effort, and short."""
        self._owns = False
        if self._settings.instance_id is not None or not self._member_id:
            return
        leaving = LeaveGroupRequest.MemberIdentity(
            member_id=self._member_id, group_instance_id=None, reason="the archiver ends"
        )
        group_id = self._settings.group_id
        try:
            async with asyncio.timeout(_LEAVE_MAX_S):
                address = self._coordinator or await self._find_coordinator()
                async with self._cluster.exclusive(address) as connection:
                    request = LeaveGroupRequest(group_id=group_id, members=[leaving])
                    await connection.call(request, LeaveGroupResponse)
        except (ClusterError, TimeoutError) as error:
            log.info("consumer_group_not_left", group=group_id, error=str(error) or "timeout")
