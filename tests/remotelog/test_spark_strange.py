"""Records that are legal and strange: as Spark's own Kafka source reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import legal_logs
import pytest
from spark_program import SparkProgram, SparkSays
from test_backfill_job import GUESSED
from test_log_decoder import JAVA_TEXTS, java_text
from test_spark_kafka import archive_now, live, remote
from written_archive import TP, WrittenArchive

from fetchproxy.config.load import Setting, load_config
from fetchproxy.jobs.backfill import Target, backfill_range, plan_backfill
from fetchproxy.jobs.backfill_files import OutputFolder
from fetchproxy.jobs.backfill_topic import TopicTarget, copy_partition, plan_topic
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.options import parse_options
from lab.kafka import KafkaServer

INT64_MAX = 2**63 - 1
MICROS_MAX_MS = 2**63 // 1000
ANY_TIME = {"message.timestamp.after.max.ms": str(INT64_MAX), "retention.ms": "-1"}
CreateTopic = Callable[..., str]


def batch_of(times: Sequence[int]) -> legal_logs.Batch:
    keys = [bytes.fromhex(key) for key in JAVA_TEXTS]
    values: list[bytes | None] = [None, b"", b"\xff\xfe"]
    records = tuple(
        legal_logs.Record(
            n,
            at,
            values[n % 3],
            values[n // 3 % 3],
            tuple((key, values[n % 3]) for key in keys) if n % 2 else (),
        )
        for n, at in enumerate(times)
    )
    return legal_logs.sealed(
        legal_logs.Batch(0, len(times) - 1, records, times[0], max(times), codec=legal_logs.ZSTD)
    )


def written(kafka: KafkaServer, topic: str, folder: Path, times: Sequence[int]) -> None:
    """To a topic, by the copy of an archive: no client sends such records."""
    made = WrittenArchive(folder)
    made.add([batch_of(times).content])
    cluster = load_config(None, {}, [Setting("cluster.bootstrap", kafka.bootstrap, "test")])
    options = parse_options({"store": made.url, "topics": "orders"})
    to = TopicTarget(cluster.cluster, topic, options)
    for task in plan_topic(cluster, to)[0]:
        copy_partition(to, task)


@pytest.mark.kafka
@pytest.mark.slow
def test_strange_records_are_those_of_sparks_kafka_source(
    spark: SparkProgram, kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = create_topic(1, ANY_TIME)
    now = 1_700_000_000_000
    times = [now, -1, -5, 0, MICROS_MAX_MS, MICROS_MAX_MS - 1, -10_000_000_000_000, now]
    written(kafka_server, topic, tmp_path / "made", times)
    before = spark.ask("exact_rows", "kafka", live(kafka_server.bootstrap, topic))
    store = tmp_path / "store"
    archive_now(kafka_server, store, topic)
    assert len(before) == len(times)
    assert [row[5] for row in before] == [at * 1000 for at in times]
    assert [text for text, _ in before[1][7]] == [text.upper() for text in JAVA_TEXTS.values()]
    assert spark.ask("exact_rows", "remotelog", remote(store, topic)) == before


@pytest.mark.kafka
@pytest.mark.slow
def test_a_timestamp_beyond_microseconds_costs_no_other_record(
    spark: SparkProgram, kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    """Spark's own source ends the whole query there."""
    topic = create_topic(1, ANY_TIME)
    times = [5, MICROS_MAX_MS + 1, 6, INT64_MAX, -(2**63), 7]
    written(kafka_server, topic, tmp_path / "made", times)
    with pytest.raises(SparkSays, match="overflow"):
        spark.ask("exact_rows", "kafka", live(kafka_server.bootstrap, topic))
    store = tmp_path / "store"
    archive_now(kafka_server, store, topic)
    rows: list[Any] = spark.ask("exact_rows", "remotelog", remote(store, topic))
    assert [row[5] for row in rows] == [5000, None, 6000, None, None, 7000]
    assert [row[4] for row in rows] == list(range(len(times)))


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["_x", ".x", "y" * 231, *GUESSED])
def test_spark_reads_the_parquet_files_of_any_topic(
    spark: SparkProgram, tmp_path: Path, topic: str
) -> None:
    times = [5, INT64_MAX, -(2**63), 86_400_000 * 400 * 9000]
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([batch_of(times).content], tp=TopicIdPartition(TP.topic_id, topic, 2**31 - 1))
    to = Target(
        parse_options({"store": archive.url, "topics": topic}),
        OutputFolder(str(tmp_path / "out")),
        "snappy",
    )
    for task in plan_backfill(to, 10**9).tasks:
        backfill_range(to, task)
    read_options = {"path": str(tmp_path / "out"), "basePath": str(tmp_path / "out")}
    rows: list[Any] = spark.ask("exact_rows", "parquet", read_options)
    source = {"store": archive.url, "topics": topic, "includeHeaders": "true"}
    assert rows == spark.ask("exact_rows", "remotelog", source)
    assert [row[2] for row in rows] == [topic] * len(times)
    assert [key for key, _ in rows[1][7]] == [
        java_text(bytes.fromhex(raw)).encode().hex().upper() for raw in JAVA_TEXTS
    ]
