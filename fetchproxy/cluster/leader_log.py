"""What a partition's leader says of its log's leader epochs, and a copy held against that.

The comparison itself is `metadata.divergence`; here are its questions to the leader. Nothing is
kept, and nothing is decided about what becomes of the copy.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.epoch_ends import Told
from fetchproxy.cluster.gathering import Gathering, Tell
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.metadata.divergence import (
    AskEpoch,
    AskLogStart,
    Joint,
    LeaderKnowledge,
    Shared,
    Undecided,
    begins_again,
    compare,
    cut_without_election,
)
from fetchproxy.metadata.lineage import EpochEnd
from fetchproxy.model import (
    EpochStart,
    IsolationLevel,
    LogEdges,
    TopicIdPartition,
)

NO_EPOCH = -1
_ABORTED_BYTES_MAX = 1  # of records, which nobody looks at: the first batch comes whole


@dataclass(frozen=True, slots=True)
class LeaderEpochEnd:
    """`leader_epoch`: of the leader that said so; what it says of older epochs never changes."""

    leader_epoch: int
    end: EpochEnd


class LeaderLog(ABC):
    """The log of whoever leads a partition now. Questions raise ClusterError."""

    @abstractmethod
    def known_epoch(self, tip: TopicIdPartition) -> int:
        """Of the last leader heard of; -1: of none, or none leads. Never blocks."""

    @abstractmethod
    async def epoch_end(self, tip: TopicIdPartition, epoch: int) -> LeaderEpochEnd | None:
        """OffsetForLeaderEpoch; None: the brokers have no such request, or tell no epochs."""

    @abstractmethod
    async def edges(self, tip: TopicIdPartition) -> LogEdges:
        """As they are now."""

    @abstractmethod
    async def aborted_from(self, tip: TopicIdPartition, offset: int) -> frozenset[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with an offset at `offset` or above.

        At least of all that begin below it; empty where `offset` is not in the leader's own log.
        """


class ClusterLeaderLog(LeaderLog):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Many partitions are compared at once, after an election or when they are first looked up.
        self._ends = Gathering(self._ask_ends)
        self._edges = Gathering(self._ask_edges)

    def known_epoch(self, tip: TopicIdPartition) -> int:
        if not tip.topic_id.int:  # brokers before 2.8
            topic = self._cluster.cached_topic_by_name(tip.topic)
        else:
            topic = self._cluster.cached_topic_by_id(tip.topic_id)
        node_id, epoch = (-1, -1) if topic is None else topic.leaders.get(tip.partition, (-1, -1))
        return NO_EPOCH if node_id < 0 else epoch

    async def epoch_end(self, tip: TopicIdPartition, epoch: int) -> LeaderEpochEnd | None:
        told = await self._ends.ask((tip, epoch))
        return None if told is None else LeaderEpochEnd(*told)

    async def edges(self, tip: TopicIdPartition) -> LogEdges:
        return await self._edges.ask(tip)

    async def _ask_ends(
        self,
        asked: Collection[tuple[TopicIdPartition, int]],
        tell: Tell[tuple[TopicIdPartition, int], Told],
    ) -> None:
        waiting = list(asked)
        while waiting:  # more than once only where one partition is asked about two epochs
            epochs: dict[TopicIdPartition, int] = {}
            for tip, epoch in waiting:
                epochs.setdefault(tip, epoch)

            def told(
                tip: TopicIdPartition,
                end: Told | ClusterError,
                of: Mapping[TopicIdPartition, int] = epochs,
            ) -> None:
                tell((tip, of[tip]), end)

            await self._cluster.ask_epoch_ends(epochs, told)
            waiting = [(tip, epoch) for tip, epoch in waiting if epochs[tip] != epoch]

    async def _ask_edges(
        self, tips: Collection[TopicIdPartition], tell: Tell[TopicIdPartition, LogEdges]
    ) -> None:
        now = asyncio.get_running_loop().time()
        for tip, edges in (await self._cluster.log_edges_of(tips, not_older_than=now)).items():
            tell(tip, edges)

    async def aborted_from(self, tip: TopicIdPartition, offset: int) -> frozenset[tuple[int, int]]:
        fetched = await self._cluster.fetch(
            tip,
            offset,
            bytes_max=_ABORTED_BYTES_MAX,
            wait_max_ms=0,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        return frozenset(fetched.aborted)


@dataclass(frozen=True, slots=True)
class Compared:
    """`leader_epoch` is that of the leader that was asked; -1: none was, or it tells no epochs.

    `begins_again`, `cut_without_election`: see `metadata.divergence`.
    """

    result: Shared | Undecided
    leader_epoch: int = NO_EPOCH
    answers: LeaderKnowledge = field(default_factory=LeaderKnowledge)
    begins_again: bool = False
    cut_without_election: bool = False


async def compare_with_leader(
    leader: LeaderLog,
    tip: TopicIdPartition,
    lineage: Sequence[EpochStart],
    end_offset: int,
    joints: Sequence[Joint] = (),
) -> Compared:
    """One question in the usual case, that nothing has parted. See `metadata.divergence.compare`.

    Raises ClusterError; ClusterUnavailable also where what was asked has changed meanwhile, or a
    leader answers that is older than the copy: the next attempt will find another one.
    """
    ends: dict[int, EpochEnd] = {}
    leader_epoch = NO_EPOCH
    log_start_epoch: int | None = None
    while True:
        found = compare(lineage, end_offset, LeaderKnowledge(ends, log_start_epoch), joints)
        if isinstance(found, AskEpoch):
            answer = await leader.epoch_end(tip, found.epoch)
            if answer is None:
                return Compared(Shared(end_offset))
            if leader_epoch not in (NO_EPOCH, answer.leader_epoch):
                raise ClusterUnavailable(f"{tip}: the leader changed while it was asked")
            leader_epoch = answer.leader_epoch
            if answer.end.end_offset < 0 and found.epoch > leader_epoch:
                raise ClusterUnavailable(
                    f"{tip}: leader epoch {found.epoch} is archived, epoch {leader_epoch} answers"
                )
            ends[found.epoch] = answer.end
        elif isinstance(found, AskLogStart):
            log_start_epoch = (await leader.edges(tip)).log_start_epoch
            ends.clear()  # asked before: its log may have begun lower then
        else:
            break
    if log_start_epoch is not None and found != Shared(end_offset):
        again = (await leader.edges(tip)).log_start_epoch
        if again != log_start_epoch:
            raise ClusterUnavailable(f"{tip}: the log start moved while the leader was asked")
    anew = begins_again(lineage, end_offset, found)
    cut = cut_without_election(lineage, found, end_offset, leader_epoch)
    return Compared(found, leader_epoch, LeaderKnowledge(ends, log_start_epoch), anew, cut)
