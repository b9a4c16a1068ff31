"""The data source in Spark itself, over a folder's archive: no broker takes part."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from made_batches import CODECS, READERS, Record, made_batch, rows_read_by
from spark_program import PROJECT, SparkProgram, SparkSays
from written_archive import WrittenArchive

from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import AtRest


def segment_batches(base: int) -> list[bytes]:
    """Ten batches of ten, of all codecs."""
    return [
        made_batch(
            start,
            [
                Record(
                    None if n % 3 else b"k%d" % n,
                    None if n % 7 == 0 else b"value %d" % n,
                    1_000 + n,
                    (("h", b"x"), ("null", None)) if n % 2 else (),
                )
                for n in range(start, start + 10)
            ],
            codec=CODECS[start // 10 % len(CODECS)],
        )
        for start in range(base, base + 100, 10)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path / "archive")
    for base in (0, 100, 200):
        made.add(segment_batches(base))
    return made


def options_of(archive: WrittenArchive, **options: str) -> dict[str, str]:
    small = {"maxBytesPerPartition": "1200", "includeHeaders": "true"}
    return {"store": archive.url, "topics": "orders", **small, **options}


def expected() -> list[list[Any]]:
    batches = [batch for base in (0, 100, 200) for batch in segment_batches(base)]
    return [
        [
            row.key and row.key.hex(),
            row.value if row.value is None else row.value.hex(),
            "orders",
            0,
            row.offset,
            row.timestamp * 1000,
            row.timestamp_type,
            [[k, v and v.hex()] for k, v in row.headers] or None,
        ]
        for row in rows_read_by(READERS[0], batches)
    ]


@pytest.mark.slow
def test_rows_in_spark_of_an_archive_that_is_encrypted(spark: SparkProgram, tmp_path: Path) -> None:
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(32)), new=True)
    made = WrittenArchive(tmp_path / "archive", AtRest(compress=True, keys=FileKeyRing(ring)))
    for base in (0, 100, 200):
        made.add(segment_batches(base))
    keys = {"store.encryption_keys": str(ring)}
    assert spark.rows("remotelog", options_of(made, **keys)) == expected()
    with pytest.raises(SparkSays, match=r"store\.encryption_keys is not set"):
        spark.rows("remotelog", options_of(made))


@pytest.mark.slow
def test_rows_in_spark_and_a_corrupt_batch_by_name(
    spark: SparkProgram, archive: WrittenArchive
) -> None:
    assert spark.rows("remotelog", options_of(archive)) == expected()
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(SparkSays, match=r"orders-0, offset 100: orders-.*\.log, byte 0: batch has"):
        spark.rows("remotelog", options_of(archive))
    rows_left = spark.rows("remotelog", options_of(archive, corruptBatches="skip"))
    assert rows_left == [row for row in expected() if not 100 <= row[4] < 110]


@pytest.mark.slow
def test_a_users_schema_says_which_columns_are_built(
    spark: SparkProgram, archive: WrittenArchive
) -> None:
    rows_read = spark.rows("remotelog", options_of(archive), "offset bigint, value binary")
    assert sorted(rows_read) == [[row[4], row[1]] for row in expected()]
    with pytest.raises(SparkSays, match="no column 'colour'"):
        spark.rows("remotelog", options_of(archive), "colour string")
    with pytest.raises(SparkSays, match="column offset is bigint, not string"):
        spark.rows("remotelog", options_of(archive), "offset string")


@pytest.mark.slow
def test_a_query_in_sql(spark: SparkProgram, archive: WrittenArchive) -> None:
    query = "SELECT count(*), max(offset) FROM orders WHERE value IS NOT NULL AND offset < 150"
    values = [row for row in expected() if row[1] is not None and row[4] < 150]
    rows_read = spark.ask("sql", "orders", options_of(archive), query)
    assert rows_read == [[len(values), values[-1][4]]]


@pytest.mark.slow
def test_nothing_to_read_is_no_error(spark: SparkProgram, archive: WrittenArchive) -> None:
    late = {"startingTimestamp": "99999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert spark.rows("remotelog", options_of(archive, **late)) == []


@pytest.mark.slow
def test_a_missing_object_is_named(spark: SparkProgram, archive: WrittenArchive) -> None:
    path = archive.path(archive.segments[2], SegmentFile.LOG)
    path.unlink()
    with pytest.raises(SparkSays, match=r"ObjectNotFound: orders-0, offsets 200 to 299: .*\.log"):
        spark.rows("remotelog", options_of(archive))
    rows_left = spark.rows("remotelog", options_of(archive, failOnDataLoss="false"))
    assert rows_left == [row for row in expected() if row[4] < 200]


@pytest.mark.slow
def test_an_option_that_is_wrong_is_named(spark: SparkProgram, archive: WrittenArchive) -> None:
    with pytest.raises(SparkSays, match="unknown option 'topicname'"):
        spark.rows("remotelog", options_of(archive, topicName="orders"))


@pytest.mark.slow
def test_a_pipe_in_place_of_a_log_ends_the_task_with_a_clear_error(
    spark: SparkProgram, archive: WrittenArchive, tmp_path: Path
) -> None:
    """Nobody writes to it: whoever opened it would wait for ever."""
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SparkSays, match=r"orders-0, offsets 100 to 199: .*\.log is a FIFO"):
        spark.rows("remotelog", options_of(archive))


@pytest.mark.slow
def test_a_lost_task_is_run_again(spark: SparkProgram, archive: WrittenArchive) -> None:
    """Its Python worker is killed in the middle of a read, once: the rows come all and once."""
    outcome = spark.ask("rows_with_a_killed_worker", options_of(archive), int(signal.SIGKILL))
    assert outcome["killed"] == 1
    assert outcome["rows"] == expected()


@pytest.mark.slow
def test_the_example_in_sql(spark: SparkProgram, archive: WrittenArchive) -> None:
    text = (PROJECT / "examples/archived_topic.sql").read_text()
    here = text.replace("s3://archive/kafka", archive.url)
    here = here.replace("1767225600000", "1100").replace("1767229200000", "1200")
    here = here.replace("WHERE get_json_object(CAST(value AS STRING), '$.state') = 'failed'", "")
    here = here.replace("ORDER BY timestamp", "WHERE offset > 150 ORDER BY timestamp")
    view, query = [each for each in here.split(";") if each.strip()]
    rows_read = spark.ask("statements", [view, query])
    assert [row[1] for row in rows_read] == list(range(151, 200))
