"""A member of a consumer group against a coordinator that answers as a test says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kafka.protocol.consumer.group import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from scripted_broker import ScriptedBroker, encode, serving

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.group_member import AssignorCallbacks, GroupMember, GroupSettings
from fetchproxy.config.schema import ClusterConfig

FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 10, 11, 12, 13, 14
VERSIONS = {3: (0, 12), 18: (0, 0), FIND: (0, 3), JOIN: (0, 9), HEARTBEAT: (0, 4), 13: (0, 5)}
VERSIONS[SYNC] = (0, 5)
SESSION_MS = 20_000  # no pause of this process ends it


class Coordinator:
    """`errors[api_key]` are answered first, in turn; `silent` answers no heartbeat at all."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker(override=self.response)
        self.errors: dict[int, list[int]] = {}
        self.requests: Counter[int] = Counter()
        self.silent = False
        self.member_id = "m"  # that a JoinGroup is given

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        self.requests[api_key] += 1
        if api_key == HEARTBEAT and self.silent:
            return b""
        waiting = self.errors.get(api_key)
        error_code = waiting.pop(0) if waiting else 0
        message = self._message(api_key, error_code)
        return None if message is None else encode(message, version, correlation_id)

    def _message(self, api_key: int, error_code: int) -> Any:
        if api_key == 18:
            keys = [
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in VERSIONS.items()
            ]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        base = {"throttle_time_ms": 0, "error_code": error_code}
        if api_key == FIND:
            return FindCoordinatorResponse(
                error_message=None, node_id=1, host="127.0.0.1", port=self.broker.port, **base
            )
        if api_key == JOIN:
            member = JoinGroupResponse.JoinGroupResponseMember
            return JoinGroupResponse(
                generation_id=self.requests[JOIN],
                protocol_type="consumer",
                protocol_name="cooperative-sticky",
                leader=self.member_id,
                skip_assignment=False,
                member_id=self.member_id,
                members=[
                    member(member_id=self.member_id, group_instance_id=None, metadata=b"all of it")
                ],
                **base,
            )
        if api_key == SYNC:
            return SyncGroupResponse(
                protocol_type="consumer",
                protocol_name="cooperative-sticky",
                assignment=b"part",
                **base,
            )
        if api_key == HEARTBEAT:
            return HeartbeatResponse(**base)
        return LeaveGroupResponse(members=[], **base) if api_key == LEAVE else None


class Notes(AssignorCallbacks):
    def __init__(self) -> None:
        self.generations: list[int] = []
        self.parts: list[bytes] = []
        self.losses: list[str] = []
        self.gives_back = False

    def subscription(self, generation: int) -> bytes:
        self.generations.append(generation)
        return b"all of it"

    def assign(self, subscriptions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        ((member_id, assignment_bytes),) = subscriptions.items()
        assert assignment_bytes == b"all of it"
        return {member_id: b"part"}

    def assigned(self, part: bytes) -> bool:
        self.parts.append(part)
        gave_back, self.gives_back = self.gives_back, False
        return gave_back

    def lost(self, reason: str) -> None:
        self.losses.append(reason)


@asynccontextmanager
async def member_of(
    coordinator: Coordinator,
    notes: Notes,
    instance_id: str | None = None,
    session_ms: int = SESSION_MS,
) -> AsyncIterator[GroupMember]:
    async with serving(coordinator.broker) as address:
        config = ClusterConfig(bootstrap=address, request_max_ms=session_ms + 3_000)
        async with Cluster(config) as cluster, asyncio.TaskGroup() as tasks:
            settings = GroupSettings("g", instance_id, session_ms, 50)
            member = GroupMember(cluster, settings, notes, random.Random(1))
            running = tasks.create_task(member.run())
            yield member
            running.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for knows no events
            await asyncio.sleep(0.01)


def holds(member: GroupMember) -> bool:
    return member.holds(asyncio.get_running_loop().time())


async def test_joins_with_the_id_that_it_is_given_and_leaves() -> None:
    coordinator, notes = Coordinator(), Notes()
    coordinator.errors[JOIN] = [79]  # MEMBER_ID_REQUIRED
    async with member_of(coordinator, notes) as member:
        await until(lambda: coordinator.requests[HEARTBEAT] > 3)
        assert (member.state, member.error, notes.parts) == ("stable", None, [b"part"])
        assert coordinator.requests[JOIN] == 2
        assert holds(member)
    assert coordinator.requests[LEAVE] == 1
    assert not holds(member)


async def test_a_static_member_does_not_leave() -> None:
    coordinator = Coordinator()
    async with member_of(coordinator, Notes(), instance_id="me") as member:
        await until(lambda: holds(member))
    assert coordinator.requests[LEAVE] == 0


async def test_what_is_given_back_is_told_to_all_by_joining_again() -> None:
    coordinator, notes = Coordinator(), Notes()
    notes.gives_back = True
    async with member_of(coordinator, notes) as member:
        await until(lambda: member.state == "stable")
        assert notes.parts == [b"part", b"part"]
        assert notes.generations == [-1, 1]
        coordinator.errors[HEARTBEAT] = [27]  # REBALANCE_IN_PROGRESS
        await until(lambda: len(notes.parts) == 3)
        member.join_again()
        await until(lambda: len(notes.parts) == 4)
    assert notes.losses == []


async def test_a_member_that_the_coordinator_has_forgotten_owns_nothing_and_joins() -> None:
    coordinator, notes = Coordinator(), Notes()
    async with member_of(coordinator, notes) as member:
        await until(lambda: holds(member))
        coordinator.errors[HEARTBEAT] = [25]  # UNKNOWN_MEMBER_ID
        await until(lambda: notes.losses == ["expired"])
        await until(lambda: holds(member))
        assert notes.generations[-1] == -1
        coordinator.errors[SYNC] = [22]  # ILLEGAL_GENERATION
        coordinator.errors[HEARTBEAT] = [27]
        await until(lambda: notes.losses == ["expired", "expired"])
        await until(lambda: holds(member))


async def test_a_coordinator_that_moves_costs_nothing() -> None:
    coordinator, notes = Coordinator(), Notes()
    async with member_of(coordinator, notes) as member:
        await until(lambda: holds(member))
        finds_before = coordinator.requests[FIND]
        coordinator.errors[HEARTBEAT] = [16]  # NOT_COORDINATOR
        beats = coordinator.requests[HEARTBEAT]
        await until(lambda: coordinator.requests[FIND] > finds_before)
        assert holds(member)
        await until(lambda: coordinator.requests[HEARTBEAT] > beats + 3)
        assert holds(member)
        assert (member.state, member.error) == ("stable", None)
        assert coordinator.requests[JOIN] == 1
    assert notes.losses == []


async def test_a_silent_coordinator_ends_the_lease_before_anybody_says_so() -> None:
    coordinator, notes = Coordinator(), Notes()
    async with member_of(coordinator, notes, session_ms=2_000) as member:
        await until(lambda: holds(member))
        before = len(notes.losses)
        coordinator.silent = True
        await until(lambda: not holds(member))
        assert len(notes.losses) == before  # the request is still being waited for
        coordinator.silent = False
        await until(lambda: len(notes.losses) > before)
        assert set(notes.losses) == {"expired"}
        await until(lambda: holds(member))


async def test_who_may_not_join_says_why_and_goes_on_asking() -> None:
    coordinator, notes = Coordinator(), Notes()
    coordinator.errors[JOIN] = [30] * 3  # GROUP_AUTHORIZATION_FAILED
    async with member_of(coordinator, notes) as member:
        await until(lambda: member.error is not None)
        assert "JoinGroup in group 'g': error 30" in str(member.error)
        assert not holds(member)
        await until(lambda: holds(member))
        assert member.error is None


async def test_an_id_that_no_generation_was_whole_with_is_given_up_when_it_is_fenced() -> None:
    """A coordinator that was none any more gave it: the next one knows an earlier id of ours."""
    coordinator, notes = Coordinator(), Notes()
    async with member_of(coordinator, notes, instance_id="me") as member:
        await until(lambda: holds(member))
        coordinator.member_id = "of the old coordinator"
        coordinator.errors[SYNC] = [16]  # NOT_COORDINATOR
        coordinator.errors[HEARTBEAT] = [25]  # UNKNOWN_MEMBER_ID
        await until(lambda: coordinator.requests[SYNC] == 2)
        coordinator.member_id = "of the new one"
        coordinator.errors[JOIN] = [82]  # FENCED_INSTANCE_ID
        await until(lambda: holds(member))
        assert notes.losses == ["expired"]
        assert coordinator.requests[JOIN] == 4
        coordinator.errors[HEARTBEAT] = [82]  # of an id that is known: another one came later
        await until(lambda: notes.losses == ["expired", "fenced"])


async def test_who_was_fenced_stays_out() -> None:
    coordinator, notes = Coordinator(), Notes()
    async with member_of(coordinator, notes, instance_id="me") as member:
        await until(lambda: holds(member))
        coordinator.errors[HEARTBEAT] = [82]  # FENCED_INSTANCE_ID
        await until(lambda: notes.losses == ["fenced"])
        joins = coordinator.requests[JOIN]
        await asyncio.sleep(0.5)
        assert coordinator.requests[JOIN] == joins
        assert "another archiver has the instance id 'me'" in str(member.error)
        assert not holds(member)
