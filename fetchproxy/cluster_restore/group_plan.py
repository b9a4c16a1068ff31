"""Where each group goes on, which records it will not see, and which it may see again. Pure.

A group never begins behind the end of its partition: what it had committed beyond the archived end
is no longer there, and the new cluster gives those offsets to new records.

The state has the commits of one moment. What a group committed after it is lost, so each number of
records that it may get a second time is the most that is possible: up to the archived end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fetchproxy.brokers.group_offsets import GroupOffset
from fetchproxy.cluster_restore.plan import Place
from fetchproxy.cluster_state.state import (
    EPOCH_UNKNOWN,
    GroupKind,
    GroupWithOffsets,
    OffsetOfGroup,
)


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """`end_offset`: the archived end. `old_end_offset`: of the lost log, when the state was read.
    `leader_epoch`: of the new leader. `local_start_offset`: where the new log begins; None: at the
    archived end. `old_start_offset`: where the lost log began when the state was read.
    """

    end_offset: int
    old_end_offset: int
    leader_epoch: int
    local_start_offset: int | None = None
    old_start_offset: int = 0

    @property
    def start_offset(self) -> int:
        return self.end_offset if self.local_start_offset is None else self.local_start_offset


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """What differs for a group at one partition. `skipped`: records that it had not read and that
    nobody has. `archived`: records before the new log that it still has to read from the archive.
    `set_back`: offsets between its commit and the place where it goes on; it had read
    their records, and the new records have these offsets again. `repeated_max`: records that it may
    have read after the state was, and gets a second time.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int
    new_offset: int
    skipped: int
    archived: int
    set_back: int
    repeated_max: int


@dataclass(frozen=True, slots=True)
class UncertainStart:
    """A group had commits in the topic, but none in this partition, when the state was read. If one
    came later, it is lost. Then its clients begin by their auto.offset.reset, and skip, or get a
    second time, up to `records_max` records.
    """

    group: str
    topic: str
    partition: int
    records_max: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`offsets`: to commit, by group. `left_out`: groups by name, and why."""

    offsets: Mapping[str, tuple[GroupOffset, ...]]
    differences: tuple[GroupDifference, ...]
    left_out: Mapping[str, str]
    uncertain_starts: tuple[UncertainStart, ...] = ()


def plan_groups(
    groups: Iterable[GroupWithOffsets], partitions: Mapping[Place, PlacedPartition]
) -> GroupPlan:
    """`partitions`: those that are restored; commits of other ones are left out."""
    offsets: dict[str, tuple[GroupOffset, ...]] = {}
    differences: list[GroupDifference] = []
    uncertain: list[UncertainStart] = []
    left_out: dict[str, str] = {}
    by_topic: dict[str, list[Place]] = {}
    for place in partitions:
        by_topic.setdefault(place[0], []).append(place)
    for group in groups:
        if group.kind is GroupKind.SHARE:
            left_out[group.group_id] = "a share group: set its offsets by kafka-share-groups.sh"
            continue
        plans = []
        for one in group.offsets:
            partition = partitions.get((one.topic, one.partition))
            if partition is None:
                continue
            plan = _group_offset(group.group_id, one, partition)
            plans.append(plan)
            differences += _differences(plan, one.offset, partition)
        if plans:
            offsets[group.group_id] = tuple(plans)
        uncertain += _uncertain_starts(group, partitions, by_topic)
    return GroupPlan(offsets, tuple(differences), left_out, tuple(uncertain))


def _group_offset(group_id: str, one: OffsetOfGroup, partition: PlacedPartition) -> GroupOffset:
    new_offset = min(one.offset, partition.end_offset)
    epoch = one.leader_epoch if one.leader_epoch <= partition.leader_epoch else EPOCH_UNKNOWN
    return GroupOffset(group_id, one.topic, one.partition, new_offset, epoch, one.metadata)


def _differences(
    plan: GroupOffset, committed_offset: int, partition: PlacedPartition
) -> Iterator[GroupDifference]:
    """One at most."""
    end, new_offset = partition.end_offset, plan.offset
    skipped = max(0, partition.old_end_offset - max(committed_offset, end))
    archived = max(0, partition.start_offset - new_offset)
    set_back, repeated_max = committed_offset - new_offset, end - new_offset
    if skipped or archived or set_back or repeated_max:
        place = (plan.group, plan.topic, plan.partition)
        numbers = (committed_offset, new_offset, skipped, archived, set_back, repeated_max)
        yield GroupDifference(*place, *numbers)


def _uncertain_starts(
    group: GroupWithOffsets,
    partitions: Mapping[Place, PlacedPartition],
    by_topic: Mapping[str, Iterable[Place]],
) -> Iterator[UncertainStart]:
    committed = {(one.topic, one.partition) for one in group.offsets}
    for topic in sorted({topic for topic, _ in committed}):
        for place in by_topic.get(topic, ()):
            partition = partitions[place]
            records_max = partition.end_offset - partition.old_start_offset
            if place not in committed and records_max > 0:
                yield UncertainStart(group.group_id, *place, records_max)
