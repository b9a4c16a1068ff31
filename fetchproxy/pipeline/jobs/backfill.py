"""The job `backfill` to Parquet: archived records as files, partitioned by topic and date.

Executors read and write by themselves; what crosses the pipe to Spark is each range's manifest. A
run that was ended goes on with the ranges that are not done; a later one adds what the archive has
more by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy.errors import ConfigError
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.pipeline.jobs.backfill_output import OutputFolder
from fetchproxy.pipeline.jobs.backfill_plan import BackfillRange, CutsOf, cut_offsets, next_plan
from fetchproxy.pipeline.jobs.parquet_range import Manifest, write_range
from fetchproxy.pipeline.jobs.spread import Failure, OnProgress, quiet, spread
from fetchproxy.pipeline.source.archive_reading import plan_input
from fetchproxy.pipeline.source.options import SourceOptions, parse_options
from fetchproxy.pipeline.source.planning import DataLoss, OffsetSpan, ReadTask, plan_tasks
from fetchproxy.pipeline.source.store_thread import opened_store, with_retries
from fetchproxy.pipeline.source.task_reader import read_task
from fetchproxy.storage.layout import SegmentFile

# Stored bytes of a range: what a task reads, and about what a task that is lost costs.
RANGE_BYTES_MAX = 128 * 1024 * 1024
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
CODECS = ("snappy", "zstd", "gzip", "lz4", "none")

MANIFEST_SCHEMA = (
    "topic string, partition int, first_offset bigint, last_offset bigint, rows bigint, "
    "size_bytes bigint, files array<string>"
)


class RangeTask(NamedTuple):
    range: BackfillRange
    task: ReadTask


@dataclass(frozen=True, slots=True)
class Target:
    """What every executor needs besides its range."""

    options: SourceOptions
    folder: OutputFolder
    compression: str


@dataclass(frozen=True, slots=True)
class Backfilled:
    """`manifests`: of what this run has written; `frame`: these, as a DataFrame of MANIFEST_SCHEMA.

    `ranges_before`: ranges that earlier runs have written.
    """

    manifests: tuple[Manifest, ...]
    ranges_before: int
    frame: Any
    failures: tuple[Failure, ...]


def backfill(
    spark: Any,
    source: Mapping[str, str],
    output: str,
    *,
    range_bytes_max: int = RANGE_BYTES_MAX,
    compression: str = CODECS[0],
    on_progress: OnProgress = quiet,
) -> Backfilled:
    """`source`: the options of `format("remotelog")`; `output`: a path or URI all executors reach.

    One run at a time into one output. Raises ConfigError, RemoteStorageError, CorruptSegment,
    DataLoss where the archive has holes (failOnDataLoss=false passes over them), OSError where the
    output cannot be written, PipelineFailed.
    """
    if compression not in CODECS:
        raise ConfigError(f"compression {compression!r}: there are {', '.join(CODECS)}")
    target = Target(parse_options(source), OutputFolder(output), compression)
    tasks, before = plan_backfill(target, range_bytes_max)
    done = spread(
        spark,
        tasks,
        partial(backfill_range, target),
        label="backfill",
        name=lambda one: one.range.name,
        size=lambda manifest: manifest.rows,
        on_progress=on_progress,
    )
    if not done.failures:
        target.folder.remove_parts()
    rows = [_row(manifest) for manifest in done.results]
    return Backfilled(
        done.results, before, spark.createDataFrame(rows, MANIFEST_SCHEMA), done.failures
    )


def plan_backfill(target: Target, range_bytes_max: int) -> tuple[list[RangeTask], int]:
    """Runs on the driver: (what is to be written, how many ranges are there already).

    The plan is kept in the output before anything is written. Raises as `backfill`.
    """
    options, folder = target.options, target.folder
    views, spans = plan_input(options)
    number, last = folder.last_plan()
    done = _done_ranges(folder)
    plan = next_plan(
        last,
        done,
        [(views[tip], span) for tip, span in spans.items()],
        _settings(options),
        bytes_max=range_bytes_max,
        cuts_of=_cuts_of(options, views.values(), range_bytes_max),
    )
    waiting = set(last.ranges) - set(done) if last is not None else set()
    if set(plan.ranges) - waiting:
        plan = folder.add_plan(number + 1, plan)
    finished = folder.done(plan.ranges)
    tasks = [
        RangeTask(one, _read_task(options, views, one))
        for one in plan.ranges
        if one.name not in finished
    ]
    return tasks, len(done)


def backfill_range(target: Target, wanted: RangeTask) -> Manifest:
    """Runs on an executor; a range that is done is not written again.

    Raises CorruptSegment, RemoteStorageError, OSError.
    """
    there = target.folder.manifest(wanted.range.name)
    if there is not None:
        return Manifest.decode(there)
    parts = wanted.task.parts
    batches = read_task(target.options, wanted.task, COLUMNS) if parts else iter(())
    return write_range(target.folder, wanted.range, batches, target.compression)


def _done_ranges(folder: OutputFolder) -> list[BackfillRange]:
    """Read from the manifests' names but for the topic's id."""
    found: list[BackfillRange] = []
    for name in folder.done():
        raw = folder.manifest(name)
        if raw is not None:
            found.append(Manifest.decode(raw).range)
    return found


def _settings(options: SourceOptions) -> dict[str, str]:
    return {
        "isolationLevel": options.isolation.name.lower(),
        "corruptBatches": "skip" if options.skip_corrupt else "fail",
    }


def _read_task(
    options: SourceOptions, views: Mapping[TopicIdPartition, PartitionView], one: BackfillRange
) -> ReadTask:
    """Raises DataLoss where what was planned is in the archive no more."""
    tip = TopicIdPartition(UUID(one.topic_id), one.topic, one.partition)
    view = views.get(tip)
    start = None if view is None else view.log_start_offset
    if options.fail_on_data_loss and (start is None or start > one.first):
        raise DataLoss(
            f"{one.name} was planned and is not written, and the archive begins at {start} now; "
            "with failOnDataLoss=false what is gone is passed over"
        )
    if view is None:
        return ReadTask(tip, ())
    span = {tip: OffsetSpan(one.first, one.end)}
    tasks = plan_tasks({tip: view}, span, partition_bytes_max=2**62)
    return tasks[0] if tasks else ReadTask(tip, ())


def _cuts_of(options: SourceOptions, views: Iterable[PartitionView], bytes_max: int) -> CutsOf:
    """By the indexes of segments that are larger than a range, which are read now."""
    large = [
        segment
        for view in views
        for segment in view.segments
        if segment.segment_size_bytes > bytes_max
    ]
    cuts = asyncio.run(_read_cuts(options, large, bytes_max)) if large else {}
    return lambda segment: cuts.get(segment.segment_id.id, ())


async def _read_cuts(
    options: SourceOptions, large: Iterable[RemoteLogSegmentMetadata], bytes_max: int
) -> dict[UUID, list[int]]:
    cuts: dict[UUID, list[int]] = {}
    async with opened_store(options) as rsm:
        for segment in large:
            key = rsm.object_key(segment, SegmentFile.INDEX)
            raw = await with_retries(
                key,
                partial(rsm.fetch_index, segment, SegmentFile.INDEX),
                options.read_max_ms / 1000,
            )
            cuts[segment.segment_id.id] = cut_offsets(RemoteLogIndex.parse(raw), bytes_max)
    return cuts


def _row(m: Manifest) -> tuple[str, int, int, int, int, int, list[str]]:
    place = (m.range.topic, m.range.partition, m.range.first, m.range.end - 1)
    return (*place, m.rows, m.size_bytes, [file.path for file in m.files])
