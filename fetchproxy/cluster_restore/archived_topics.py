"""Where each partition of a state ends in the archive: there its log begins in the new cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fetchproxy.archive import StoredArchive
from fetchproxy.cluster_restore.compacted_topics import is_served_whole
from fetchproxy.cluster_restore.local_history import ALL, LocalAmount
from fetchproxy.cluster_restore.local_starts import with_local_history
from fetchproxy.cluster_restore.plan import LostPartition, LostTopic
from fetchproxy.cluster_state.state import ClusterState, PartitionState, TopicState
from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.lineage import epoch_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import for_each

_TOPICS_AT_ONCE = 16
_PARTITIONS_AT_ONCE = 16  # of one topic
_INTERNAL = ("__",)  # names of Kafka's own topics, which brokers make anew


async def read_archived_topics(
    archive: StoredArchive,
    state: ClusterState,
    is_chosen: Callable[[str], bool],
    local: LocalAmount | None = None,
    journal_ends: Mapping[TopicIdPartition, int] = MappingProxyType({}),
    *,
    at_state: bool = False,
    gives_records: bool = True,
) -> list[LostTopic]:
    """The chosen topics of the state, by name, with so much `local` history, and with whole copies
    of compacted logs. `journal_ends`: where partitions will end in the archive when the journal is
    in segments. `at_state`: see `archived_topic`. `gives_records`: False if the new brokers get no
    records. Raises RemoteStorageError.
    """
    begun_at = asyncio.get_running_loop().time()
    chosen = [
        topic
        for topic in state.topics
        if not topic.name.startswith(_INTERNAL) and is_chosen(topic.name)
    ]
    objects = archive.storage.objects
    archived_ids = {topic_id for _, topic_id in await objects.list_topics()}
    described_ids = {topic_id async for topic_id in objects.described_topics()}
    lost: dict[str, LostTopic] = {}

    async def read(topic: TopicState) -> None:
        views: Mapping[int, PartitionView] = {}
        log_id = objects.continued.log_id(topic.topic_id)
        try:
            if log_id in archived_ids:
                views = await archive.rlmm.refresh_topic(log_id, begun_at)
        except RemoteStorageError as error:
            if not error.may_be_of_object:
                raise
            lost[topic.name] = _refused(topic, f"its archive cannot be read: {error}")
            return
        ends = {tp.partition: end for tp, end in journal_ends.items() if tp.topic_id == log_id}
        archived = archived_topic(topic, views, ends, at_state=at_state)
        is_known = log_id in archived_ids or log_id in described_ids
        archived = replace(archived, topic_id=log_id if is_known or ends else None)
        if not archived.why_not and gives_records:
            archived = await _with_local_history(archive, archived, views, local)
        elif not archived.why_not:
            archived = _without_copies(archived, views)
        lost[topic.name] = archived

    await for_each(chosen, read, _TOPICS_AT_ONCE)
    return [lost[name] for name in sorted(lost)]


async def _with_local_history(
    archive: StoredArchive,
    topic: LostTopic,
    views: Mapping[int, PartitionView],
    amount: LocalAmount | None,
) -> LostTopic:
    """`amount`: None for whole copies of compacted logs alone."""
    partitions = list(topic.partitions)
    rsm = archive.storage.rsm
    amounts = {n: ALL if is_served_whole(view) else amount for n, view in views.items()}

    async def read(number: int) -> None:
        view, local = views[number], amounts[number]
        if local is not None:
            partitions[number] = await with_local_history(partitions[number], view, rsm, local)

    await for_each([n for n in range(len(partitions)) if n in views], read, _PARTITIONS_AT_ONCE)
    return replace(topic, partitions=tuple(partitions))


def _without_copies(topic: LostTopic, views: Mapping[int, PartitionView]) -> LostTopic:
    """Says of each whole copy of a compacted log that the new brokers do not get it."""
    why = "it is compacted, but its records are only in the archive: padding cannot restore them"
    partitions = (
        replace(one, why_not_local=why) if n in views and is_served_whole(views[n]) else one
        for n, one in enumerate(topic.partitions)
    )
    return replace(topic, partitions=tuple(partitions))


def archived_topic(
    topic: TopicState,
    views: Mapping[int, PartitionView],
    journal_ends: Mapping[int, int] = MappingProxyType({}),
    *,
    at_state: bool = False,
) -> LostTopic:
    """A partition without any segment begins where the lost log ended: no offset is used twice.
    `at_state`: no partition begins above its end in the state, so that ends and groups belong
    together. Except a compacted log: at an older end, its copy lacks values that were written
    again. Pure.
    """
    states = {one.partition: one for one in topic.partitions}
    partitions = []
    for number in range(topic.partition_count):
        view, known = views.get(number), states.get(number)
        if view is not None and (why := _unsure_end(view)) is not None:
            return _refused(topic, f"partition {number}: {why}")
        partition = _partition(view, known, journal_ends.get(number))
        if partition is None or (at_state and known is None):
            return _refused(topic, f"partition {number}: it is not known where its log ended")
        whole = view is not None and is_served_whole(view)
        if at_state and known is not None and not whole:
            partition = _cut(partition, view, known.log_end_offset)
        partitions.append(partition)
    beyond = tuple(sorted(n for n in {*views, *journal_ends} if n >= topic.partition_count))
    if beyond and not at_state:
        return _refused(
            topic,
            f"the archive has partition {max(beyond)}, but this state has only "
            f"{topic.partition_count} partitions: choose a later state with --at",
        )
    replicas = topic.replication_factor
    return LostTopic(
        topic.name,
        replicas,
        tuple(partitions),
        topic.configs,
        topic_id=topic.topic_id,
        later_partitions=beyond,
    )


def _partition(
    view: PartitionView | None, known: PartitionState | None, journal_end: int | None
) -> LostPartition | None:
    epoch, record_epoch = -1 if known is None else known.leader_epoch, -1
    end = None if view is None else view.log_end_offset
    if view is not None and end is not None:
        record_epoch = epoch_of(view, end - 1)
        epoch = max(epoch, record_epoch)
    if journal_end is not None:
        end = max(journal_end, end or 0)
    if end is not None:
        return LostPartition(end, epoch, record_epoch)
    return None if known is None else LostPartition(known.log_end_offset, epoch)


def _cut(partition: LostPartition, view: PartitionView | None, state_end: int) -> LostPartition:
    """The leader epoch stays that of the archive's end: the new leader's must be above it."""
    if partition.end_offset <= state_end:
        return partition
    return replace(
        partition,
        end_offset=state_end,
        record_epoch=-1 if view is None else epoch_of(view, state_end - 1),
        archived_end=partition.end_offset,
    )


def _unsure_end(view: PartitionView) -> str | None:
    """Why new records might get offsets that the archive already has."""
    last = max(view.unreadable, default=-1)
    if last >= (view.log_end_offset or 0):
        return f"the segment from offset {last} on cannot be read, so its end is not known"
    return None


def _refused(topic: TopicState, why: str) -> LostTopic:
    return LostTopic(topic.name, topic.replication_factor, (), topic.configs, why)
