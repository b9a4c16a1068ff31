"""The data source in each PySpark 4, in one session a version: what changed from one to another.

Runs with Spark's own settings, and finds the source by its package alone.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from made_batches import Record, made_batch
from spark_program import SparkProgram, SparkSays
from written_archive import TP, WrittenArchive

from fetchproxy.model import TopicIdPartition

pytestmark = pytest.mark.spark

SEGMENT = 10
ONE = TopicIdPartition(UUID(int=1), "orders", 0)
OTHER = TopicIdPartition(UUID(int=1), "orders", 1)


def add(archive: WrittenArchive, base: int, tp: TopicIdPartition = ONE) -> None:
    """Ten records of 1,000 bytes."""
    records = [Record(b"k", bytes(1000), base + n) for n in range(SEGMENT)]
    archive.add([made_batch(base, records)], tp=tp)


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path / "archive")
    for base in range(0, 60, SEGMENT):
        add(made, base)
    for base in (0, 10):
        add(made, base, OTHER)
    return made


def options_of(archive: WrittenArchive, **options: str) -> dict[str, str]:
    return {"store": archive.url, "topics": "orders", "includeHeaders": "true", **options}


def places(rows: Iterable[Any]) -> list[tuple[int, int]]:
    return [(row[3], row[4]) for row in rows]


def every(ends: dict[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in ends.items() for offset in range(end)]


def admits(spark: SparkProgram) -> bool:
    return spark.version >= "4.2"


def test_a_batch_reads_with_sparks_own_settings(
    any_spark: SparkProgram, archive: WrittenArchive
) -> None:
    rows = any_spark.rows("remotelog", options_of(archive))
    assert places(rows) == every({0: 60, 1: 20})
    source_options = options_of(archive, minPartitions="20")
    assert any_spark.ask("task_count", "remotelog", source_options) >= 20
    few = options_of(archive, maxRecordsPerPartition="7")
    assert places(any_spark.rows("remotelog", few)) == every({0: 60, 1: 20})
    assert any_spark.ask("task_count", "remotelog", few) >= 80 / 7


@pytest.mark.slow
def test_filters_of_one_query_do_not_reach_another(
    any_spark: SparkProgram, archive: WrittenArchive
) -> None:
    """Also where Spark pushes filters into Python sources."""
    setting = "spark.sql.python.filterPushdown.enabled"
    if any_spark.version >= "4.1":
        any_spark.ask("set", setting, "true")
    any_spark.ask("keep", "all", options_of(archive))
    for condition, count in (
        (None, 80),
        ("offset < 3", 6),
        (None, 80),
    ):
        assert len(any_spark.ask("kept_rows", "all", condition)) == count
    if any_spark.version >= "4.1":
        any_spark.ask("keep", "pushed", options_of(archive, pushFilters="true"))
        assert len(any_spark.ask("kept_rows", "pushed", "offset < 3")) == 6
        any_spark.ask("set", setting, "false")
    else:
        with pytest.raises(SparkSays, match=r"pushFilters: needs PySpark 4\.1 or newer"):
            any_spark.rows("remotelog", options_of(archive, pushFilters="true"))


def test_another_frame_sees_what_was_archived_later(
    any_spark: SparkProgram, archive: WrittenArchive
) -> None:
    """A frame that is kept sees it with PySpark 4.0 alone: newer ones keep the first query's plan
    with it, as the page says."""
    any_spark.ask("keep", "kept", options_of(archive))
    assert len(any_spark.ask("kept_rows", "kept")) == 80
    add(archive, 60)
    later = 90 if any_spark.version < "4.1" else 80
    assert len(any_spark.ask("kept_rows", "kept")) == later
    assert len(any_spark.rows("remotelog", options_of(archive))) == 90


@pytest.mark.slow
def test_names_that_the_archive_does_not_know_are_errors(
    any_spark: SparkProgram, archive: WrittenArchive, tmp_path: Path
) -> None:
    for wrong, message in (
        ({"topics": "order"}, "the archive has nothing of topic 'order'; it has orders"),
        ({"topics": "orders,order"}, "the archive has nothing of topic 'order'"),
        ({"topics": "", "assign": '{"orders": [0, 7]}'}, "assign names partition 7"),
        ({"store": (tmp_path / "no").as_uri()}, "store file://.*/no: .*is not there"),
        ({"groupIdPrefix": "mine"}, "groupIdPrefix: the archive is read without a consumer group"),
    ):
        options = {name: value for name, value in options_of(archive, **wrong).items() if value}
        with pytest.raises(SparkSays, match=message) as failed:
            any_spark.rows("remotelog", options)
        first = str(failed.value).splitlines()[0]
        assert "remotelog: " in first, str(failed.value)
    stream = options_of(archive, topics="order", startingOffsets="earliest")
    ended = any_spark.ask("available_now", stream, str(tmp_path / "checkpoint"))
    assert "the archive has nothing of topic 'order'" in ended["failed"], ended


def test_a_query_of_what_is_there_gets_to_its_end_also_after_a_crash(
    any_spark: SparkProgram, archive: WrittenArchive, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    options = options_of(archive, startingOffsets="earliest")
    crashed = any_spark.ask("available_now", options, checkpoint, 0)
    assert "the sink fails" in crashed["failed"], crashed
    add(archive, 60)
    outcome = any_spark.ask("available_now", options, checkpoint)
    assert outcome["failed"] == ""
    places_seen = [place for batch in outcome["batches"] for place in places(batch)]
    assert sorted(places_seen) == every({0: 70, 1: 20})
    assert any_spark.ask("available_now", options, checkpoint)["batches"] == []


@pytest.mark.parametrize(
    ("limit", "rows_max"),
    [
        ({"maxOffsetsPerTrigger": "25"}, 25),
        ({"maxBytesPerTrigger": "25000"}, 25),
    ],
)
@pytest.mark.slow
def test_limits_hold_in_every_batch_up_to_the_end(
    any_spark: SparkProgram,
    archive: WrittenArchive,
    tmp_path: Path,
    limit: dict[str, str],
    rows_max: int,
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    options = options_of(archive, startingOffsets="earliest", **limit)
    if not admits(any_spark):
        ended = any_spark.ask("available_now", options, checkpoint)
        assert f"{next(iter(limit))}: needs PySpark 4.2 or newer" in ended["failed"]
        return
    crashed = any_spark.ask("available_now", options, checkpoint, 2)
    assert "the sink fails" in crashed["failed"], crashed
    add(archive, 20, OTHER)
    outcome = any_spark.ask("available_now", options, checkpoint)
    batches = [batch for batch in (*crashed["batches"], *outcome["batches"]) if batch]
    assert max(map(len, batches)) <= rows_max
    places_seen = [place for batch in batches for place in places(batch)]
    assert sorted(places_seen) == every({0: 60, 1: 30})
    latest = {"orders": {"0": 60, "1": 30, "topicId": str(TP.topic_id)}}
    assert latest in [json_of(each) for each in outcome["latest"]]


def json_of(offset: Any) -> Any:
    import json

    return json.loads(offset) if isinstance(offset, str) else offset


def test_it_is_easy_to_reach(any_spark: SparkProgram, archive: WrittenArchive) -> None:
    rows_read = any_spark.ask("ease", archive.url, "orders", ["offset", "partition"])
    assert sorted((p, o) for o, p in rows_read) == every({0: 60, 1: 20})
    view = (
        "CREATE OR REPLACE TEMPORARY VIEW orders USING remotelog "
        f"OPTIONS (store '{archive.url}', topics 'orders')"
    )
    counted = any_spark.ask("statements", [view, "SELECT count(*), max(offset) FROM orders"])
    assert counted == [[80, 59]]


@pytest.mark.slow
def test_sql_without_any_python_reads_an_archive(
    any_spark: SparkProgram, archive: WrittenArchive, tmp_path: Path
) -> None:
    environment = dict(any_spark.environment)
    home = Path(environment["PYTHONPATH"].split(os.pathsep)[1], "pyspark")
    statements = (
        "CREATE TEMPORARY VIEW orders USING remotelog "
        f"OPTIONS (store '{archive.url}', topics 'orders'); "
        "SELECT concat('found ', count(*)) FROM orders;"
    )
    command = [str(home / "bin/spark-sql"), "--master", "local[1]"]
    for setting in ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1"):
        command += ["--conf", setting]
    command += ["--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}"]
    command += ["--conf", "spark.sql.catalogImplementation=in-memory", "-e", statements]
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "found 80" in result.stdout, result.stderr[-3000:]


@pytest.mark.slow
def test_the_job_verify_runs(any_spark: SparkProgram, archive: WrittenArchive) -> None:
    assert any_spark.ask("verify_job", archive.url) == []
