"""The job `report`: the archive's figures as tables and as a page with charts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from html import escape
from itertools import count, groupby
from pathlib import Path
from typing import Any

from fetchproxy_protocol.record_batch import SEARCHED_BYTES_MAX
from rich.filesize import decimal

from fetchproxy.archive import (
    StoredArchive,
    for_executors,
    in_loop,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.config.schema import Config
from fetchproxy.jobs.figures import (
    HISTORY_DAYS_MIN,
    HORIZON_DAYS,
    RATE_DAYS,
    CodecFigures,
    Day,
    PartitionFigures,
    SegmentFigures,
    add_codecs,
    figures_by_day,
    measure_partition,
)
from fetchproxy.jobs.runner import ItemFailure, Report, Runner, StoreWork, not_listed
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.writing.deletion.retention import effective_retention

# Charts are SVG text without scripts or fonts, so the page fetches nothing.

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 12, 12, 28
_TICKS = 4
Figures = Sequence[PartitionFigures]
# Maximum bars of a topic in a chart. For a longer history, each bar is the sum of several days.
BARS_MAX = 60
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}
body{color:#1d2733}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #dfe5ec}
th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto}.bar{fill:#2f6f9f}.ahead{fill:#a9c6dc}.grid{stroke:#e4e9ef}
text{font:11px system-ui,sans-serif;fill:#5a6775}.scale{text-anchor:end}.label{text-anchor:middle}
summary{cursor:pointer}.note{color:#5a6775}
@media (prefers-color-scheme:dark){body{background:#12181f;color:#dde5ee}th,td{border-color:#2a3441}
.grid{stroke:#26303b}text,.note{fill:#93a1b0;color:#93a1b0}.bar{fill:#5fa3d4}.ahead{fill:#2f536e}}
"""
_SUM_NAMES = ["segments", "records", "bytes", "packed to", "oldest", "newest", "a day"]
_NOTES = {
    "{:,} offsets were archived and are in no segment: see verify.": "missing_offsets",
    "{:,} offsets were lost before they could be copied.": "gap_offsets",
    "{:,} offsets are in no segment, and it is not known if they ever were.": "not_known_offsets",
    "{} sampled segments could not be read: run verify for the cause.": "samples_unreadable",
    f"{{}} sampled batches unpack to more than {decimal(SEARCHED_BYTES_MAX)}, too large to unpack "
    "here: the compression figures do not include them.": "samples_too_large",
    "In {} partitions, time-based retention stops at a record with a timestamp in the future.": (
        "held_up"
    ),
}
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
class Bar:
    """`tp`: the tooltip."""

    label: str
    value: float
    tp: str
    is_forecast: bool = False  # a forecast


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """An SVG bar chart of byte sizes."""
    ticks = round_ticks(max((bar.value for bar in bars), default=0.0))
    top = ticks[-1]
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    step = inner_width / max(len(bars), 1)
    parts = [
        f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(title)}</title>",
    ]
    for value in ticks:
        y = _TOP + inner_height * (1 - value / top)
        text = escape(decimal(round(value)))
        ends = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line class="grid" {ends}/>')
        parts.append(f'<text class="scale" x="{_LEFT - 6}" y="{y + 4:.1f}">{text}</text>')
    named_every = max(1, -(-len(bars) // 8))
    for i, bar in enumerate(bars):
        height = inner_height * bar.value / top
        x, y = _LEFT + i * step, _TOP + inner_height - height
        kind = "ahead" if bar.is_forecast else "bar"
        parts.append(
            f'<rect class="{kind}" x="{x + step * 0.1:.1f}" y="{y:.1f}" '
            f'width="{step * 0.8:.1f}" height="{height:.1f}">'
            f"<title>{escape(bar.tp)}</title></rect>"
        )
        if i % named_every == 0:
            middle = x + step / 2
            parts.append(
                f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 8}">{escape(bar.label)}</text>'
            )
    return "".join([*parts, "</svg>"])


def round_ticks(top: float) -> list[float]:
    """A few round numbers from 0 up to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    steps = (factor * 10.0**power for power in count() for factor in (1, 2, 5))
    step = next(step for step in steps if step * _TICKS >= top)
    return [step * i for i in range(_TICKS + 1)]


def page(figures: Figures, now_ms: int) -> str:
    """The HTML page, topics by name. Topics with the same name (created again) are kept apart."""
    body = [
        f"<h1>Archive report</h1><p class=note>{_moment(now_ms)} · {_total(figures)}</p>",
        _topics_table(figures),
    ]
    for _, group in groupby(figures, key=lambda f: (f.tp.topic, f.tp.topic_id)):
        body.append(_topic(list(group)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Archive report</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _total(figures: Figures) -> str:
    size = sum(figure.size_bytes for figure in figures)
    segments = sum(len(partition.archived) for partition in figures)
    records = sum(partition.records for partition in figures)
    return f"{len(figures)} partitions, {segments:,} segments, {records:,} records, {decimal(size)}"


def _topics_table(figures: Figures) -> str:
    rows = []
    for topic, group in groupby(figures, key=lambda f: f.tp.topic):
        topic_figures = list(group)
        rows.append([topic, str(len(topic_figures)), *_sums(topic_figures)])
    return _table(["topic", "partitions", *_SUM_NAMES], rows)


def _sums(figures: Figures) -> list[str]:
    segments = [segment for f in figures for segment in f.archived]
    oldest = [f.oldest_ms for f in figures if f.oldest_ms is not None]
    newest = [f.newest_ms for f in figures if f.newest_ms is not None]
    rates = [f.forecast.bytes_per_day for f in figures if f.forecast.bytes_per_day is not None]
    return [
        f"{len(segments):,}",
        f"{sum(one.records for one in segments):,}",
        decimal(sum(segment.size_bytes for segment in segments)),
        _compression_text(add_codecs(codec for f in figures for codec in f.codecs)),
        _moment(min(oldest)) if oldest else "–",
        _moment(max(newest)) if newest else "–",
        decimal(sum(rates)) if rates else "–",
    ]


def _topic(figures: Figures) -> str:
    tp = figures[0].tp
    segments = [segment for f in figures for segment in f.archived]
    partitions = _table(
        ["partition", *_SUM_NAMES], [[str(f.tp.partition), *_sums([f])] for f in figures]
    )
    return "".join(
        [
            f"<h2>{escape(tp.topic)}</h2><p class=note>topic id {tp.topic_id}</p>",
            _notes(figures),
            "<h3>Archived by day of the newest record</h3>",
            _days_chart(tp.topic, segments),
            f"<h3>Size now and ahead</h3><p class=note>{_forecast_basis(figures)}</p>",
            _size_chart(
                tp.topic, sum(segment.size_bytes for segment in segments), _sizes_ahead(figures)
            ),
            "<h3>Compression</h3>",
            _codec_table(add_codecs(codec for f in figures for codec in f.codecs)),
            f"<details><summary>{len(figures)} partitions</summary>{partitions}</details>",
        ]
    )


def _forecast_basis(figures: Figures) -> str:
    """A sentence about the forecast's history. There is no forecast from hours of history."""
    history_days = [f.forecast.history_days for f in figures if f.forecast.size_bytes is not None]
    if not history_days:
        days = max((f.forecast.history_days for f in figures), default=0.0)
        span = f"{days * 24:.0f} hours" if days < HISTORY_DAYS_MIN else f"{days:.0f} days"
        return (
            f"No forecast: the archive has {span} of history, and a forecast "
            f"needs at least {HISTORY_DAYS_MIN} days."
        )
    shortest, longest = round(min(history_days)), round(max(history_days))
    stands = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    without = len(figures) - len(history_days)
    younger = f" Partitions with less history, counted with their present size: {without}."
    return (
        f"Forecast from the growth in the last {stands} days (all history, at most {RATE_DAYS} "
        f"days) and the configured retention."
        f"{younger if without else ''}"
    )


def _sizes_ahead(figures: Figures) -> list[int]:
    """The total size after each of HORIZON_DAYS. Empty if no partition has a forecast."""
    if all(f.forecast.size_bytes is None for f in figures):
        return []
    sizes = [f.forecast.size_bytes or (f.size_bytes,) * len(HORIZON_DAYS) for f in figures]
    return [sum(sizes_of_day) for sizes_of_day in zip(*sizes, strict=True)]


def _notes(figures: Figures) -> str:
    notes = [
        text.format(number)
        for text, name in _NOTES.items()
        if (number := sum(getattr(f, name) for f in figures))
    ]
    deletions = [d for f in figures if (d := f.forecast.next_deletion_ms) is not None]
    if deletions:
        notes.append(f"Retention will delete the next segment at {_moment(min(deletions))}.")
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


def _days_chart(topic: str, segments: Iterable[SegmentFigures]) -> str:
    bars = [
        Bar(
            str(_date(day.day) or f"day {day.day}"),
            day.size_bytes,
            f"{_date(day.day)}: {decimal(day.size_bytes)}",
        )
        for day in merged_days(figures_by_day(segments))
    ]
    return bar_chart(f"{topic}: bytes by day", bars)


def _size_chart(topic: str, now: int, sizes_ahead: Sequence[int]) -> str:
    bars = [Bar("now", now, f"now: {decimal(now)}")]
    for days, size in zip(HORIZON_DAYS, sizes_ahead, strict=False):
        bars.append(
            Bar(f"+{days} days", size, f"in {days} days: {decimal(size)}", is_forecast=True)
        )
    return bar_chart(f"{topic}: size ahead", bars)


def merged_days(days: Sequence[Day]) -> list[Day]:
    """At most BARS_MAX entries, including empty ones. Each sums up as many days as necessary."""
    if not days:
        return []
    first, last = days[0].day, days[-1].day
    width = -(-(last - first + 1) // BARS_MAX)
    sums = {day_number: Day(day_number, 0, 0, 0) for day_number in range(first, last + 1, width)}
    for day in days:
        day_number = first + (day.day - first) // width * width
        sums[day_number] = sums[day_number].plus(day)
    return list(sums.values())


def _codec_table(codecs: Sequence[CodecFigures]) -> str:
    rows = [
        [
            c.codec,
            f"{c.batches:,}",
            *map(decimal, (c.packed_bytes, c.unpacked_bytes)),
            _compression_text([c]),
        ]
        for c in codecs
    ]
    return _table(["codec (sampled)", "batches", "packed", "unpacked", "packed to"], rows)


def _compression_text(codecs: Sequence[CodecFigures]) -> str:
    packed_bytes, unpacked_bytes = (
        sum(c.packed_bytes for c in codecs),
        sum(c.unpacked_bytes for c in codecs),
    )
    return f"{100 * packed_bytes / unpacked_bytes:.0f} %" if unpacked_bytes else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def _moment(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


@dataclass(frozen=True, slots=True)
class Reported:
    """`frames`: tables by the names of SCHEMAS. `html`: the page."""

    figures: tuple[PartitionFigures, ...]
    frames: dict[str, Any]
    html: str
    failures: tuple[ItemFailure, ...]

    def write(self, folder: Path, parquet: str | None = None) -> None:
        """Write the page to `folder` and the tables below `parquet` (a URI; None: `folder`). A
        second run replaces the files of the first. Raises OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        below = folder.resolve().as_uri() if parquet is None else parquet.rstrip("/")
        for name, frame in self.frames.items():
            if isinstance(frame, list):
                write_table(frame, SCHEMAS[name], f"{below}/{name}")
            else:
                frame.coalesce(1).write.mode("overwrite").parquet(f"{below}/{name}")
        draft = folder / ".report.html"
        draft.write_text(self.html, encoding="utf-8")
        os.replace(draft, folder / "report.html")


def report(runner: Runner, config: Config, *, topic: str | None = None) -> Reported:
    """The report on `topic` (None: on all topics). Raises as `verify`."""
    tps, unlisted = in_loop(stored_partitions(config, topic))
    now_ms = wall_clock_ms()
    outcome = runner.each(tps, report_work(config, now_ms))
    failures = (*not_listed(unlisted), *outcome.failures)
    by_name = sorted(outcome.results, key=lambda f: (f.tp.topic, f.tp.topic_id, f.tp.partition))
    figures = tuple(by_name)
    rows = table_rows(figures)
    frames = {name: runner.frame(rows[name], SCHEMAS[name]) for name in SCHEMAS}
    return Reported(figures, frames, page(figures, now_ms), failures)


def report_work(
    config: Config, now_ms: int
) -> StoreWork[StoredArchive, TopicIdPartition, PartitionFigures]:
    """Fails with RemoteStorageError."""
    config = for_executors(config)
    measure, open_archive = partial(_measure, config, now_ms), partial(stored_archive, config)
    return StoreWork("report", open_archive, measure, size=lambda figures: figures.size_bytes)


async def _measure(
    config: Config, now_ms: int, archive: StoredArchive, tp: TopicIdPartition, on_progress: Report
) -> PartitionFigures:
    """Uses the retention of `archive.*`. Only brokers know a topic's own, and none is asked."""
    retention = effective_retention(config.archive, tp.topic, None)
    with each_object_alone():
        return await measure_partition(archive.storage, archive.rlmm, tp, retention, now_ms)


def write_table(rows: Sequence[tuple[Any, ...]], schema: str, place: str) -> None:
    """Write a table as Parquet, like Spark. Raises OSError, ConfigError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fetchproxy.jobs.backfill_files import OutputFolder

    types = {"string": "string", "int": "int32", "bigint": "int64", "double": "float64"}
    types["date"] = "date32"
    columns = [(name, types[kind]) for name, kind in map(str.split, schema.split(","))]
    fields = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns])
    rows_by_name = [dict(zip(fields.names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(rows_by_name, fields)
    folder = OutputFolder(place)
    path = folder.path("")
    folder.fs.create_dir(path, recursive=True)
    folder.fs.delete_dir_contents(path)
    pq.write_table(table, folder.path("part-0.parquet"), filesystem=folder.fs)


def table_rows(figures: Iterable[PartitionFigures]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows by the names of SCHEMAS."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
    no_sizes = (None,) * len(HORIZON_DAYS)
    for figure in figures:
        tp, ahead = figure.tp, figure.forecast
        rows["partitions"].append(
            (
                *(
                    tp.topic,
                    str(tp.topic_id),
                    tp.partition,
                    len(figure.archived),
                    figure.size_bytes,
                ),
                *(
                    figure.records,
                    figure.log_start_offset,
                    figure.log_end_offset,
                    figure.gap_offsets,
                ),
                *(
                    figure.missing_offsets,
                    figure.not_known_offsets,
                    figure.oldest_ms,
                    figure.newest_ms,
                ),
                *(ahead.history_days, ahead.bytes_per_day, *(ahead.size_bytes or no_sizes)),
                *(ahead.next_deletion_ms, figure.samples_unreadable),
            )
        )
        rows["days"] += [
            (tp.topic, tp.partition, _date(day.day), day.size_bytes, day.records, day.segments)
            for day in figures_by_day(figure.archived)
        ]
        rows["codecs"] += [
            (tp.topic, tp.partition, c.codec, c.batches, c.packed_bytes, c.unpacked_bytes)
            for c in figure.codecs
        ]
    return rows


def _date(day: int) -> date | None:
    """None: out of range, as producers may set any timestamp."""
    try:
        return date(1970, 1, 1) + timedelta(days=day)
    except OverflowError:
        return None
