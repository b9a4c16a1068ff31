"""Where each group goes on, and which records it will not see. Pure.

A group never begins behind the end of its partition: what it had committed beyond the archived end
is no longer there, and the new cluster gives those offsets to new records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fetchproxy.brokers.group_offsets import GroupOffset
from fetchproxy.cluster_restore.plan import Place
from fetchproxy.cluster_state.state import EPOCH_UNKNOWN, GroupKind, GroupWithOffsets


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """`end_offset`: the archived end. `old_end_offset`: of the lost log, when the state was read.
    `leader_epoch`: of the new leader. `local_start_offset`: where the new log begins; None: at the
    archived end.
    """

    end_offset: int
    old_end_offset: int
    leader_epoch: int
    local_start_offset: int | None = None

    @property
    def start_offset(self) -> int:
        return self.end_offset if self.local_start_offset is None else self.local_start_offset


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """What differs for a group at one partition. `skipped`: records that it had not read and that
    nobody has. `archived`: records before the new log that it still has to read from the archive.
    `set_back`: offsets between its commit and the place where it goes on; it had read
    their records, and the new records have these offsets again.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int
    new_offset: int
    skipped: int
    archived: int
    set_back: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`offsets`: to commit, by group. `left_out`: groups by name, and why."""

    offsets: Mapping[str, tuple[GroupOffset, ...]]
    differences: tuple[GroupDifference, ...]
    left_out: Mapping[str, str]


def plan_groups(
    groups: Iterable[GroupWithOffsets], partitions: Mapping[Place, PlacedPartition]
) -> GroupPlan:
    """`partitions`: those that are restored; commits of other ones are left out."""
    offsets: dict[str, tuple[GroupOffset, ...]] = {}
    differences: list[GroupDifference] = []
    left_out: dict[str, str] = {}
    for group in groups:
        if group.kind is GroupKind.SHARE:
            left_out[group.group_id] = "a share group: set its offsets by kafka-share-groups.sh"
            continue
        plans = []
        for one in group.offsets:
            partition = partitions.get((one.topic, one.partition))
            if partition is None:
                continue
            new_offset = min(one.offset, partition.end_offset)
            epoch = (
                one.leader_epoch if one.leader_epoch <= partition.leader_epoch else EPOCH_UNKNOWN
            )
            place = (group.group_id, one.topic, one.partition)
            plans.append(GroupOffset(*place, new_offset, epoch, one.metadata))
            skipped = max(0, partition.old_end_offset - max(one.offset, partition.end_offset))
            archived = max(0, partition.start_offset - new_offset)
            set_back = one.offset - new_offset
            if skipped or archived or set_back:
                numbers = (one.offset, new_offset, skipped, archived, set_back)
                differences.append(GroupDifference(*place, *numbers))
        if plans:
            offsets[group.group_id] = tuple(plans)
    return GroupPlan(offsets, tuple(differences), left_out)
