"""The report as one HTML page that needs nothing else. Pure: figures in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from html import escape
from itertools import groupby

from rich.filesize import decimal

from fetchproxy.pipeline.jobs.charts import Bar, bar_chart, round_ticks
from fetchproxy.pipeline.jobs.forecast import HISTORY_DAYS_MIN, HORIZON_DAYS, RATE_DAYS, Forecast
from fetchproxy.pipeline.jobs.partition_figures import (
    CodecFigures,
    Day,
    Held,
    PartitionFigures,
    add_codecs,
    by_day,
)

Figures = Sequence[tuple[PartitionFigures, Forecast]]

# Of one topic in a chart; before that, days are added up into months' worth.
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


def page(figures: Figures, now_ms: int) -> str:
    """A whole document. Topics by name; two of one name (created again) are apart."""
    body = [
        f"<h1>Archive report</h1><p class=note>{_moment(now_ms)} · {_total(figures)}</p>",
        _topics_table(figures),
    ]
    for (topic, topic_id), group in groupby(
        figures, key=lambda f: (f[0].tip.topic, f[0].tip.topic_id)
    ):
        body.append(_topic(topic, str(topic_id), list(group)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Archive report</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _total(figures: Figures) -> str:
    size = sum(one.size_bytes for one, _ in figures)
    segments = sum(len(one.held) for one, _ in figures)
    records = sum(one.records for one, _ in figures)
    return f"{len(figures)} partitions, {segments:,} segments, {records:,} records, {decimal(size)}"


def _topics_table(figures: Figures) -> str:
    rows = []
    for topic, group in groupby(figures, key=lambda f: f[0].tip.topic):
        of_topic = list(group)
        rows.append([topic, str(len(of_topic)), *_sums(of_topic)])
    return _table(["topic", "partitions", *_SUM_NAMES], rows)


_SUM_NAMES = ["segments", "records", "bytes", "packed to", "oldest", "newest", "a day"]


def _sums(figures: Figures) -> list[str]:
    held = [one for f, _ in figures for one in f.held]
    oldest = [f.oldest_ms for f, _ in figures if f.oldest_ms is not None]
    newest = [f.newest_ms for f, _ in figures if f.newest_ms is not None]
    return [
        f"{len(held):,}",
        f"{sum(one.records for one in held):,}",
        decimal(sum(one.size_bytes for one in held)),
        _packed(add_codecs(codec for f, _ in figures for codec in f.codecs)),
        _moment(min(oldest)) if oldest else "–",
        _moment(max(newest)) if newest else "–",
        _rate([ahead for _, ahead in figures]),
    ]


def _rate(ahead: Sequence[Forecast]) -> str:
    known = [one.bytes_per_day for one in ahead if one.bytes_per_day is not None]
    return decimal(sum(known)) if known else "–"


def _topic(topic: str, topic_id: str, figures: Figures) -> str:
    held = [one for f, _ in figures for one in f.held]
    partitions = _table(
        ["partition", *_SUM_NAMES],
        [[str(f.tip.partition), *_sums([(f, a)])] for f, a in figures],
    )
    return "".join(
        [
            f"<h2>{escape(topic)}</h2><p class=note>topic id {escape(topic_id)}</p>",
            _notes(figures),
            "<h3>Archived by day of the newest record</h3>",
            _days_chart(topic, held),
            f"<h3>Size now and ahead</h3><p class=note>{_stands_on(figures)}</p>",
            _size_chart(topic, sum(one.size_bytes for one in held), _sizes_ahead(figures)),
            "<h3>Compression</h3>",
            _codec_table(add_codecs(codec for f, _ in figures for codec in f.codecs)),
            f"<details><summary>{len(figures)} partitions</summary>{partitions}</details>",
        ]
    )


def _stands_on(figures: Figures) -> str:
    """How much history the forecast has; none is made of hours."""
    known = [ahead.history_days for _, ahead in figures if ahead.size_bytes is not None]
    without = len(figures) - len(known)
    if not known:
        longest = max((ahead.history_days for _, ahead in figures), default=0.0)
        return (
            f"No forecast: the archive has {_duration(longest)} of history, and fewer than "
            f"{HISTORY_DAYS_MIN} days say nothing of what comes."
        )
    least, most = round(min(known)), round(max(known))
    stands = f"{least}" if least == most else f"{least} to {most}"
    younger = f" Partitions with less history, taken as they are now: {without}."
    lacks = younger if without else ""
    return (
        f"If it goes on as in the last {stands} days, which is the history there is (at most "
        f"{RATE_DAYS} days count), with the retention that is configured.{lacks}"
    )


def _duration(days: float) -> str:
    return f"{days * 24:.0f} hours" if days < HISTORY_DAYS_MIN else f"{days:.0f} days"


def _sizes_ahead(figures: Figures) -> list[int]:
    """None where no partition has a forecast."""
    if all(ahead.size_bytes is None for _, ahead in figures):
        return []
    sizes = [ahead.size_bytes or (f.size_bytes,) * len(HORIZON_DAYS) for f, ahead in figures]
    return [sum(at) for at in zip(*sizes, strict=True)]


def _notes(figures: Figures) -> str:
    notes = []
    missing = sum(f.missing_offsets for f, _ in figures)
    if missing:
        notes.append(f"{missing:,} offsets were archived and are in no segment: see verify.")
    gaps = sum(f.gap_offsets for f, _ in figures)
    if gaps:
        notes.append(f"{gaps:,} offsets were lost before they could be copied.")
    not_known = sum(f.not_known_offsets for f, _ in figures)
    if not_known:
        notes.append(
            f"{not_known:,} offsets are in no segment, and nothing says if they ever were."
        )
    unreadable = sum(f.samples_unreadable for f, _ in figures)
    if unreadable:
        notes.append(f"{unreadable} sampled segments could not be read: verify says what it is.")
    deletions = [a.next_deletion_ms for _, a in figures if a.next_deletion_ms is not None]
    if deletions:
        notes.append(f"Retention takes the next segment at {_moment(min(deletions))}.")
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


def _days_chart(topic: str, held: Iterable[Held]) -> str:
    bars = [
        Bar(_date(day.day), day.size_bytes, f"{_date(day.day)}: {decimal(day.size_bytes)}")
        for day in fewer(by_day(held))
    ]
    return bar_chart(f"{topic}: bytes by day", bars, _byte_ticks(bar.value for bar in bars))


def _size_chart(topic: str, now: int, ahead: Sequence[int]) -> str:
    bars = [Bar("now", now, f"now: {decimal(now)}")]
    for days, size in zip(HORIZON_DAYS, ahead, strict=False):
        bars.append(Bar(f"+{days} days", size, f"in {days} days: {decimal(size)}", ahead=True))
    return bar_chart(f"{topic}: size ahead", bars, _byte_ticks(bar.value for bar in bars))


def _byte_ticks(values: Iterable[float]) -> list[tuple[float, str]]:
    return [(tick, decimal(round(tick))) for tick in round_ticks(max(values, default=0.0))]


def fewer(days: Sequence[Day], bars_max: int = BARS_MAX) -> list[Day]:
    """As many at most, each then of so many days that all have their place; empty ones too."""
    if not days:
        return []
    first, last = days[0].day, days[-1].day
    width = -(-(last - first + 1) // bars_max)
    sums = {at: [0, 0, 0] for at in range(first, last + 1, width)}
    for day in days:
        total = sums[first + (day.day - first) // width * width]
        total[0] += day.size_bytes
        total[1] += day.records
        total[2] += day.segments
    return [Day(at, *total) for at, total in sums.items()]


def _codec_table(codecs: Sequence[CodecFigures]) -> str:
    rows = [
        [c.codec, f"{c.batches:,}", *map(decimal, (c.packed_bytes, c.unpacked_bytes)), _packed([c])]
        for c in codecs
    ]
    return _table(["codec (sampled)", "batches", "packed", "unpacked", "packed to"], rows)


def _packed(codecs: Sequence[CodecFigures]) -> str:
    packed, unpacked = sum(c.packed_bytes for c in codecs), sum(c.unpacked_bytes for c in codecs)
    return f"{100 * packed / unpacked:.0f} %" if unpacked else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def _date(day: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    except OverflowError:
        return f"day {day}"


def _moment(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
