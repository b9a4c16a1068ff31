"""Replicas of one partition, any of which may lead next: a source and leader for archivers.

A model of the guarantees of KIP-101 and KIP-279, in memory: the leader appends, and followers cut
back to the records that they share with the leader, or are away and keep theirs. Not a test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from fetchproxy_protocol.apis import ErrorCode
from planted_archive import TP, batch

from fetchproxy.brokers.messages import FetchedPartition
from fetchproxy.errors import ClusterUnavailable
from fetchproxy.metadata.leader_views import LeaderLog
from fetchproxy.metadata.lineage import end_offset_for, from_log_start
from fetchproxy.model import EpochEnd, EpochStart, LogOffsets, TopicIdPartition


@dataclass(frozen=True, slots=True)
class Written:
    epoch: int
    base: int
    last: int

    @property
    def content(self) -> bytes:
        records = self.last - self.base + 1
        return batch(self.base, records, epoch=self.epoch, timestamp=1000 * self.epoch + self.base)


@dataclass
class Replica:
    log: list[Written] = field(default_factory=list)
    log_start: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].last + 1 if self.log else 0

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of `offset`, even if it is deleted; None: above its end."""
        return next((b.epoch for b in self.log if b.base <= offset <= b.last), None)

    def follow(self, leader: Replica, up_to: int) -> None:
        """Truncate as a follower does, then copy some batches."""
        shared = 0
        for own_batch, leader_batch in zip(self.log, leader.log, strict=False):
            if own_batch != leader_batch:
                break
            shared += 1
        self.log = leader.log[: max(shared, up_to)]
        self.log_start = min(leader.log_start, self.end)


class UncleanCluster(LeaderLog):
    """`before_question`: called before the leader answers, so that a test may elect another one."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.replicas = [Replica() for _ in range(3)]
        self.leads = 0
        self.epoch = 0
        self._known = 0  # the epoch that the asking side knows
        self.questions = 0
        self.before_question = lambda: None

    @property
    def leader(self) -> Replica:
        return self.replicas[self.leads]

    def produce(self, batches: int) -> None:
        for _ in range(batches):
            base = self.leader.end
            last = base + self.rng.randint(0, 4)
            self.leader.log.append(Written(self.epoch, base, last))

    def replicate(self) -> None:
        for replica in self.replicas:
            if replica is not self.leader and self.rng.random() < 0.5:
                replica.follow(self.leader, self.rng.randint(0, len(self.leader.log)))

    def elect(self) -> None:
        self.leads = self.rng.randrange(3)
        self.epoch += 1

    def trim(self, offset: int) -> None:
        self.leader.log_start = max(self.leader.log_start, min(offset, self.leader.end))

    def lineage(self) -> list[EpochStart]:
        """The leader's cache of epochs, which begins at its log start."""
        log = self.leader.log
        starts = [
            EpochStart(b.epoch, b.base)
            for i, b in enumerate(log)
            if i == 0 or b.epoch != log[i - 1].epoch
        ]
        if not starts or starts[-1].epoch != self.epoch:
            starts = [e for e in starts if e.start_offset < self.leader.end]
            starts.append(EpochStart(self.epoch, self.leader.end))
        return list(from_log_start(starts, self.leader.log_start))

    # --- requests of an archiver ---
    def known_epoch(self, tp: TopicIdPartition) -> int:
        return self._known

    def hear(self) -> None:
        """Learn of the last election."""
        self._known = self.epoch

    async def epoch_end(self, tp: TopicIdPartition, epoch: int) -> tuple[int, EpochEnd] | None:
        assert tp == TP
        self.questions += 1
        self.before_question()
        self.hear()
        if self.rng.random() < 0.05:
            raise ClusterUnavailable("no answer in time")
        return (self.epoch, end_offset_for(self.lineage(), epoch, self.leader.end))

    async def leader_log_offsets(self, tp: TopicIdPartition) -> LogOffsets:
        self.hear()
        leader = self.leader
        return LogOffsets(leader.log_start, leader.end, leader.end, self.lineage()[0].epoch)

    async def aborted_from(self, tp: TopicIdPartition, offset: int) -> frozenset[tuple[int, int]]:
        return frozenset()

    # --- as its source asks the cluster ---
    async def log_offsets(self, tp: TopicIdPartition, *, not_older_than: float) -> LogOffsets:
        return await self.leader_log_offsets(tp)

    async def fetch(self, tp: TopicIdPartition, offset: int, **_: object) -> FetchedPartition:
        self.hear()
        leader = self.leader
        if not leader.log_start <= offset <= leader.end:
            return FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, (), b"")
        batches = [b for b in leader.log if b.last >= offset]
        records = b"".join(b.content for b in batches[: self.rng.randint(1, 6)])
        return FetchedPartition(0, leader.end, leader.end, leader.log_start, (), records)
