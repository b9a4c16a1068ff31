"""What has to happen next to one partition so that real brokers have it from its offset on. Pure.

The decision needs only what the cluster shows now, so a restore that was killed anywhere goes on
with it. A partition of a new topic goes this way:

    created with the phantoms alone   RAISE    until the leader epoch is high enough
                                      SPREAD   the real brokers become followers
                                      WAIT     until each follower has proven its start, and has
                                               all records of the local history
                                      JOIN     they come into the in-sync replicas, one of them
                                               leads, and the phantoms are out

Until JOIN, no real broker is in sync: if the phantoms die before, the partition has no leader, and
nobody can write to it at a wrong offset. An empty topic that exists is entered by ATTACH, FOLLOW
and LEAD; then ALONE takes the real brokers out of the in-sync replicas. It also brings back a
phantom that the controller has taken out of them, as it does after a restore was killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum

from fetchproxy.cluster_restore.plan import (
    EPOCHS_RAISED_MAX,
    FoundPartition,
    LocalHistory,
    PlannedTopic,
    is_placed,
)

_ANY_BYTES = (1 << 31) - 1  # the largest segment that Kafka has


class PartitionStep(StrEnum):
    WAIT = "wait"
    ATTACH = "attach"  # the phantoms become replicas of a partition of real brokers
    FOLLOW = "follow"  # they fetch from its leader, which takes them for in sync
    LEAD = "lead"  # the first replica, a phantom, becomes leader
    ALONE = "alone"  # the phantoms, and no real broker, become in-sync replicas
    SWAP = "swap"  # the other phantom becomes the first replica
    SPREAD = "spread"  # real brokers become replicas
    JOIN = "join"  # they become in-sync replicas
    REMOVE = "remove"  # the phantoms stop being replicas
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PartitionGoal:
    """`end_offset`: of the first new record. `leader_epoch`: the new leader's is at least this.
    `replicas`: real ones, in their order. `record_epoch`, `local`: see `LostPartition`.
    `append_bytes_max`: see `LedLog`.
    """

    end_offset: int
    leader_epoch: int
    replicas: tuple[int, ...]
    record_epoch: int = -1
    local: LocalHistory | None = None
    append_bytes_max: int = _ANY_BYTES


def partition_goals(topic: PlannedTopic) -> Iterator[PartitionGoal]:
    """Of each partition, from 0 on. A phantom that serves records leads with their last epoch at
    least: followers drop later ones. To hand over is one epoch more.
    """
    segment_bytes = int(dict(topic.archived.configs).get("segment.bytes", _ANY_BYTES))
    for one, replicas in zip(topic.archived.partitions, topic.replicas, strict=True):
        epoch = one.leader_epoch if one.leader_epoch <= EPOCHS_RAISED_MAX else 0
        lead = epoch if one.local is None else epoch + 1
        yield PartitionGoal(
            one.end_offset, lead, replicas, one.record_epoch, one.local, segment_bytes
        )


def next_step(
    goal: PartitionGoal,
    present: FoundPartition,
    phantoms: tuple[int, ...],
    placed: Set[int],
) -> PartitionStep:
    """`placed`: the replicas whose start is proven to the phantom that leads."""
    if present.leader < 0:
        return PartitionStep.WAIT
    if present.leader not in phantoms:
        return _of_real_leader(goal, present, phantoms)
    attached = [node for node in present.replicas if node in phantoms]
    # To hand over is an election too.
    is_low = present.leader_epoch + 1 < goal.leader_epoch and len(attached) > 1
    may_swap = set(attached) <= present.in_sync
    if not present.in_sync - set(phantoms) <= placed or (is_low and not may_swap):
        return PartitionStep.ALONE
    if is_low:
        return PartitionStep.SWAP if present.replicas[0] == present.leader else PartitionStep.LEAD
    if not set(goal.replicas) <= set(present.replicas):
        return PartitionStep.SPREAD
    if not set(goal.replicas) <= placed:
        return PartitionStep.WAIT
    in_sync = set(goal.replicas) <= present.in_sync
    return PartitionStep.REMOVE if in_sync else PartitionStep.JOIN


def _of_real_leader(
    goal: PartitionGoal, present: FoundPartition, phantoms: tuple[int, ...]
) -> PartitionStep:
    attached = set(present.replicas) & set(phantoms)
    if present.log_start_offset is None:
        return PartitionStep.WAIT
    # A partition without any archived record may have new ones, and is nobody else's business.
    if is_placed(present, goal.end_offset) or not goal.end_offset:
        return PartitionStep.REMOVE if attached else PartitionStep.DONE
    if present.log_end_offset:
        return PartitionStep.WAIT  # no phantom may lead where records are
    if not attached or present.replicas[0] not in phantoms:
        return PartitionStep.ATTACH
    return PartitionStep.LEAD if attached <= present.in_sync else PartitionStep.FOLLOW


def other_first(replicas: tuple[int, ...], phantoms: Collection[int]) -> tuple[int, ...]:
    """The replicas with the next phantom in front."""
    attached = [node for node in replicas if node in phantoms]
    real = [node for node in replicas if node not in phantoms]
    return (*attached[1:], attached[0], *real)


class PartitionEpochSearch:
    """Finds the number of changes that a partition has had, which no request tells.

    The controller says whether a guess is too low or too high. Each new leader epoch is a change,
    so there are at least as many.
    """

    def __init__(self, leader_epoch: int) -> None:
        self._low = leader_epoch
        self._high: int | None = None
        self._stride = 1
        # As a new topic is treated: two changes for each epoch, and one for its new replicas.
        self.guess = 2 * leader_epoch + 1

    def too_low(self) -> None:
        self._low = self.guess + 1
        if self._high is None:
            self.guess, self._stride = self.guess + self._stride, 2 * self._stride
        else:
            self._halve()

    def too_high(self) -> None:
        self._high = self.guess - 1
        self._halve()

    @property
    def has_failed(self) -> bool:
        return self._high is not None and self._high < self._low

    def _halve(self) -> None:
        assert self._high is not None
        self.guess = (self._low + self._high) // 2
