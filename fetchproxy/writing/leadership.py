"""Decides which partitions an archiver leads. Leaders copy and delete; followers stay current."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.group_member import AssignorCallbacks, GroupMember, GroupSettings
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability import metrics

Partition = tuple[str, int]  # topic, number
_SUBSCRIPTION_VERSION = 2  # has owned partitions (KIP-429) and their generation
_ASSIGNMENT_VERSION = 1
_MEMBER_COUNT = struct.Struct(">I")  # in an assignment's user data, for all members

log = structlog.get_logger(__name__)


# Leadership saves work; it is not a lock. Two leaders of one partition (one was paused, or has not
# heard of the change yet) do no harm: segments have ids of their own, and each copy begins with a
# fresh look at the archive.


@dataclass(frozen=True, slots=True)
class LeadershipState:
    """For status and console. `members`: the members of the group. None: only the group's leader
    knows it.
    """

    kind: str
    state: str
    members: int | None = None
    error: str | None = None


class Leadership:
    """This base class is for a sole archiver: it always leads all partitions. Subclasses call
    `on_change` on the loop when the response of `leads` may have changed.
    """

    on_change: Callable[[], None] = staticmethod(lambda: None)

    def leads(self, tp: TopicIdPartition) -> bool:
        """Whether it leads the partition now. Never blocks. Called before each step that writes."""
        return True

    async def run(self) -> None:
        """Runs until it is cancelled; then it gives the leadership back."""
        await asyncio.Event().wait()

    def state(self) -> LeadershipState:
        """Never blocks."""
        return LeadershipState("sole", "stable", members=1)

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        """Called with the archived topics at each discovery."""


@dataclass(frozen=True, slots=True)
class Member:
    """`owned` since `generation`. If two members claim a partition, the newer generation wins."""

    topics: frozenset[str]
    owned: frozenset[Partition] = frozenset()
    generation: int = -1


def assign(
    members: Mapping[str, Member], partition_counts: Mapping[str, int]
) -> dict[str, set[Partition]]:
    """Each member's partitions in this round. Pure.

    The parts are even if all members want the same topics. No partition moves without need.

    The cooperative protocol (KIP-429): a partition that is to move is first given back by its owner
    and assigned to the new one in the next round, so no two members are told to lead it. The
    assignor of kafka-python is not used: for some thousand partitions it holds the loop for
    seconds.
    """
    topics = {topic for member in members.values() for topic in member.topics}
    partitions = frozenset(
        (topic, number) for topic in topics for number in range(partition_counts.get(topic, 0))
    )
    owners = _owners(members, partitions)
    kept_parts = _kept_partitions(members, owners, len(partitions))
    takers = {topic: [m for m in sorted(members) if topic in members[m].topics] for topic in topics}
    loads = {member_id: len(part) for member_id, part in kept_parts.items()}
    for partition in sorted(partitions.difference(*kept_parts.values())):
        taker = min(takers[partition[0]], key=loads.__getitem__)
        loads[taker] += 1
        if owners.get(partition, taker) == taker:
            kept_parts[taker].add(partition)
    return kept_parts


def _owners(
    members: Mapping[str, Member], partitions: frozenset[Partition]
) -> dict[Partition, str]:
    owners: dict[Partition, str] = {}
    for member_id in sorted(members, key=lambda m: (members[m].generation, m)):
        member = members[member_id]
        for partition in member.owned & partitions:
            if partition[0] in member.topics:
                owners[partition] = member_id
    return owners


def _kept_partitions(
    members: Mapping[str, Member], owners: Mapping[Partition, str], count: int
) -> dict[str, set[Partition]]:
    """What each member owns, up to its even part. Members that own most may keep one more."""
    owned: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition in sorted(owners):
        owned[owners[partition]].append(partition)
    even, remainder = divmod(count, len(members)) if members else (0, 0)
    kept_by_member: dict[str, set[Partition]] = {}
    for rank, member_id in enumerate(sorted(owned, key=lambda m: (-len(owned[m]), m))):
        kept_by_member[member_id] = set(owned[member_id][: even + (rank < remainder)])
    return kept_by_member


class ConsumerGroupLeadership(Leadership, AssignorCallbacks):
    """A member of the archivers' Kafka consumer group leads the partitions that the group assigns
    to it.

    The members consume nothing. The brokers' group coordinator notices a member that is gone. The
    members speak the consumer protocol, so `kafka-consumer-groups.sh --describe` shows the leaders.
    """

    def __init__(self, cluster: Cluster, settings: GroupSettings, rng: random.Random) -> None:
        self._topics: dict[str, int] = {}  # -> number of partitions
        self._managed = asyncio.Event()
        self._owned: frozenset[Partition] = frozenset()
        self._members: int | None = None
        self._member = GroupMember(cluster, settings, self, rng)

    # --- Leadership ---
    def leads(self, tp: TopicIdPartition) -> bool:
        if (tp.topic, tp.partition) not in self._owned:
            return False
        return self._member.holds(asyncio.get_running_loop().time())

    async def run(self) -> None:
        await self._managed.wait()  # it joins only once there are topics
        try:
            await self._member.run()
        finally:
            self._take_partitions(frozenset())
            metrics.ARCHIVE_GROUP_STABLE.set(0)

    def state(self) -> LeadershipState:
        member = self._member
        return LeadershipState("group", member.state, self._members, member.error)

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        """If topics or partitions have changed, the member joins again so that they are shared out.
        The coordinator then starts a rebalance only if the member's topics have changed, or it is
        the group's leader.
        """
        before = self._topics
        self._topics = {topic.name: len(topic.leaders) for topic in topics}
        if not self._managed.is_set():
            self._managed.set()
        elif self._topics != before:
            self._member.join_again()

    # --- AssignorCallbacks ---
    def subscription(self, generation: int) -> bytes:
        topics = ConsumerProtocolSubscription.TopicPartition
        subscription = ConsumerProtocolSubscription(
            version=_SUBSCRIPTION_VERSION,
            topics=sorted(self._topics),
            user_data=b"",
            owned_partitions=[topics(topic=t, partitions=p) for t, p in _by_topic(self._owned)],
            generation_id=generation,
        )
        return bytes(subscription.encode())

    def assign(self, subscriptions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        members = {
            member_id: _member(subscription) for member_id, subscription in subscriptions.items()
        }
        count = _MEMBER_COUNT.pack(len(members))
        topics = ConsumerProtocolAssignment.TopicPartition
        return {
            member_id: bytes(
                ConsumerProtocolAssignment(
                    version=_ASSIGNMENT_VERSION,
                    assigned_partitions=[topics(topic=t, partitions=p) for t, p in _by_topic(part)],
                    user_data=count,
                ).encode()
            )
            for member_id, part in assign(members, self._topics).items()
        }

    def assigned(self, part: bytes) -> bool:
        assignment = _decoded(ConsumerProtocolAssignment, part) if part else None
        now_owned: frozenset[Partition] = frozenset()
        if assignment is not None:
            now_owned = frozenset(_partitions(assignment.assigned_partitions))
            user_data = assignment.user_data or b""
            known = len(user_data) == _MEMBER_COUNT.size
            self._members = _MEMBER_COUNT.unpack(user_data)[0] if known else None
        before = self._owned
        log.info(
            "archive_leadership_assigned",
            leads=len(now_owned),
            gained=len(now_owned - before),
            given_back=len(before - now_owned),
            members=self._members,
        )
        metrics.ARCHIVE_GROUP_REBALANCES.inc()
        metrics.ARCHIVE_GROUP_STABLE.set(1)
        self._take_partitions(now_owned)
        return bool(before - now_owned)

    def lost(self, reason: str) -> None:
        log.warning("archive_leadership_lost", reason=reason, led=len(self._owned))
        metrics.ARCHIVE_GROUP_LOST.labels(reason).inc()
        metrics.ARCHIVE_GROUP_STABLE.set(0)
        self._members = None
        self._take_partitions(frozenset())

    def _take_partitions(self, owned: frozenset[Partition]) -> None:
        before, self._owned = self._owned, owned
        if owned != before:
            self.on_change()


def _member(subscription: bytes) -> Member:
    decoded = _decoded(ConsumerProtocolSubscription, subscription)
    return Member(
        topics=frozenset(decoded.topics),
        owned=frozenset(_partitions(decoded.owned_partitions or ())),
        generation=decoded.generation_id if decoded.generation_id is not None else -1,
    )


# `Any` in the next two: kafka-python makes its message classes at import time.
def _decoded(kind: Any, message: bytes) -> Any:
    try:
        return kind.decode(message)
    except (struct.error, ValueError, IndexError, KeyError) as error:
        # Our group has a member of another kind or program.
        raise ClusterError(f"another member's {kind.__name__} is malformed: {error}") from None


def _partitions(topics: Iterable[Any]) -> Iterable[Partition]:
    return ((topic.topic, partition) for topic in topics for partition in topic.partitions)


def _by_topic(partitions: Iterable[Partition]) -> Iterable[tuple[str, list[int]]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        topics[topic].append(number)
    return topics.items()


class LogDirsLeadership(Leadership):
    """Leadership with the `log-dirs` source: an instance leads the partitions that its broker
    leads.

    `node_ids`: the ids of the brokers whose log directories this instance reads.

    With a sidecar beside every broker each partition has one leader, which moves with the broker's
    leadership, so no group is needed. The state is as old as the last discovery; the source asks
    again before it takes a segment.
    """

    def __init__(self, node_ids: Collection[int]) -> None:
        self._node_ids = frozenset(node_ids)
        self._led: frozenset[TopicIdPartition] = frozenset()

    def leads(self, tp: TopicIdPartition) -> bool:
        return tp in self._led

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        led = frozenset(
            TopicIdPartition(topic.topic_id, topic.name, partition)
            for topic in topics
            for partition, (leader, _) in topic.leaders.items()
            if leader in self._node_ids
        )
        if led != self._led:
            self._led = led
            self.on_change()

    def state(self) -> LeadershipState:
        return LeadershipState("log-dirs", "stable")
