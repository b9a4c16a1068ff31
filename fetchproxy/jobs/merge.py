"""The job `merge`: merges adjacent small segments into large ones, partition by partition.

`writing.merging` decides which segments are merged and how readers switch. Replaced segments are
deleted by the archivers' rule for redundant copies. So this job may run beside archivers, and twice
at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from fetchproxy.archive import (
    ManagedArchive,
    StoredArchive,
    for_executors,
    in_loop,
    managed_archive,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.config.schema import Config
from fetchproxy.jobs.runner import Done, ItemFailure, Report, Runner, StoreWork, not_listed
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.merging import MERGED_BYTES_MAX, MergedPartition, PartitionMerger
from fetchproxy.writing.own_archive import check_is_own_archive
from fetchproxy.writing.spool import Spool

MERGED_SCHEMA = (
    "topic string, partition int, merged int, replaced int, size_bytes bigint, overtaken int, "
    "refused array<string>"
)
ToMerge = tuple[StoredArchive | ManagedArchive, Spool]


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """`bytes_max`: limit of a merged segment. Each task needs disk space for one such segment.
    `encrypt_plain`: see `PartitionMerger`.
    """

    bytes_max: int = MERGED_BYTES_MAX
    dry_run: bool = False
    encrypt_plain: bool = False


def merge(
    runner: Runner,
    config: Config,
    *,
    topic: str | None = None,
    options: MergeOptions = MergeOptions(),
) -> Done[MergedPartition]:
    """Merge segments in every partition of `topic` (None: of all topics). Raises as `verify`."""
    tps, unlisted = in_loop(stored_partitions(config, topic))
    outcome = runner.each(tps, merge_work(config, options))
    rows = [_row(partition) for partition in outcome.results]
    unread = [
        ItemFailure(str(partition.tp), why, True)
        for partition in outcome.results
        for why in partition.unread
    ]
    failures = (*not_listed(unlisted), *outcome.failures, *unread)
    return replace(outcome, failures=failures, frame=runner.frame(rows, MERGED_SCHEMA))


def _row(p: MergedPartition) -> tuple[str, int, int, int, int, int, list[str]]:
    partition = (p.tp.topic, p.tp.partition)
    return (*partition, p.merged, p.replaced, p.size_bytes, p.overtaken, list(p.refused))


def merge_work(
    config: Config, options: MergeOptions
) -> StoreWork[ToMerge, TopicIdPartition, MergedPartition]:
    """Merge, then delete replaced segments of this or earlier runs that are old enough. Fails with
    RemoteStorageError, ClusterError (metadata in a topic), OSError (the spool's disk).
    """
    config = for_executors(config)
    work = partial(_merge_partition, config, options)
    open_archive = partial(_to_merge, config)
    return StoreWork("merge", open_archive, work, size=lambda partition: partition.size_bytes)


@asynccontextmanager
async def _to_merge(config: Config) -> AsyncIterator[ToMerge]:
    by_store = config.metadata.manager == "store"  # if so, no brokers are needed
    opened = stored_archive(config, writes=True) if by_store else _of_own_cluster(config)
    async with (
        opened as archive,
        Spool(config.archive.spool_dir, encrypted=archive.storage.rsm.encrypts) as spool,
    ):
        yield archive, spool


@asynccontextmanager
async def _of_own_cluster(config: Config) -> AsyncIterator[ManagedArchive]:
    async with managed_archive(config) as archive:
        await check_is_own_archive(archive.storage, archive.cluster)
        yield archive


async def _merge_partition(
    config: Config,
    options: MergeOptions,
    opened: ToMerge,
    tp: TopicIdPartition,
    on_progress: Report,
) -> MergedPartition:
    archive, spool = opened
    rsm, rlmm = archive.storage.rsm, archive.rlmm
    copier = SegmentCopier(
        rsm,
        rlmm,
        copy_max_ms=config.archive.copy_max_ms,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid4,
    )
    merger = PartitionMerger(
        rsm,
        rlmm,
        copier,
        spool,
        bytes_max=options.bytes_max,
        encrypt_plain=options.encrypt_plain,
    )
    if options.dry_run:
        return await merger.dry_run(tp)
    merge_result = await merger.merge(tp)
    expirer = Expirer(
        config.archive,
        rsm,
        archive.storage.objects,
        rlmm,
        topic_config=lambda topic_id: None,  # this job applies no retention
        wall_clock_ms=wall_clock_ms,
        limits=WritingLimits(retention_clock_settle_ms=0),
    )
    await expirer.delete_all_due(tp)
    return merge_result
