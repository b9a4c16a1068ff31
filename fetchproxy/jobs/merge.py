"""The job `merge`: adjacent small segments into large ones, partition by partition.

What is merged and how it is switched is `remote_log.merging`'s; what is replaced goes by the rule
that archivers have for spare copies, so this may run beside them, and twice at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from fetchproxy.archive import (
    for_executors,
    in_loop,
    managed_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.config.schema import Config
from fetchproxy.jobs.runner import Failure, OnProgress, quiet, spread
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.merging import MERGED_BYTES_MAX, MergedPartition, PartitionMerger
from fetchproxy.writing.sources.segment_source import Spool

MERGED_SCHEMA = (
    "topic string, partition int, merged int, replaced int, size_bytes bigint, overtaken int, "
    "refused array<string>"
)


@dataclass(frozen=True, slots=True)
class Merged:
    """`frame`: `partitions` as a DataFrame of MERGED_SCHEMA."""

    partitions: tuple[MergedPartition, ...]
    frame: Any
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """`bytes_max`: of a merged segment; each task has room for one on its disk."""

    bytes_max: int = MERGED_BYTES_MAX
    dry_run: bool = False


def merge(
    spark: Any,
    config: Config,
    *,
    topic: str | None = None,
    options: MergeOptions = MergeOptions(),
    on_progress: OnProgress = quiet,
) -> Merged:
    """Merge in every partition of `topic` (None: of all). Raises as `verify`."""
    tips = in_loop(stored_partitions(config, topic))
    done = spread(
        spark,
        tips,
        partial(merge_partition, for_executors(config), options),
        label="merge",
        size=lambda partition: partition.size_bytes,
        on_progress=on_progress,
        log=config.log,
    )
    rows = [_row(partition) for partition in done.results]
    return Merged(done.results, spark.createDataFrame(rows, MERGED_SCHEMA), done.failures)


def _row(p: MergedPartition) -> tuple[str, int, int, int, int, int, list[str]]:
    place = (p.tip.topic, p.tip.partition)
    return (*place, p.merged, p.replaced, p.size_bytes, p.overtaken, list(p.refused))


def merge_partition(
    config: Config, options: MergeOptions, tip: TopicIdPartition
) -> MergedPartition:
    """Runs on an executor: merge, then remove what may go by now, of this run or of earlier ones.

    Raises RemoteStorageError, ClusterError (metadata in a topic); OSError of the spool's disk.
    """

    async def merged() -> MergedPartition:
        async with (
            managed_archive(config) as archive,
            Spool(config.archive.spool_dir) as spool,
        ):
            copier = SegmentCopier(
                archive.rsm,
                archive.rlmm,
                copy_max_ms=config.archive.copy_max_ms,
                wall_clock_ms=wall_clock_ms,
                uuid_factory=uuid4,
            )
            merger = PartitionMerger(
                archive.rsm, archive.rlmm, copier, spool, bytes_max=options.bytes_max
            )
            if options.dry_run:
                return _planned(tip, await merger.plan(tip))
            done = await merger.merge(tip)
            expirer = Expirer(
                config.archive,
                archive.rsm,
                archive.rlmm,
                topic_config=lambda topic_id: None,  # nothing is asked of retention here
                wall_clock_ms=wall_clock_ms,
                limits=WritingLimits(retention_clock_settle_ms=0),
            )
            await expirer.tidy(tip)
            return done

    return asyncio.run(merged())


def _planned(tip: TopicIdPartition, groups: list[Any]) -> MergedPartition:
    return replace(
        MergedPartition(tip),
        merged=len(groups),
        replaced=sum(map(len, groups)),
        size_bytes=sum(segment.segment_size_bytes for group in groups for segment in group),
    )
