"""The job `report`: what the archive holds, as tables and as a page. Reads metadata and samples."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from fetchproxy.config.sections import Config
from fetchproxy.model import TopicIdPartition
from fetchproxy.pipeline.jobs.forecast import HORIZON_DAYS, Forecast, forecast
from fetchproxy.pipeline.jobs.opened_archive import (
    for_executors,
    in_loop,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.pipeline.jobs.partition_figures import (
    PartitionFigures,
    by_day,
    measure_partition,
)
from fetchproxy.pipeline.jobs.report_page import page
from fetchproxy.pipeline.jobs.spread import Failure, OnProgress, quiet, spread
from fetchproxy.remote_log.retention.retention_settings import effective_retention

SCHEMAS = {
    "partitions": "topic string, topic_id string, partition int, segments int, size_bytes bigint, "
    "records bigint, log_start_offset bigint, log_end_offset bigint, gap_offsets bigint, "
    "missing_offsets bigint, not_known_offsets bigint, "
    "oldest_ms bigint, newest_ms bigint, history_days double, bytes_per_day bigint, "
    "size_bytes_30d bigint, size_bytes_90d bigint, size_bytes_365d bigint, "
    "next_deletion_ms bigint, samples_unreadable int",
    "days": "topic string, partition int, day date, size_bytes bigint, records bigint, "
    "segments int",
    "codecs": "topic string, partition int, codec string, batches bigint, packed_bytes bigint, "
    "unpacked_bytes bigint",
}


@dataclass(frozen=True, slots=True)
class Reported:
    """`frames`: DataFrames by the names of SCHEMAS. `html`: the page."""

    figures: tuple[tuple[PartitionFigures, Forecast], ...]
    frames: dict[str, Any]
    html: str
    failures: tuple[Failure, ...]

    def write(self, folder: Path, parquet: str | None = None) -> None:
        """The page into `folder`, the tables below `parquet` (a URI of Spark's; None: `folder`).

        A second run replaces what the first one wrote. Raises OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        below = folder.resolve().as_uri() if parquet is None else parquet.rstrip("/")
        for name, frame in self.frames.items():
            frame.coalesce(1).write.mode("overwrite").parquet(f"{below}/{name}")
        draft = folder / ".report.html"
        draft.write_text(self.html, encoding="utf-8")
        os.replace(draft, folder / "report.html")


def report(
    spark: Any, config: Config, *, topic: str | None = None, on_progress: OnProgress = quiet
) -> Reported:
    """Of `topic` (None: of all). Raises as `verify`."""
    tips = in_loop(stored_partitions(config, topic))
    now_ms = wall_clock_ms()
    done = spread(
        spark,
        tips,
        partial(report_partition, for_executors(config)),
        label="report",
        size=lambda figures: figures.size_bytes,
        on_progress=on_progress,
        log=config.log,
    )
    by_name = sorted(done.results, key=lambda f: (f.tip.topic, f.tip.topic_id, f.tip.partition))
    figures = tuple((one, forecast_of(config, one, now_ms)) for one in by_name)
    rows = table_rows(figures)
    frames = {name: spark.createDataFrame(rows[name], SCHEMAS[name]) for name in SCHEMAS}
    return Reported(figures, frames, page(figures, now_ms), done.failures)


def report_partition(config: Config, tip: TopicIdPartition) -> PartitionFigures:
    """Runs on an executor. Raises RemoteStorageError."""

    async def measured() -> PartitionFigures:
        async with stored_archive(config) as archive:
            return await measure_partition(archive.rsm, archive.rlmm, tip)

    return asyncio.run(measured())


def forecast_of(config: Config, figures: PartitionFigures, now_ms: int) -> Forecast:
    """By `archive.*`; a topic's own settings are the brokers', which are not asked."""
    retention = effective_retention(config.archive, figures.tip.topic, None)
    return forecast(figures.held, retention, now_ms)


def table_rows(
    figures: Iterable[tuple[PartitionFigures, Forecast]],
) -> dict[str, list[tuple[Any, ...]]]:
    """By the names of SCHEMAS."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
    no_sizes = (None,) * len(HORIZON_DAYS)
    for one, ahead in figures:
        tip = one.tip
        rows["partitions"].append(
            (
                *(tip.topic, str(tip.topic_id), tip.partition, len(one.held), one.size_bytes),
                *(one.records, one.log_start_offset, one.log_end_offset, one.gap_offsets),
                *(one.missing_offsets, one.not_known_offsets, one.oldest_ms, one.newest_ms),
                *(ahead.history_days, ahead.bytes_per_day, *(ahead.size_bytes or no_sizes)),
                *(ahead.next_deletion_ms, one.samples_unreadable),
            )
        )
        rows["days"] += [
            (
                tip.topic,
                tip.partition,
                _date(day.day),
                day.size_bytes,
                day.records,
                day.segments,
            )
            for day in by_day(one.held)
        ]
        rows["codecs"] += [
            (tip.topic, tip.partition, c.codec, c.batches, c.packed_bytes, c.unpacked_bytes)
            for c in one.codecs
        ]
    return rows


def _date(day: int) -> date | None:
    """None: no calendar has it, as timestamps are what producers say."""
    try:
        return date(1970, 1, 1) + timedelta(days=day)
    except OverflowError:
        return None
