"""Leadership of a partition is its assignment in a Kafka consumer group of the archivers.

The members subscribe to the archived topics and consume nothing; the brokers' group coordinator
notices who is gone. What the members tell each other is Kafka's own consumer protocol, so that
`kafka-consumer-groups.sh --describe` shows who leads what.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from fetchproxy.cluster.client import Cluster, TopicInfo
from fetchproxy.cluster.group_member import GroupDuties, GroupMember, GroupSettings
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import (
    ARCHIVE_GROUP_LOST,
    ARCHIVE_GROUP_REBALANCES,
    ARCHIVE_GROUP_STABLE,
)
from fetchproxy.remote_log.leadership.api import Leadership, LeadershipState
from fetchproxy.remote_log.leadership.partition_assignor import Member, Partition, assign

log = structlog.get_logger(__name__)

_SUBSCRIPTION_VERSION = 2  # owned partitions (KIP-429) and since which generation
_ASSIGNMENT_VERSION = 1
_MEMBER_COUNT = struct.Struct(">I")  # in an assignment's user data, so that all members know it


class ConsumerGroupLeadership(Leadership, GroupDuties):
    def __init__(self, cluster: Cluster, settings: GroupSettings, rng: random.Random) -> None:
        super().__init__()
        self._topics: dict[str, int] = {}  # -> number of partitions
        self._managed = asyncio.Event()
        self._owned: frozenset[Partition] = frozenset()
        self._members: int | None = None
        self._member = GroupMember(cluster, settings, self, rng)

    # --- Leadership ---
    def leads(self, tip: TopicIdPartition) -> bool:
        if (tip.topic, tip.partition) not in self._owned:
            return False
        return self._member.holds(asyncio.get_running_loop().time())

    async def run(self) -> None:
        await self._managed.wait()  # a group is joined for something
        try:
            await self._member.run()
        finally:
            self._own(frozenset())
            ARCHIVE_GROUP_STABLE.set(0)

    def state(self) -> LeadershipState:
        member = self._member
        return LeadershipState("group", member.state, self._members, member.error)

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        """New topics and partitions are to be shared out; who joins for them says so to all.

        Of a member that wants the same as before the coordinator makes no rebalance, except of the
        group's leader, which is the one that shares out.
        """
        before = self._topics
        self._topics = {topic.name: len(topic.leaders) for topic in topics}
        if not self._managed.is_set():
            self._managed.set()
        elif self._topics != before:
            self._member.join_again()

    # --- GroupDuties ---
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

    def share_out(self, subscriptions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        members = {member_id: _member(told) for member_id, told in subscriptions.items()}
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
            told = assignment.user_data or b""
            known = len(told) == _MEMBER_COUNT.size
            self._members = _MEMBER_COUNT.unpack(told)[0] if known else None
        before = self._owned
        log.info(
            "archive_leadership_assigned",
            leads=len(now_owned),
            gained=len(now_owned - before),
            given_back=len(before - now_owned),
            members=self._members,
        )
        ARCHIVE_GROUP_REBALANCES.inc()
        ARCHIVE_GROUP_STABLE.set(1)
        self._own(now_owned)
        return bool(before - now_owned)

    def lost(self, reason: str) -> None:
        log.warning("archive_leadership_lost", reason=reason, led=len(self._owned))
        ARCHIVE_GROUP_LOST.labels(reason).inc()
        ARCHIVE_GROUP_STABLE.set(0)
        self._members = None
        self._own(frozenset())

    def _own(self, owned: frozenset[Partition]) -> None:
        before, self._owned = self._owned, owned
        if owned != before:
            self._changed()


def _member(subscription: bytes) -> Member:
    told = _decoded(ConsumerProtocolSubscription, subscription)
    return Member(
        topics=frozenset(told.topics),
        owned=frozenset(_partitions(told.owned_partitions or ())),
        generation=told.generation_id if told.generation_id is not None else -1,
    )


# `Any` in the next two: kafka-python makes its message classes at import time.
def _decoded(kind: Any, message: bytes) -> Any:
    try:
        return kind.decode(message)
    except (struct.error, ValueError, IndexError, KeyError) as error:
        # Members of another kind, or of another program, in a group that is ours.
        raise ClusterError(f"another member's {kind.__name__} is malformed: {error}") from None


def _partitions(topics: Iterable[Any]) -> Iterable[Partition]:
    return ((topic.topic, partition) for topic in topics for partition in topic.partitions)


def _by_topic(partitions: Iterable[Partition]) -> Iterable[tuple[str, list[int]]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        topics[topic].append(number)
    return topics.items()
