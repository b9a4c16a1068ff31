"""A state of a cluster beside what is archived: what a new cluster could go on from. Pure.

A group's offset may be above the archived end, because the newest records are not archived yet. A
cluster made of the archive begins a partition at the archived end, so such a group reads on there,
and the offsets between are the records that it has read and nobody else can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from fetchproxy.cluster_state.state import ClusterState, GroupWithOffsets

# (topic id, partition) -> one past the last archived offset. Without an entry: nothing is archived.
ArchivedEnds = Mapping[tuple[UUID, int], int]


@dataclass(frozen=True, slots=True)
class ComparedPartition:
    """`archived_end_offset`: None if nothing of the partition is archived."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    archived_end_offset: int | None

    @property
    def not_archived(self) -> int:
        """Offsets of the log at that time that are not archived."""
        first = max(self.archived_end_offset or 0, self.log_start_offset)
        return max(self.log_end_offset - first, 0)


@dataclass(frozen=True, slots=True)
class BeyondArchive:
    """A group has committed `offset`, which is above the archived end."""

    group_id: str
    topic: str
    partition: int
    offset: int
    archived_end_offset: int

    @property
    def offsets(self) -> int:
        return self.offset - self.archived_end_offset


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """`lag_offsets`: behind the logs' ends at that time; None if an end is not known. `beyond`: of
    partitions that are archived; for others the archive says nothing.
    """

    group: GroupWithOffsets
    lag_offsets: int | None
    beyond: tuple[BeyondArchive, ...]


def compared_partitions(state: ClusterState, ends: ArchivedEnds) -> Iterator[ComparedPartition]:
    for topic in state.topics:
        for one in topic.partitions:
            yield ComparedPartition(
                topic.name,
                one.partition,
                one.log_start_offset,
                one.log_end_offset,
                ends.get((topic.topic_id, one.partition)),
            )


def compared_groups(state: ClusterState, ends: ArchivedEnds) -> Iterator[ComparedGroup]:
    partitions = {(one.topic, one.partition): one for one in compared_partitions(state, ends)}
    for group in state.groups:
        lag: int | None = 0
        beyond = []
        for committed in group.offsets:
            place = committed.topic, committed.partition
            compared = partitions.get(place)
            if compared is None or lag is None:
                lag = None
            else:
                lag += max(compared.log_end_offset - committed.offset, 0)
            end = None if compared is None else compared.archived_end_offset
            if end is not None and committed.offset > end:
                beyond.append(BeyondArchive(group.group_id, *place, committed.offset, end))
        yield ComparedGroup(group, lag, tuple(beyond))
