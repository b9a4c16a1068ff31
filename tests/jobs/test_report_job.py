"""The report's figures against archives of which everything is known; the page as a document."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import legal_logs
import pyarrow.dataset as ds
import pytest
from fetchproxy_protocol.record_batch import HEADER_BYTES, SEARCHED_BYTES_MAX
from planted_archive import TP, PlantedArchive, batch, flip
from retention_segments import segment
from stored_archives import config_of, planted

from fetchproxy.jobs.figures import (
    DAY_MS,
    SAMPLED_SEGMENTS_MAX,
    CodecFigures,
    Day,
    PartitionFigures,
    SegmentFigures,
    figures_by_day,
    figures_of,
    forecast,
    sample_codecs,
    spread_evenly,
)
from fetchproxy.jobs.report import (
    BARS_MAX,
    SCHEMAS,
    Bar,
    bar_chart,
    merged_days,
    page,
    report,
    report_work,
    round_ticks,
    table_rows,
    write_table,
)
from fetchproxy.jobs.runner import Here
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.writing.deletion.retention import Retention

NOW_MS = 20_000 * DAY_MS


def segments_of_days(*days_ago: float, size: int = 280) -> list[SegmentFigures]:
    return [SegmentFigures(round(NOW_MS - ago * DAY_MS), size, 10) for ago in days_ago]


# --- what is held ---
def test_each_offset_counts_once() -> None:
    every = [segment(1, 0, 99), segment(2, 80, 179), segment(3, 200, 249)]
    view = build_view(TP, every, 0.0, raised_log_start=50)
    figures = figures_of(view)
    assert [h.records for h in figures] == [50, 80, 50]
    assert [h.size_bytes for h in figures] == [50, 80, 50]


def test_days_are_those_of_the_newest_record() -> None:
    days = figures_by_day(
        [SegmentFigures(DAY_MS - 1, 5, 1), SegmentFigures(DAY_MS, 6, 2), SegmentFigures(0, 7, 3)]
    )
    assert days == (Day(0, 12, 4, 2), Day(1, 6, 2, 1))


def test_samples_are_spread_over_the_partition() -> None:
    assert list(spread_evenly(3, 16)) == [0, 1, 2]
    chosen = list(spread_evenly(1_000, SAMPLED_SEGMENTS_MAX))
    assert len(chosen) == SAMPLED_SEGMENTS_MAX
    assert (chosen[0], chosen[-1]) == (0, 999)


def test_batches_that_are_cut_at_the_samples_end_do_not_count() -> None:
    one = batch(0)
    body = len(one) - HEADER_BYTES
    assert sample_codecs(one + batch(10)[:-1]) == ((CodecFigures("none", 1, body, body),), 0)


def test_a_batch_that_is_too_large_to_unpack_is_left_out_of_the_sample_and_counted() -> None:
    records = (legal_logs.Record(0, NOW_MS, b"", bytes(SEARCHED_BYTES_MAX)),)
    one = legal_logs.Batch(0, 0, records, NOW_MS, NOW_MS, codec=legal_logs.ZSTD)
    small = batch(1)
    sampled, too_large = sample_codecs(legal_logs.sealed(one).content + small)
    assert [(f.codec, f.batches) for f in sampled] == [("none", 1)]
    assert too_large == 1
    topic_figures = replace(figures("orders", 0, segments_of_days(1)), samples_too_large=too_large)
    assert "1 sampled batches unpack to more than 33.6 MB" in page([topic_figures], NOW_MS)


# --- ahead ---
def test_a_batch_without_records_may_name_any_codec() -> None:
    empty = legal_logs.sealed(legal_logs.Batch(5, 4, (), -1, -1, codec=legal_logs.ZSTD))
    assert sample_codecs(empty.content) == ((CodecFigures("zstd", 1, 0, 0),), 0)


def test_growth_is_the_mean_of_four_weeks() -> None:
    rates = [
        forecast(segments_of_days(*days_ago), Retention(), NOW_MS).bytes_per_day
        for days_ago in ((40, 35, 20, 10, 1), (40, 35))
    ]
    assert rates == [280 * 3 / 28, 0]


def test_a_young_archive_grows_as_it_has_grown_so_far() -> None:
    assert forecast(segments_of_days(4, 2, 0), Retention(), NOW_MS).bytes_per_day == 280 * 3 / 4


@pytest.mark.parametrize("days_ago", [(0.1, 0.0), (1.9, 1.0, 0.0), (0.0,), ()])
def test_hours_of_history_give_no_forecast(days_ago: tuple[float, ...]) -> None:
    ahead = forecast(segments_of_days(*days_ago), Retention(remote_ms=DAY_MS), NOW_MS)
    assert ahead.history_days == pytest.approx(max(days_ago, default=0.0))
    assert (ahead.bytes_per_day, ahead.size_bytes) == (None, None)


def test_a_forecast_says_what_it_stands_on() -> None:
    assert forecast(segments_of_days(40, 0), Retention(), NOW_MS).history_days == 28
    assert forecast(segments_of_days(3, 0), Retention(), NOW_MS).history_days == 3
    for days, reason in (
        ([3, 3], "the growth in the last 3 days"),
        ([3, 40], "the growth in the last 3 to 28 days"),
        ([0.5, 0.25], "No forecast: the archive has 12 hours of history"),
        ([0.5, 3], "Partitions with less history, counted with their present size: 1."),
    ):
        every = [figures("t", i, segments_of_days(ago, 0)) for i, ago in enumerate(days)]
        text = page(every, NOW_MS)
        assert reason in text
        assert ("+30 days" in text) == ("No forecast" not in reason)


def test_without_retention_it_only_grows() -> None:
    ahead = forecast(segments_of_days(28, 14, 0), Retention(), NOW_MS)
    assert ahead.bytes_per_day == 30
    assert ahead.size_bytes == (840 + 900, 840 + 2_700, 840 + 10_950)
    assert ahead.next_deletion_ms is None


def test_retention_by_time_takes_what_is_old_and_holds_what_comes() -> None:
    ahead = forecast(segments_of_days(28, 14, 0), Retention(remote_ms=35 * DAY_MS), NOW_MS)
    # In 30 days nothing older than five days of today is left, later nothing of today.
    assert ahead.size_bytes == (280 + 900, 30 * 35, 30 * 35)
    assert ahead.next_deletion_ms == NOW_MS + 7 * DAY_MS


def test_retention_by_bytes_is_a_lid() -> None:
    ahead = forecast(segments_of_days(28, 14, 0), Retention(remote_bytes=2_000), NOW_MS)
    assert ahead.size_bytes == (1_740, 2_000, 2_000)


def test_the_newest_segment_is_never_due() -> None:
    assert forecast(segments_of_days(5), Retention(remote_ms=1), NOW_MS).next_deletion_ms is None


# --- the job's parts ---
@pytest.fixture
def archive(tmp_path: Path) -> PlantedArchive:
    async def plant() -> PlantedArchive:
        made = planted(tmp_path)
        await made.add([batch(0, timestamp=NOW_MS - 9), batch(10, timestamp=NOW_MS)])
        broken = await made.add([batch(20, timestamp=NOW_MS)])
        await made.add([batch(40, timestamp=NOW_MS + DAY_MS)])
        await made.change(broken, SegmentFile.LOG, flip(16))
        return made

    return asyncio.run(plant())


def test_what_an_executor_measures(archive: PlantedArchive, tmp_path: Path) -> None:
    measured = report_work(config_of(tmp_path), NOW_MS)(TP)
    assert measured.records == 40
    assert measured.size_bytes == sum(s.segment_size_bytes for s in archive.segments)
    assert (measured.log_start_offset, measured.log_end_offset, measured.gap_offsets) == (0, 50, 0)
    assert (measured.missing_offsets, measured.not_known_offsets) == (10, 0)
    assert measured.samples_unreadable == 1
    assert [(c.codec, c.batches) for c in measured.codecs] == [("none", 3)]
    assert measured.newest_ms == NOW_MS + DAY_MS + 9


def test_rows_fit_their_schemas(archive: PlantedArchive, tmp_path: Path) -> None:
    config = config_of(tmp_path, archive__remote_log_retention_ms=str(DAY_MS))
    measured = report_work(config, NOW_MS)(TP)
    rows = table_rows([measured])
    for name, schema in SCHEMAS.items():
        assert rows[name]
        assert {len(row) for row in rows[name]} == {len(schema.split(", "))}
    names = [column.split()[0] for column in SCHEMAS["partitions"].split(", ")]
    row = dict(zip(names, rows["partitions"][0], strict=True))
    assert (row["segments"], row["records"], row["missing_offsets"]) == (3, 40, 10)
    assert row["next_deletion_ms"] == measured.oldest_ms + DAY_MS  # type: ignore[operator]
    assert [day[2].isoformat() for day in rows["days"]] == ["2024-10-04", "2024-10-05"]


# --- the page ---
class Links(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe"):
            self.links.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def figures(topic: str, partition: int, segments: list[SegmentFigures]) -> PartitionFigures:
    return PartitionFigures(
        TopicIdPartition(UUID(int=1), topic, partition),
        0,
        10 * len(segments),
        7,
        3,
        1,
        tuple(segments),
        (CodecFigures("zstd", 3, 100, 400),),
        1,
        forecast(segments, Retention(), NOW_MS),
    )


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    long, short = segments_of_days(*range(100, 0, -1)), segments_of_days(3, 2, 1)
    every = [figures("a<b>", 0, long), figures("a<b>", 1, short), figures("none", 0, [])]
    text = page(every, NOW_MS)
    links = Links()
    links.feed(text)
    assert links.links == []
    assert "a&lt;b&gt;" in text
    assert "a<b>" not in text
    assert "14 offsets were lost" in text
    assert "6 offsets were archived and are in no segment" in text
    assert "2 offsets are in no segment, and it is not known" in text
    assert "25 %" in text
    for chart in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + chart.split("</svg>")[0] + "</svg>")
    assert text.count("<svg") == 2 * 2  # of each topic


def test_any_timestamp_is_reported(tmp_path: Path) -> None:
    times = [2**63 - 1, -1, NOW_MS, 2**62]
    segments = [SegmentFigures(time, 100, 10) for time in times]
    ahead = forecast(segments, Retention(10 * DAY_MS, -1), NOW_MS)
    assert ahead.next_deletion_ms is None
    one = replace(figures("orders", 0, segments), forecast=ahead)
    page([one], NOW_MS)
    for name, rows in table_rows([one]).items():
        write_table(rows, SCHEMAS[name], str(tmp_path / name))
        assert len(ds.dataset(tmp_path / name).to_table()) == len(rows)


def test_a_bar_is_as_high_as_its_value() -> None:
    chart = bar_chart("t", [Bar("a", 50, "x"), Bar("b", 100, "y")])
    heights = [
        float(rect.attrib["height"])
        for rect in ElementTree.fromstring(chart).iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert heights == pytest.approx([45, 90])


def test_many_days_share_bars_and_none_is_lost() -> None:
    days = [Day(day, 1, 2, 3) for day in range(0, 1_000, 7)]
    bars = merged_days(days)
    assert len(bars) <= BARS_MAX
    assert sum(day.size_bytes for day in bars) == len(days)
    assert merged_days([]) == []
    assert merged_days(days[:2]) == [
        Day(0, 1, 2, 3),
        *(Day(d, 0, 0, 0) for d in range(1, 7)),
        days[1],
    ]


def test_a_scale_reaches_the_largest() -> None:
    for top in (0.5, 1, 7, 999, 1_000, 123_456_789, 5e12):
        ticks = round_ticks(top)
        assert ticks[-1] >= top
        assert len(ticks) == 5
    assert round_ticks(0) == [0.0, 1.0]


def test_the_tables_without_spark(archive: PlantedArchive, tmp_path: Path) -> None:
    outcome = report(Here(), config_of(tmp_path))
    for _ in range(2):
        outcome.write(tmp_path / "out")
        for name, rows in table_rows(outcome.figures).items():
            table = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
            names = [column.split()[0] for column in SCHEMAS[name].split(",")]
            assert table.column_names == names
            assert [tuple(row.values()) for row in table.to_pylist()] == rows
    assert (tmp_path / "out/report.html").read_text() == outcome.html
