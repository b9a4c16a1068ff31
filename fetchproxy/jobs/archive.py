"""The job `archive`: one pass over all partitions. The driver plans it and executors copy.

Each executor runs the archiver's pass (`ArchivePass`) for its partition, without leadership. If a
running archiver copies the same partition, the second to finish gives up its copy, as between two
archivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from fetchproxy.archive import (
    ManagedArchive,
    for_executors,
    in_loop,
    managed_archive,
    wall_clock_ms,
)
from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.config.schema import Config
from fetchproxy.errors import ClusterUnavailable, ConfigError
from fetchproxy.jobs.runner import Done, ItemFailure, Report, Runner, StoreWork, attempt_async
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.writing.archive_pass import (
    PARTITIONS_FAILED_IN_A_ROW_MAX,
    ArchivePass,
    NotAllArchived,
    NotArchived,
)
from fetchproxy.writing.discovery import TopicDiscovery, partitions_of
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.own_archive import OwnArchive, check_is_own_archive
from fetchproxy.writing.remote_log_manager import open_log_dirs
from fetchproxy.writing.topic_recorder import TopicRecorder

# Partitions planned at once. Each takes one request to a leader and one read of the archive.
PLANNED_AT_ONCE = 16

ARCHIVED_SCHEMA = (
    "topic string, partition int, archive_end_before bigint, archive_end bigint, "
    "last_stable_offset bigint, segments int, size_bytes bigint"
)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """`archive_end`: exclusive; None: the archive has no segment yet. The offsets to copy are from
    `archive_end`, or the broker's `log_start_offset` if that is higher, to `last_stable_offset`.
    """

    tp: TopicIdPartition
    archive_end: int | None
    log_start_offset: int
    last_stable_offset: int
    topic_config: Mapping[str, str] | None

    @property
    def offsets(self) -> int:
        """The number of offsets to copy."""
        start = max(self.log_start_offset, self.archive_end or 0)
        return max(self.last_stable_offset - start, 0)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """`topics`: those to archive. `refused`: by topic, why it is not archived although the pattern
    matches it. `failed`: the partitions that could not be looked at.
    """

    topics: tuple[TopicInfo, ...]
    partitions: tuple[PlannedPartition, ...]
    refused: Mapping[str, str]
    failed: tuple[ItemFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """The archive's content from `planned.archive_end` on, no matter which process copied it.
    `not_archived`: what an open transaction keeps from it.
    """

    planned: PlannedPartition
    archive_end: int | None
    segments: int
    size_bytes: int
    not_archived: tuple[NotArchived, ...] = ()


def archive(
    runner: Runner, config: Config, *, create: bool = False
) -> tuple[ArchivePlan, Done[ArchivedPartition]]:
    """Copy the topics that `archive.topics` matches, up to their current last stable offsets, and
    their descriptions.

    `create`: see `OwnArchive`.
    Raises ConfigError, ClusterError, RemoteStorageError if planning fails; PipelineFailed.
    """
    check_source(config)
    config = for_executors(config)
    in_loop(begin_archive(config, create=create))
    plan = plan_archive(config)
    outcome = runner.each(plan.partitions, archive_work(config))
    rows = [_row(partition) for partition in outcome.results]
    failures = (*plan.failed, *outcome.failures, *describe_topics(config, plan.topics))
    return plan, replace(outcome, failures=failures, frame=runner.frame(rows, ARCHIVED_SCHEMA))


def check_source(config: Config) -> None:
    """Raises ConfigError if executors cannot reach the source."""
    if config.archive.log_dirs is not None:
        raise ConfigError(
            "archive.log_dirs is set: Spark executors read records from the brokers only"
        )


async def begin_archive(config: Config, *, create: bool = False) -> None:
    """Runs on the driver, as the first step. Checks that the archive is this cluster's, or creates
    it if allowed. Raises the errors of `OwnArchive.confirm`.
    """
    async with managed_archive(config, create=True) as archive:
        await OwnArchive(config, *archive, uuid4, archives=True, create=create).confirm()


def plan_archive(config: Config) -> ArchivePlan:
    """Runs on the driver. Partitions with the most to copy come first. Raises as `archive`."""
    if config.archive.topics is None:
        raise ConfigError("archive.topics is not set; use --archive REGEX")
    return in_loop(_plan(config, config.archive.topics))


async def _plan(config: Config, topics: str) -> ArchivePlan:
    async with managed_archive(config, create=True, must_exist=False) as archive:
        cluster = archive.cluster
        await check_is_own_archive(archive.storage, cluster)
        discovery = TopicDiscovery(
            cluster,
            config.archive,
            WritingLimits.discovery_interval_ms,
            metadata_topic=config.metadata.topic_name,
            name_fault=archive.storage.objects.name_fault,
        )
        found_topics = await discovery.look()
        tps = partitions_of(found_topics)
        if reason := discovery.why_nothing():
            raise ConfigError(reason)
        plans: list[PlannedPartition] = []
        failures: list[ItemFailure] = []

        async def planned(tp: TopicIdPartition) -> PlannedPartition:
            log_offsets = await cluster.log_offsets(tp)
            view = await archive.rlmm.refresh(tp, asyncio.get_running_loop().time())
            return PlannedPartition(
                tp,
                view.log_end_offset,
                log_offsets.log_start_offset,
                log_offsets.last_stable_offset,
                discovery.topic_config(tp.topic_id),
            )

        async def look(tp: TopicIdPartition) -> None:
            if not plans and len(failures) >= PARTITIONS_FAILED_IN_A_ROW_MAX:
                raise ClusterUnavailable(f"no partition can be looked at: {failures[0]}")
            outcome = await attempt_async(planned(tp), str(tp))
            if isinstance(outcome, ItemFailure):
                failures.append(outcome)
            else:
                plans.append(outcome)

        await for_each(tps, look, PLANNED_AT_ONCE)
    plans.sort(key=lambda planned: (-planned.offsets, planned.tp))
    return ArchivePlan(tuple(found_topics), tuple(plans), discovery.refused, tuple(failures))


def describe_topics(config: Config, topics: Sequence[TopicInfo]) -> tuple[ItemFailure, ...]:
    """Runs on the driver. Writes the topics' numbers of partitions, and which are empty, as an
    archiver does.
    """
    outcome = in_loop(attempt_async(_describe(config, topics), "the descriptions of the topics"))
    return (outcome,) if isinstance(outcome, ItemFailure) else ()


async def _describe(config: Config, topics: Sequence[TopicInfo]) -> None:
    async with managed_archive(config) as archive:
        await check_is_own_archive(archive.storage, archive.cluster)
        recorder = TopicRecorder(
            archive.cluster, archive.storage.objects, archive.rlmm, wall_clock_ms
        )
        await recorder.record(topics)


def archive_work(config: Config) -> StoreWork[ManagedArchive, PlannedPartition, ArchivedPartition]:
    """Copies segments, then deletes those that retention has expired. Fails with NotAllArchived,
    RemoteStorageError.
    """
    config = for_executors(config)
    return StoreWork(
        "archive",
        partial(managed_archive, config),
        partial(_archive_partition, config),
        name=lambda planned: str(planned.tp),
        size=lambda partition: partition.size_bytes,
    )


async def _archive_partition(
    config: Config, archive: ManagedArchive, planned: PlannedPartition, on_progress: Report
) -> ArchivedPartition:
    await check_is_own_archive(archive.storage, archive.cluster)
    archive_pass = ArchivePass(
        config.archive,
        archive.cluster,
        archive.storage,
        archive.rlmm,
        topic_configs={planned.tp.topic_id: planned.topic_config},
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid4,
        metadata_topic=config.metadata.topic_name,
        log_starts={planned.tp: planned.log_start_offset},
        log_dirs=await asyncio.to_thread(open_log_dirs, config.archive),
    )
    not_archived = await archive_pass.archive([planned.tp])
    if any(gap.failed for gap in not_archived):
        raise NotAllArchived(gap for gap in not_archived if gap.failed)
    view = await archive.rlmm.refresh(planned.tp, asyncio.get_running_loop().time())
    new = view.segments[view.segments.index_at_or_after(planned.archive_end or 0) :]
    size = sum(segment.segment_size_bytes for segment in new)
    return ArchivedPartition(planned, view.log_end_offset, len(new), size, tuple(not_archived))


def _row(p: ArchivedPartition) -> tuple[str, int, int | None, int | None, int, int, int]:
    tp, planned = p.planned.tp, p.planned
    ends = (planned.archive_end, p.archive_end, planned.last_stable_offset)
    return (tp.topic, tp.partition, *ends, p.segments, p.size_bytes)
