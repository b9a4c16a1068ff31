"""The job `backfill` to Parquet: archived records as files, partitioned by topic and date.

Executors read and write the records themselves and send Spark only each range's manifest. After an
interruption, the next run does the remaining ranges. A later run adds newly archived records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy.archive import in_loop
from fetchproxy.errors import ConfigError
from fetchproxy.jobs.backfill_files import Manifest, OutputFolder, write_range
from fetchproxy.jobs.backfill_plan import BackfillRange, backfill_input, next_plan, of_other_topics
from fetchproxy.jobs.runner import Done, ItemFailure, Runner, Work, named
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.decoder.arrow_batches import COLUMNS
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning import OffsetSpan, ReadTask, plan_tasks
from fetchproxy.remotelog.task_reader import SkippedRecords, read_task, too_large_for

# Stored bytes of a range: a task reads that many, and a lost task has to read them again.
RANGE_BYTES_MAX = 128 * 1024 * 1024
CODECS = ("snappy", "zstd", "gzip", "lz4", "none")

MANIFEST_SCHEMA = (
    "topic string, partition int, first_offset bigint, last_offset bigint, rows bigint, "
    "passed_over bigint, size_bytes bigint, files array<string>"
)


class RangeTask(NamedTuple):
    range: BackfillRange
    task: ReadTask


@dataclass(frozen=True, slots=True)
class Target:
    """The inputs that every executor needs besides its range."""

    options: SourceOptions
    folder: OutputFolder
    compression: str


@dataclass(frozen=True, slots=True)
class PlannedBackfill:
    """`ranges_before`: number of complete ranges. `left_out`: partitions left out, and why."""

    tasks: list[RangeTask]
    ranges_before: int
    left_out: tuple[ItemFailure, ...]


def backfill(
    runner: Runner,
    source: Mapping[str, str],
    output: str,
    *,
    range_bytes_max: int = RANGE_BYTES_MAX,
    compression: str = CODECS[0],
) -> tuple[Done[Manifest], int]:
    """Returns the manifests that this run has written and the number of ranges written before. A
    partition is left out, as a failure, if the archive lacks some of its offsets, and so is a batch
    that is too large to unpack.

    `source`: the options of `format("remotelog")`. `output`: a path or URI that all executors
    reach; only one run at a time may write to it. Raises ConfigError, also if the output cannot be
    written; RemoteStorageError, CorruptSegment, PipelineFailed.
    """
    if compression not in CODECS:
        raise ConfigError(f"compression {compression!r}: expected one of {', '.join(CODECS)}")
    target = Target(parse_options(source), OutputFolder(output), compression)
    with _output_errors(output):
        plan = plan_backfill(target, range_bytes_max)
    work = Work(
        "backfill",
        partial(backfill_range, target),
        name=lambda one: one.range.name,
        size=lambda manifest: manifest.rows,
    )
    outcome = runner.each(plan.tasks, work)
    if not outcome.failures:
        with _output_errors(output):
            target.folder.remove_parts()
    frame = runner.frame([_row(manifest) for manifest in outcome.results], MANIFEST_SCHEMA)
    failures = *plan.left_out, *outcome.failures, *too_large_in(target.options, outcome.results)
    return Done(outcome.results, failures, frame), plan.ranges_before


def too_large_in(options: SourceOptions, manifests: Iterable[Manifest]) -> Iterator[ItemFailure]:
    """Names the batches that were too large for the tasks that wrote the other records."""
    for manifest in manifests:
        if manifest.too_large:
            offsets = named([f"{first} to {last}" for first, last in manifest.too_large])
            subject = "each batch is" if len(manifest.too_large) > 1 else "the batch is"
            partition = f"{manifest.range.topic}-{manifest.range.partition}"
            message = f"offsets {offsets} of {partition} are left out"
            yield ItemFailure(
                manifest.range.name, f"{message}: {subject} {too_large_for(options)}", False
            )


@contextmanager
def _output_errors(output: str) -> Iterator[None]:
    """The driver's own reads and writes in the output. A task's errors fail its range alone."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the output {output} cannot be read or written: {error}") from error


def plan_backfill(target: Target, range_bytes_max: int) -> PlannedBackfill:
    """Runs on the driver. Stores the plan in the output before any records are written. Raises as
    `backfill`.
    """
    options, folder = target.options, target.folder
    selections, left_out = in_loop(backfill_input(options))
    number, last = folder.last_plan()
    manifests = folder.manifests()
    whole_ranges = [manifest.range for manifest in manifests if manifest.is_whole]
    begun_ranges = [manifest.range for manifest in manifests if not manifest.is_whole]
    known_ranges = (*(last.ranges if last else ()), *whole_ranges, *begun_ranges)
    left_out = (*left_out, *of_other_topics(known_ranges, selections))
    unread = {failure.name for failure in left_out}
    selections = [(view, span) for view, span in selections if str(view.tp) not in unread]
    views = {(view.tp.topic, view.tp.partition): view for view, _ in selections}
    plan = next_plan(
        last,
        whole_ranges,
        selections,
        _settings(options),
        bytes_max=range_bytes_max,
        begun_ranges=begun_ranges,
    )
    waiting = set(last.ranges) - set(whole_ranges) if last is not None else set()
    if set(plan.ranges) - waiting:
        plan = folder.add_plan(number + 1, plan)
    tasks: list[RangeTask] = []
    gone_ranges: list[ItemFailure] = []
    finished_ranges = set(whole_ranges)
    for range_ in plan.ranges:
        if range_ in finished_ranges or f"{range_.topic}-{range_.partition}" in unread:
            continue
        view = views.get((range_.topic, range_.partition))
        why_gone = _why_gone(options, view, range_)
        if why_gone is None:
            tasks.append(RangeTask(range_, _read_task(view, range_)))
        else:
            gone_ranges.append(ItemFailure(range_.name, why_gone, False))
    return PlannedBackfill(tasks, len(whole_ranges), (*left_out, *gone_ranges))


def backfill_range(target: Target, task: RangeTask) -> Manifest:
    """Runs in a worker process. Does not write a complete range again. Raises CorruptSegment,
    RemoteStorageError, OSError.
    """
    folder, before = target.folder, target.folder.manifest(task.range.name)
    if before is not None and before.is_whole:
        return before
    skipped_records = SkippedRecords(too_large=[])
    batches: Iterator[Any] = iter(())
    if task.task.parts:
        batches = read_task(target.options, task.task, COLUMNS, skipped_records=skipped_records)
    return write_range(folder, task.range, batches, target.compression, skipped_records, before)


def _settings(options: SourceOptions) -> dict[str, str]:
    return {
        "isolationLevel": options.isolation.name.lower(),
        "corruptBatches": "skip" if options.skip_corrupt else "fail",
    }


def _why_gone(options: SourceOptions, view: PartitionView | None, one: BackfillRange) -> str | None:
    """Why the planned range can no longer be written. None: it can."""
    start = None if view is None else view.log_start_offset
    if not options.fail_on_data_loss or (start is not None and start <= one.first):
        return None
    where = (
        "the archive has none of its records" if start is None else f"the archive begins at {start}"
    )
    return (
        f"it was planned but not written, and now {where}; with failOnDataLoss=false missing "
        "offsets are skipped"
    )


def _read_task(view: PartitionView | None, one: BackfillRange) -> ReadTask:
    selections = [] if view is None else [(view, OffsetSpan(one.first, one.end))]
    tasks = plan_tasks(selections, partition_bytes_max=2**62)
    tp = TopicIdPartition(UUID(one.topic_id), one.topic, one.partition)
    return tasks[0] if tasks else ReadTask(tp, ())


def _row(m: Manifest) -> tuple[str, int, int, int, int, int, int, list[str]]:
    range_key = (m.range.topic, m.range.partition, m.range.first, m.range.end - 1)
    return (*range_key, m.rows, m.skipped_records, m.size_bytes, [file.path for file in m.files])
