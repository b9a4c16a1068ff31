"""Archived records as Parquet: all of them, each once, however often and by how many it is run."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import legal_logs
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from made_batches import CODECS, Record, made_batch, marker
from written_archive import TP, WrittenArchive

from fetchproxy.errors import ConfigError, ObjectNotFound
from fetchproxy.jobs import backfill_files as parquet_range
from fetchproxy.jobs.backfill import Target, backfill, backfill_range, plan_backfill, too_large_in
from fetchproxy.jobs.backfill_files import (
    OPEN_DATES_MAX,
    Manifest,
    OutputFolder,
    day_name,
    rows_by_day,
)
from fetchproxy.jobs.backfill_plan import BackfillRange
from fetchproxy.jobs.runner import ItemFailure, attempt
from fetchproxy.model import AbortedTxn, TopicIdPartition
from fetchproxy.remotelog.decoder.arrow_batches import arrow_schema
from fetchproxy.remotelog.file_names import file_stem
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.task_reader import SkippedRecords
from fetchproxy.segments.object_keys import SegmentFile

DAY_MS = 86_400_000
START_MS = 19_000 * DAY_MS
HOUR_MS = 3_600_000


def record(offset: int, timestamp: int | None = None) -> Record:
    """An hour after the one before it; every tenth has headers, some no key or no value."""
    return Record(
        None if offset % 7 == 0 else b"k%d" % offset,
        None if offset % 11 == 0 else b"v%d" % offset,
        START_MS + offset * HOUR_MS if timestamp is None else timestamp,
        (("h", b"%d" % offset), ("n", None)) if offset % 10 == 0 else (),
    )


def batches(base: int, count: int = 10) -> list[bytes]:
    return [
        made_batch(at, [record(o) for o in range(at, at + 10)], codec=CODECS[at // 10 % 5])
        for at in range(base, base + count * 10, 10)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Offsets 0 to 299 in three segments, over thirteen days."""
    made = WrittenArchive(tmp_path / "archive")
    for base in (0, 100, 200):
        made.add(batches(base))
    return made


def target(archive: WrittenArchive, out: Path, **options: str) -> Target:
    source = parse_options({"store": archive.url, "topics": "orders", **options})
    return Target(source, OutputFolder(str(out)), "snappy")


def run(to: Target, range_bytes_max: int = 1_500) -> list[Manifest]:
    """As the job does it, one task after another."""
    tasks = plan_backfill(to, range_bytes_max).tasks
    return [backfill_range(to, task) for task in tasks]


def rows(out: Path) -> list[dict[str, Any]]:
    """As a reader of partitioned Parquet finds them, by offset."""
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["offset"])


def files(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and "plan-" not in path.name
    }


def expected(offset: int) -> dict[str, Any]:
    made = record(offset)
    at = datetime.fromtimestamp(made.timestamp / 1000, UTC)
    return {
        "key": made.key,
        "value": made.value,
        "partition": 0,
        "offset": offset,
        "timestamp": at,
        "timestampType": 0,
        "headers": [{"key": k, "value": v} for k, v in made.headers] or None,
        "topic": "orders",
        "topic_folder": "orders",
        "date": at.date().isoformat(),
    }


def dated(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "date": str(row["date"])}


def test_every_record_with_all_that_it_has(archive: WrittenArchive, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = run(target(archive, out))
    assert [dated(row) for row in rows(out)] == [expected(offset) for offset in range(300)]
    assert len(outcome) > 5
    assert sum(manifest.rows for manifest in outcome) == 300
    for manifest in outcome:
        for file in manifest.files:
            assert file.path.startswith("topic_folder=orders/date=")
            assert (out / file.path).stat().st_size == file.size_bytes
    assert not list((out / "_backfill/parts").iterdir())


def test_a_second_run_adds_nothing_and_a_later_one_what_is_new(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    to = target(archive, out)
    run(to)
    before = files(out)
    assert run(to) == []
    assert files(out) == before
    archive.add(batches(300, 3))
    assert sum(manifest.rows for manifest in run(to)) == 30
    assert [row["offset"] for row in rows(out)] == list(range(330))


def test_a_run_that_was_killed_anywhere_goes_on(archive: WrittenArchive, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    run(target(archive, clean))
    killed = target(archive, tmp_path / "out")
    tasks = plan_backfill(killed, 1_500).tasks
    for number, task in enumerate(tasks):
        if number % 3 == 0:
            backfill_range(killed, task)
        elif number % 3 == 1:
            with pytest.raises(KeyboardInterrupt):
                backfill_range(_dying(killed, number), task)
    # Meanwhile all has been merged into one segment: what is left is still what was planned.
    for path in archive.folder.rglob("*"):
        if path.is_file() and path.name.startswith("0"):
            path.unlink()
    archive.add([b for base in (0, 100, 200) for b in batches(base)])
    planned = plan_backfill(killed, 700)
    tasks_left = planned.tasks
    assert planned.ranges_before == len(tasks[::3])
    assert {task.range for task in tasks_left} == {
        task.range for i, task in enumerate(tasks) if i % 3
    }
    for task in tasks_left:
        backfill_range(killed, task)
    killed.folder.remove_parts()
    assert files(tmp_path / "out") == files(clean)


def _dying(to: Target, number: int) -> Target:
    """Its folder dies at one step of writing or another."""
    steps = ("publish", "put_manifest", "part")

    class Dying(OutputFolder):
        pass

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    setattr(Dying, steps[number // 3 % len(steps)], die)
    return Target(to.options, Dying(to.folder.place), to.compression)


def test_two_that_write_the_same_range_at_once(archive: WrittenArchive, tmp_path: Path) -> None:
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 1_500).tasks
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(partial(backfill_range, to), [t for task in tasks for t in (task, task)]))
    assert [row["offset"] for row in rows(tmp_path / "out")] == list(range(300))


def test_two_runs_that_plan_at_once_have_one_plan(archive: WrittenArchive, tmp_path: Path) -> None:
    to = target(archive, tmp_path / "out")
    number, _ = to.folder.last_plan()
    tasks = plan_backfill(to, 1_500).tasks
    other = plan_backfill(to, 900).tasks  # has found the first one's plan
    assert other == tasks
    _, plan = to.folder.last_plan()
    assert plan is not None
    late = to.folder.add_plan(number + 1, type(plan)(plan.settings, plan.ranges[:1]))
    assert late == plan


def test_read_committed_leaves_out_what_was_aborted(tmp_path: Path) -> None:
    archive = WrittenArchive(tmp_path / "archive")
    aborted = made_batch(0, [record(o) for o in range(10)], producer_id=7, transactional=True)
    committed = made_batch(
        11, [record(o) for o in range(11, 20)], producer_id=8, transactional=True
    )
    log = [aborted, marker(10, 7, 0), committed, marker(20, 8, 1)]
    archive.add(log, aborted=[AbortedTxn(0, 10, 7, 11)])
    run(target(archive, tmp_path / "all"))
    run(target(archive, tmp_path / "committed", isolationLevel="read_committed"))
    offsets_by_run = [
        [row["offset"] for row in rows(tmp_path / name)] for name in ("all", "committed")
    ]
    assert offsets_by_run == [[*range(10), *range(11, 20)], list(range(11, 20))]
    with pytest.raises(ConfigError, match="the output was begun with"):
        plan_backfill(target(archive, tmp_path / "committed"), 1_500)


def test_a_range_without_rows_is_done_too(tmp_path: Path) -> None:
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([marker(0, 7, 1)])
    to = target(archive, tmp_path / "out")
    (manifest,) = run(to)
    assert (manifest.rows, manifest.files) == (0, ())
    assert run(to) == []


def test_a_corrupt_segment_is_named_and_its_range_has_nothing(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    log = bytearray(path.read_bytes())
    log[-5] ^= 0xFF
    path.write_bytes(log)
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 1_500).tasks
    outcome = [attempt(partial(backfill_range, to), task, task.range.name) for task in tasks]
    (failure,) = [one for one in outcome if isinstance(one, ItemFailure)]
    broken = tasks[outcome.index(failure)]
    assert failure.name == broken.range.name
    assert not failure.retriable
    assert path.name in failure.error
    offsets_written = {row["offset"] for row in rows(tmp_path / "out")}
    assert offsets_written == set(range(300)) - set(range(broken.range.first, broken.range.end))
    assert not list((tmp_path / "out/_backfill/parts").iterdir())


def test_what_was_skipped_is_written_once_it_is_mended(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    """Also where a run that does it again is killed between two files."""
    out = tmp_path / "out"
    to = target(archive, out, corruptBatches="skip", failOnDataLoss="false")
    clean = tmp_path / "clean"
    run(target(archive, clean, corruptBatches="skip"))
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    missing = archive.path(archive.segments[2], SegmentFile.LOG)
    sound, gone = path.read_bytes(), missing.read_bytes()
    path.write_bytes(sound[:-5] + bytes([sound[-5] ^ 0xFF]) + sound[-4:])
    missing.unlink()
    outcome = run(to)
    assert sum(m.skipped_records for m in outcome) == 300 - len(rows(out)) == 110
    assert sum(m.faults for m in outcome) == 3  # a batch, and the log in each of its two ranges
    again = run(to)  # as it is still damaged: the same, and nothing else is done again
    assert again == [m for m in outcome if not m.is_whole]
    path.write_bytes(sound)
    missing.write_bytes(gone)
    for task in plan_backfill(to, 1_500).tasks:
        with pytest.raises(KeyboardInterrupt):
            backfill_range(_dying(to, 0), task)
    assert sum(m.skipped_records for m in run(to)) == 0
    assert run(to) == []
    to.folder.remove_parts()
    assert files(out) == files(clean)


def test_a_batch_that_is_too_large_is_named_and_the_rest_of_its_range_is_written(
    tmp_path: Path,
) -> None:
    archive = WrittenArchive(tmp_path / "archive")
    large = [made_batch(at, [Record(value=bytes(20_000))] * 5, codec=4) for at in (10, 15)]
    archive.add([*batches(0, 1), *large, *batches(20, 1)])
    out = tmp_path / "out"
    limited = target(archive, out, maxUnpackedBytes="100000")
    for _ in range(2):
        [outcome] = run(limited)
        [failure] = too_large_in(limited.options, [outcome])
        assert "offsets 10 to 14, 15 to 19 of orders-0 are left out" in failure.error
        assert "too large to unpack here" in failure.error
        assert "maxUnpackedBytes=100000 " in failure.error
        assert [row["offset"] for row in rows(out)] == [*range(10), *range(20, 30)]
        assert (outcome.rows, outcome.faults, outcome.is_whole) == (20, 0, False)
    lenient = target(archive, out, maxUnpackedBytes="100000", failOnDataLoss="false")
    [outcome] = run(lenient)
    assert not list(too_large_in(lenient.options, [outcome]))
    assert (outcome.skipped_records, outcome.faults) == (10, 2)
    [outcome] = run(target(archive, out))  # with more memory
    assert outcome.is_whole
    assert [row["offset"] for row in rows(out)] == list(range(30))
    assert run(target(archive, out)) == []


def test_files_that_a_mended_range_has_not_any_more_go(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    """What is closed when, and so how many files a date has, depends on all that is written."""
    to = target(archive, tmp_path / "out", corruptBatches="skip")
    one = plan_backfill(to, 10**9).tasks[0].range
    days = [START_MS + day * DAY_MS for day in range(OPEN_DATES_MAX + 1)]
    for batches_of, faults in (([days, days], 1), ([days], 0)):
        before = to.folder.manifest(one.name)
        made = [batch_of(times) for times in batches_of]
        skipped_records = SkippedRecords(faults=faults)
        done = parquet_range.write_range(to.folder, one, made, "snappy", skipped_records, before)
        there = {p.relative_to(tmp_path / "out").as_posix() for p in parquet_of(tmp_path / "out")}
        assert there == {file.path for file in done.files}


def parquet_of(out: Path) -> list[Path]:
    return list(out.rglob("*.parquet"))


def test_a_hole_is_in_no_range_and_is_filled_once_it_is_mended(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    metadata = archive.path(archive.segments[1], SegmentFile.METADATA)
    content = metadata.read_bytes()
    metadata.unlink()
    to = target(archive, tmp_path / "out", failOnDataLoss="false")
    run(to, 10**9)
    assert [row["offset"] for row in rows(tmp_path / "out")] == [*range(100), *range(200, 300)]
    metadata.write_bytes(content)
    assert [m.rows for m in run(to, 10**9)] == [100]
    assert [row["offset"] for row in rows(tmp_path / "out")] == list(range(300))


def test_a_partition_with_a_hole_stops_no_other(archive: WrittenArchive, tmp_path: Path) -> None:
    other = TopicIdPartition(TP.topic_id, TP.topic, 1)
    archive.add(batches(0), tp=other)
    archive.path(archive.segments[1], SegmentFile.METADATA).unlink()
    planned = plan_backfill(target(archive, tmp_path / "out"), 10**9)
    assert [(f.name, f.error) for f in planned.left_out] == [
        (
            "orders-0",
            "offsets 100 to 199 are in no segment, and it is not known if they ever were; with "
            "failOnDataLoss=false it is skipped",
        )
    ]
    assert {task.range.partition for task in planned.tasks} == {1}
    planned = plan_backfill(target(archive, tmp_path / "out", failOnDataLoss="false"), 10**9)
    assert planned.left_out == ()
    assert {task.range.partition for task in planned.tasks} == {0, 1}


def test_an_index_that_is_gone_fails_the_ranges_of_its_segment(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    archive.path(archive.segments[1], SegmentFile.INDEX).unlink()
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 1_500).tasks
    failed = [
        task.range.first
        for task in tasks
        if isinstance(attempt(partial(backfill_range, to), task, task.range.name), ItemFailure)
    ]
    assert failed == [task.range.first for task in tasks if 100 <= task.range.first < 200]
    assert {row["offset"] for row in rows(tmp_path / "out")} == {*range(100), *range(200, 300)}


def test_a_topic_that_is_not_there(archive: WrittenArchive, tmp_path: Path) -> None:
    source = parse_options({"store": archive.url, "topics": "orders,oders"})
    with pytest.raises(ConfigError, match="oders"):
        plan_backfill(Target(source, OutputFolder(str(tmp_path / "out")), "snappy"), 1_500)
    assert not (tmp_path / "out").exists()


def test_a_missing_object_is_named(archive: WrittenArchive, tmp_path: Path) -> None:
    archive.path(archive.segments[0], SegmentFile.LOG).unlink()
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 10**9).tasks
    with pytest.raises(ObjectNotFound, match="orders-0, offsets 0 to 99"):
        backfill_range(to, tasks[0])


def test_what_was_planned_and_deleted_since_is_a_loss(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    to = target(archive, tmp_path / "out")
    plan_backfill(to, 1_500)
    first = archive.segments[0]
    archive.path(first, SegmentFile.METADATA).unlink()
    planned = plan_backfill(to, 1_500)
    assert planned.left_out
    assert {f.error for f in planned.left_out} == {
        "it was planned but not written, and now the archive begins at 100; with "
        "failOnDataLoss=false missing offsets are skipped"
    }
    for task in planned.tasks:
        backfill_range(to, task)
    assert [row["offset"] for row in rows(tmp_path / "out")] == list(range(100, 300))
    lenient = target(archive, tmp_path / "out", failOnDataLoss="false")
    run(lenient)
    assert [row["offset"] for row in rows(tmp_path / "out")] == list(range(100, 300))


def test_more_dates_at_once_than_files_may_be_open(archive: WrittenArchive, tmp_path: Path) -> None:
    """Timestamps go round and round over more days than that."""
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 10**9).tasks
    days = OPEN_DATES_MAX + 3
    batch = batch_of([START_MS + day * DAY_MS for day in range(days)])
    manifest = parquet_range.write_range(
        to.folder, tasks[0].range, [batch] * 4, "snappy", SkippedRecords()
    )
    assert len(manifest.files) == 4 * days
    assert len({file.path for file in manifest.files}) == 4 * days
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert sorted(table.column("offset").to_pylist()) == sorted([*range(days)] * 4)
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.parquet")} == {
        f"date={day_name(19_000 + day)}" for day in range(days)
    }


def test_rows_wait_up_to_a_limit(
    archive: WrittenArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    flush = parquet_range._DatedFiles._flush

    def watched(self: Any, file: Any) -> None:
        waiting.append(self._waiting_bytes)
        flush(self, file)

    monkeypatch.setattr(parquet_range, "BUFFERED_BYTES_MAX", 2_000)
    monkeypatch.setattr(parquet_range._DatedFiles, "_flush", watched)
    run(target(archive, tmp_path / "out"), 10**9)
    assert [row["offset"] for row in rows(tmp_path / "out")] == list(range(300))
    assert len(waiting) > 13


def test_a_large_record_is_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed only if that halves it: Parquet's writer has what it packs once more."""
    monkeypatch.setattr(parquet_range, "BUFFERED_BYTES_MAX", 2_000)
    values = [b"a", random.Random(1).randbytes(5_000), b"b", bytes(5_000), b"c"]
    rows_of = [
        {"value": value, "topic": "t", "partition": 0, "offset": n, "timestamp": 0}
        for n, value in enumerate(values)
    ]
    batches = [pa.RecordBatch.from_pylist([row], arrow_schema()) for row in rows_of]
    out = OutputFolder(str(tmp_path))
    range_ = BackfillRange("t", "id", 0, 0, 5)
    manifest = parquet_range.write_range(out, range_, batches, "zstd", SkippedRecords())
    packing_by_offsets = {}
    for file in manifest.files:
        parquet = pq.ParquetFile(tmp_path / file.path)
        packing = parquet.metadata.row_group(0).column(1).compression
        packing_by_offsets[tuple(parquet.read(["offset"])["offset"].to_pylist())] = packing
    assert packing_by_offsets == {(0, 2, 4): "ZSTD", (1,): "UNCOMPRESSED", (3,): "ZSTD"}
    values_by_offset = {row["offset"]: row["value"] for row in rows(tmp_path)}
    assert [values_by_offset[n] for n in range(5)] == values


def batch_of(times_ms: list[int]) -> Any:
    times = pa.array([t * 1000 for t in times_ms], pa.timestamp("us", tz="UTC"))
    offsets = pa.array(range(len(times_ms)), pa.int64())
    topics = pa.array(["t"] * len(times_ms))
    return pa.record_batch({"topic": topics, "offset": offsets, "timestamp": times})


@pytest.mark.parametrize(
    ("times", "days"),
    [
        ([0, DAY_MS - 1], {0: [0, 1]}),
        ([DAY_MS, 0, DAY_MS + 1], {0: [1], 1: [0, 2]}),
        ([-1, 0], {-1: [0], 0: [1]}),
        ([], {}),
    ],
)
def test_days_are_utc(times: list[int], days: dict[int, list[int]]) -> None:
    offsets_by_day = {
        day: part.column("offset").to_pylist() for day, part in rows_by_day(batch_of(times))
    }
    assert offsets_by_day == days


def test_a_day_that_no_calendar_has() -> None:
    assert day_name(0) == "1970-01-01"
    assert day_name(-1) == "1969-12-31"
    assert day_name(10**9) == "__HIVE_DEFAULT_PARTITION__"


def test_what_goes_over_the_pipe_comes_back(archive: WrittenArchive, tmp_path: Path) -> None:
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 1_500).tasks
    unpickled, task = pickle.loads(pickle.dumps((to, tasks[0])))
    manifest = backfill_range(unpickled, task)
    assert Manifest.decode(manifest.encode(), "") == manifest
    assert to.folder.manifest(task.range.name) == manifest


# A reader guesses another type for these, or takes the last one for null.
GUESSED = ["007", "2024", "2024-01-01", "1e5", "99999999999", "1.50", "0x1F", "true", "null", "NaN"]
GUESSED += ["-0", "None", "__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize("topic", ["_x", "__audit", ".x", "...", "y" * 231, *GUESSED])
def test_readers_find_the_files_of_any_topic(tmp_path: Path, topic: str) -> None:
    """They leave out files whose names begin with `_` or `.`, without a word."""
    archive = WrittenArchive(tmp_path / "archive")
    for partition in (0, 2**31 - 1):
        archive.add(batches(0, 2), tp=TopicIdPartition(TP.topic_id, topic, partition))
    out = tmp_path / "out"
    to = target(archive, out, topics=topic)
    run(to, 10**9)
    assert {(row["topic"], row["partition"]) for row in rows(out)} == {
        (topic, 0),
        (topic, 2**31 - 1),
    }
    assert len(rows(out)) == 40
    assert run(to, 10**9) == []


def test_names_of_files_stay_apart_and_fit() -> None:
    long = ["y" * 249, "y" * 248 + "z", "_" + "y" * 248, "." + "y" * 248, "y" * 151]
    topics = [*long, "orders", "_x", "__x", ".x", "topic", "topic-_x"]
    names = [BackfillRange(t, "", 2**31 - 1, 2**63 - 2, 2**63 - 1).name for t in topics]
    assert len(set(names)) == len(topics)
    assert not [name for name in names if name.startswith(("_", "."))]
    part = f"-{10_000}.parquet.{'f' * 32}"
    assert max(len(name + part) for name in names) <= 255
    assert file_stem("y" * 140) == "y" * 140


def test_any_timestamp_and_any_header_key(tmp_path: Path) -> None:
    """Those that microseconds or a calendar cannot hold cost no other record."""
    day, second = 86_400_000, 1_000
    last_day = 253_402_300_799_999  # of the year 9999
    times = [
        5,
        2**63 - 1,
        -(2**63),
        last_day,
        last_day + 1,
        last_day + 400 * day,
        -62_135_596_800_001,
    ]
    times += [-1, -second, 2**63 // 1000, 2**63 // 1000 + 1]
    records = [
        legal_logs.Record(n, time, None, b"%d" % n, ((b"\xff\xfek", None), (b"", b"")))
        for n, time in enumerate(times)
    ]
    made = legal_logs.Batch(0, len(times) - 1, tuple(records), times[0], max(times))
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([legal_logs.sealed(made).content])
    out = tmp_path / "out"
    assert sum(m.rows for m in run(target(archive, out), 10**9)) == len(times)
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table().sort_by("offset")
    table.validate(full=True)
    assert table.column("offset").to_pylist() == list(range(len(times)))
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [
        time * 1000 if abs(time) <= 2**63 // 1000 else None for time in times
    ]
    assert table.column("headers").to_pylist() == [
        [{"key": "\ufffd\ufffdk", "value": None}, {"key": "", "value": b""}]
    ] * len(times)
    dates = {path.parent.name for path in parquet_of(out)}
    named = {"date=1970-01-01", "date=1969-12-31", "date=9999-12-31"}
    assert dates == {*named, "date=__HIVE_DEFAULT_PARTITION__"}


@settings(max_examples=25)
@given(log=legal_logs.legal_logs(value_bytes_max=5_000))
def test_every_legal_log_is_written_whole(
    log: legal_logs.LegalLog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    batches_kept = [batch for batch in log.batches if batch.last_offset >= log.log_start]
    if not batches_kept:
        return
    folder = tmp_path_factory.mktemp("legal")
    archive = WrittenArchive(folder / "archive")
    archive.add([batch.content for batch in batches_kept])
    out = folder / "out"
    run(target(archive, out), 10**12)
    expected_offsets = [
        batch.base_offset + record.offset_delta
        for batch in batches_kept
        if not batch.is_control
        for record in batch.records
    ]
    files = parquet_of(out)
    tables = [pq.read_table(path, partitioning=None) for path in files]
    for table in tables:
        table.validate(full=True)
    offsets_written = sorted(o for table in tables for o in table.column("offset").to_pylist())
    assert offsets_written == expected_offsets


def test_a_topic_that_was_made_again_stops_no_other(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    to = target(archive, tmp_path / "out", topics="orders,others")
    others = TopicIdPartition(UUID(int=7), "others", 0)
    archive.add(batches(0), tp=others)
    run(to, 10**9)
    again = TopicIdPartition(UUID(int=8), "orders", 0)
    archive.add(batches(0), tp=again, event_timestamp_ms=1)
    archive.add(batches(100), tp=others)
    planned = plan_backfill(to, 10**9)
    (failure,) = planned.left_out
    assert (failure.name, failure.retriable) == ("orders-0", False)
    assert f"the id of this topic is {again.topic_id}" in failure.error
    assert [task.range.topic for task in planned.tasks] == ["others"]


def test_a_partition_that_cannot_be_searched_stops_no_other(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    archive.add(batches(0), tp=TopicIdPartition(TP.topic_id, TP.topic, 1))
    archive.path(archive.segments[0], SegmentFile.INDEX).unlink()
    to = target(archive, tmp_path / "out", startingTimestamp=str(START_MS))
    planned = plan_backfill(to, 10**9)
    (failure,) = planned.left_out
    assert failure.name == "orders-0"
    assert archive.path(archive.segments[0], SegmentFile.INDEX).name in failure.error
    assert {task.range.partition for task in planned.tasks} == {1}


def test_an_output_that_cannot_be_written_or_read(archive: WrittenArchive, tmp_path: Path) -> None:
    source = {"store": archive.url, "topics": "orders"}
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"the output {file} cannot be read or written"):
        backfill(None, source, str(file))
    to = target(archive, tmp_path / "out")
    outcome = run(to)
    manifest = tmp_path / f"out/_backfill/done/{outcome[0].range.name}.json"
    for damaged in ("", "{}", "[]", manifest.read_text()[:-5]):
        manifest.write_text(damaged)
        with pytest.raises(ConfigError, match=f"{manifest.name} is not a manifest"):
            plan_backfill(to, 1_500)


def test_an_output_of_an_unknown_kind_and_an_unknown_codec(archive: WrittenArchive) -> None:
    source = {"store": archive.url, "topics": "orders"}
    with pytest.raises(ConfigError, match="compression 'best'"):
        backfill(None, source, "/tmp/never", compression="best")
    with pytest.raises(ConfigError, match="nowhere://x"):
        backfill(None, source, "nowhere://x/y")


def test_rows_can_be_iterated_only_once_they_are_all_there(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    """A range whose reading fails half-way shows nothing."""
    to = target(archive, tmp_path / "out")
    tasks = plan_backfill(to, 10**9).tasks

    def half() -> Iterator[Any]:
        yield batch_of([0, 1, DAY_MS])
        raise ObjectNotFound("gone")

    with pytest.raises(ObjectNotFound):
        parquet_range.write_range(to.folder, tasks[0].range, half(), "snappy", SkippedRecords())
    assert not list((tmp_path / "out").rglob("*.parquet*"))
    assert TP.topic == tasks[0].range.topic
