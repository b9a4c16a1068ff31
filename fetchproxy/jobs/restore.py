"""The job `restore`: rebuilds the metadata topic, caches and local indexes from the store alone.

First, lost metadata objects are derived from their logs. Then the job writes the events that the
metadata topic lacks. Partitions with events in the same partition of that topic share a task, so
each of its partitions is read once. On Spark, the archivers rebuild local indexes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fetchproxy.archive import (
    StoredArchive,
    for_executors,
    in_loop,
    open_cluster,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.reports import RepairReport
from fetchproxy.auditing.restore import PARTITIONS_AT_ONCE, RestoredPartition, restore_archive
from fetchproxy.auditing.verify import metadata_faults
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.jobs.runner import Done, Here, Report, Runner, StoreWork, not_done, not_listed
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.topic_based import TopicFollower, metadata_partition
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.writing.index_refresh import LocalIndexRefresher, open_local_indexes
from fetchproxy.writing.own_archive import state_metadata_topic

_Tps = tuple[TopicIdPartition, ...]

RESTORED_SCHEMA = (
    "topic string, partition int, segments int, restored int, unreadable int, not_in_store int, "
    "raised_log_start bigint"
)
ToRestore = tuple[StoredArchive, TopicFollower | None]


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    """`not_encrypted`: keys of `.log` objects, only if new segments are encrypted. The topic then
    names them as it names the others, but anybody may have put them there.
    """

    partitions: tuple[RestoredPartition, ...]
    repaired: RepairReport
    not_encrypted: tuple[str, ...] = ()


def restore(
    runner: Runner,
    config: Config,
    *,
    topic: str | None = None,
    dry_run: bool = False,
    on_result: Callable[[RestoredGroup], None] = lambda restored: None,
) -> Done[RestoredPartition]:
    """Restore `topic` (None: all topics). Writes only missing events, so it can be repeated. Raises
    as `verify`, ClusterError or RemoteStorageError if the metadata topic is unavailable, and
    ArchiveMismatch if the archive was handed over to another cluster.
    """
    config = config if isinstance(runner, Here) else for_executors(config)
    tps, unlisted = in_loop(stored_partitions(config, topic))
    in_loop(_check_not_handed_over(config))
    metadata_topic = in_loop(_metadata_topic(config, create=bool(tps) and not dry_run))
    groups = grouped(tps, config.metadata.topic_partitions)
    outcome = runner.each(groups, restore_work(config, dry_run, metadata_topic), on_result)
    partitions = tuple(
        sorted((p for group in outcome.results for p in group.partitions), key=lambda p: p.tp)
    )
    unread = not_done(condition for partition in partitions for condition in partition.unread)
    failures = (*not_listed(unlisted), *outcome.failures, *unread)
    if not dry_run:
        if topic is None and metadata_topic and not failures:
            in_loop(_state_metadata_topic(config))
        in_loop(_refresh_local_indexes(config, [partition.tp for partition in partitions]))
    frame = runner.frame([_row(p) for p in partitions], RESTORED_SCHEMA)
    return Done(partitions, failures, frame)


def grouped(tps: Iterable[TopicIdPartition], topic_partitions: int) -> list[_Tps]:
    """Groups `tps` by the partition of the metadata topic that has their events."""
    groups: dict[int, list[TopicIdPartition]] = {}
    for tp in tps:
        groups.setdefault(metadata_partition(tp, topic_partitions), []).append(tp)
    return [tuple(group) for _, group in sorted(groups.items())]


def restore_work(
    config: Config, dry_run: bool, topic_is_there: bool
) -> StoreWork[ToRestore, _Tps, RestoredGroup]:
    """Fails with RemoteStorageError, ClusterError."""
    return StoreWork(
        "restore",
        partial(_to_restore, config, topic_is_there),
        partial(_restore_group, dry_run),
        name=lambda group: ", ".join(map(str, group)),
        size=lambda group: sum(partition.segments for partition in group.partitions),
    )


@asynccontextmanager
async def _to_restore(config: Config, topic_is_there: bool) -> AsyncIterator[ToRestore]:
    async with AsyncExitStack() as stack:
        archive = await stack.enter_async_context(stored_archive(config, mends=True))
        follower = None
        if topic_is_there:
            cluster = await stack.enter_async_context(open_cluster(config))
            followed = TopicFollower(
                _metadata_log(config, cluster),
                config.metadata.cache_dir,
                config.store.metadata_read_max_ms,
            )
            follower = await stack.enter_async_context(followed)
        yield archive, follower


async def _restore_group(
    dry_run: bool, archive: ToRestore, tps: _Tps, on_progress: Report
) -> RestoredGroup:
    (storage, rlmm), follower = archive
    lost_conditions: list[Condition] = []

    async def look(tp: TopicIdPartition) -> None:
        lost_conditions.extend((await metadata_faults(storage, rlmm, tp)).faults)

    how: Any = {"wall_clock_ms": wall_clock_ms, "dry_run": dry_run}
    with each_object_alone():
        await for_each(tps, look, PARTITIONS_AT_ONCE)
        repair_report = await repair_archive(storage, rlmm, lost_conditions, **how)
        restored_partitions = await restore_archive(rlmm, follower, partitions=tps, **how)
        plain = await _not_encrypted(archive[0], tps)
    return RestoredGroup(tuple(restored_partitions), repair_report, tuple(sorted(plain)))


async def _not_encrypted(archive: StoredArchive, tps: Iterable[TopicIdPartition]) -> list[str]:
    rsm, plain_keys = archive.storage.rsm, list[str]()

    async def look(segment: RemoteLogSegmentMetadata) -> None:
        # One that cannot be opened now is served to nobody, and `verify` says why.
        with suppress(RemoteStorageError, CorruptSegment):
            if not await rsm.check_metadata(segment):
                plain_keys.append(rsm.object_key(segment, SegmentFile.LOG))

    if rsm.encrypts:
        for tp in tps:
            segments = archive.rlmm.list_remote_log_segments(tp)
            await for_each(
                (segment for segment in segments if segment.is_finished), look, PARTITIONS_AT_ONCE
            )
    return plain_keys


async def _refresh_local_indexes(config: Config, tps: Iterable[TopicIdPartition]) -> None:
    if config.archive.local_index_dir is None:
        return
    async with (
        stored_archive(config) as archive,
        open_local_indexes(config.archive, archive.storage.rsm) as local_indexes,
    ):
        if local_indexes is None:
            return
        refresher = LocalIndexRefresher(local_indexes, archive.storage.rsm)
        for tp in tps:
            view = await archive.rlmm.refresh(tp, asyncio.get_running_loop().time())
            while await refresher.refresh(tp, view):
                pass


async def _check_not_handed_over(config: Config) -> None:
    """A cluster that has lost the archive may not state that its metadata topic is the valid one.
    Raises ArchiveMismatch, RemoteStorageError, ClusterError.
    """
    async with stored_archive(config) as archive:
        identity = await archive.storage.identity.look()
    if identity is not None and identity.handed_over is not None:
        async with open_cluster(config) as cluster:
            identity.check_is_of_cluster(await cluster.cluster_id())


async def _state_metadata_topic(config: Config) -> None:
    async with stored_archive(config) as archive:
        await state_metadata_topic(archive.storage.identity, config.metadata.topic_name)


async def _metadata_topic(config: Config, *, create: bool) -> bool:
    """True: the metadata topic exists. `create`: create it here, as executors that create it at
    once would conflict. Raises ConfigError if the topic's settings would lose events.
    """
    async with open_cluster(config) as cluster:
        metadata_log = _metadata_log(config, cluster)
        if create:
            await metadata_log.open()
            return True
        return await metadata_log.exists()


def _metadata_log(config: Config, cluster: Cluster) -> KafkaMetadataLog:
    return KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms)


def _row(p: RestoredPartition) -> tuple[str, int, int, int, int, int, int | None]:
    place = (p.tp.topic, p.tp.partition)
    return (*place, p.segments, p.restored, p.unreadable, p.not_in_store, p.raised_log_start)
