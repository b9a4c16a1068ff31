"""The judge: what Spark's own Kafka source gave before the brokers forgot it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archived_topics import SETTINGS
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from fetchproxy_command import archive_once
from proxy_process import ProxyProcess
from spark_program import SparkProgram, SparkSays
from topic_data import archived_ends, trim

from fetchproxy.remotelog.tier_boundary import TierBoundary
from lab.kafka import KafkaServer

LEVELS = ("read_uncommitted", "read_committed")
SPARK_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2


def records(count: int, first: int = 0) -> list[list[Any]]:
    """Key, value, partition, headers: with nulls, empty ones, and headers on every third."""
    made: list[list[Any]] = []
    for n in range(first, first + count):
        key = None if n % 7 == 0 else "" if n % 11 == 0 else f"key {n}"
        value = None if n % 13 == 0 else f"\xff value {n} " * (n % 40)
        headers = [["h", "x" * (n % 5)], ["null", None], ["", ""]] if n % 3 == 0 else []
        made.append([key, value, n % PARTITIONS, headers])
    return made


def archive_now(kafka: KafkaServer, store: Path, topics: str) -> None:
    store.mkdir(exist_ok=True)
    result = archive_once(kafka.bootstrap, store.as_uri(), topics, SETTINGS)
    assert result.returncode == 0, result.stderr[-2000:]


def forget_all(kafka: KafkaServer, store: Path, topic: str) -> None:
    """The brokers keep nothing of what is archived."""
    ends = archived_ends(store.as_uri(), topic)
    assert ends
    trim(kafka.bootstrap, topic, ends)


def write_transactions(kafka: KafkaServer, topic: str, codec: str) -> None:
    """Every third is aborted; plain records between."""
    settings = {"bootstrap.servers": kafka.bootstrap, "compression.type": codec}
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(60)
    plain = Producer(settings)
    for transaction in range(12):
        producer.begin_transaction()
        for n in range(60):
            value = f"{transaction} {n} ".encode() * 20
            producer.produce(topic, value, str(n).encode(), n % PARTITIONS, headers={"t": b"1"})
        assert producer.flush(60) == 0
        if transaction % 3 == 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        for p in range(PARTITIONS):
            plain.produce(topic, b"plain", None, p)
        assert plain.flush(60) == 0


def remote(store: Path, topic: str, level: str = LEVELS[0], **options: str) -> dict[str, str]:
    small = {"maxBytesPerPartition": "60000"}  # several tasks, also within a segment
    chosen = {"store": store.as_uri(), "topics": topic, "isolationLevel": level}
    return {**small, **chosen, "includeHeaders": "true", **options}


def live(kafka: str, topic: str, level: str = LEVELS[0], **options: str) -> dict[str, str]:
    chosen = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "includeHeaders": "true"}
    return {**chosen, "kafka.isolation.level": level, **options}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


CreateTopic = Callable[..., str]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", SPARK_CODECS)
def test_rows_are_those_of_sparks_kafka_source(
    spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    codec: str,
    time: str,
) -> None:
    """Written by the Java producer: xerial snappy, its own lz4 frames and zstd streams."""
    topic = create_topic(PARTITIONS, {"message.timestamp.type": time})
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    written = {"kafka.compression.type": codec, "topic": topic, "kafka.batch.size": "20000"}
    spark.ask("produce", {**brokers, **written}, records(3000))
    before = spark.rows("kafka", live(kafka_server.bootstrap, topic))
    schema = spark.ask("schema", "kafka", live(kafka_server.bootstrap, topic))
    archive_now(kafka_server, store, topic)
    forget_all(kafka_server, store, topic)
    assert len(before) == 3000
    assert {row[6] for row in before} == {int(time == "LogAppendTime")}
    assert spark.rows("remotelog", remote(store, topic)) == before
    assert spark.ask("schema", "remotelog", remote(store, topic)) == schema


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("codec", SPARK_CODECS)
def test_transactions_at_both_levels(
    spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    codec: str,
) -> None:
    """Written by librdkafka, through the proxy, and before the brokers were trimmed."""
    topic = create_topic(PARTITIONS)
    write_transactions(kafka_server, topic, codec)
    before = {
        level: spark.rows("kafka", live(kafka_server.bootstrap, topic, level)) for level in LEVELS
    }
    archive_now(kafka_server, store, topic)
    forget_all(kafka_server, store, topic)
    assert len(before["read_uncommitted"]) == 12 * 60 + 24
    assert len(before["read_committed"]) == 8 * 60 + 24
    for level in LEVELS:
        assert spark.rows("remotelog", remote(store, topic, level)) == before[level]


@pytest.mark.kafka
@pytest.mark.slow
def test_sparks_kafka_source_reads_archived_offsets_through_the_proxy(
    spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    topic = create_topic(PARTITIONS)
    write_transactions(kafka_server, topic, "zstd")
    before = {
        level: spark.rows("kafka", live(kafka_server.bootstrap, topic, level)) for level in LEVELS
    }
    archive_now(kafka_server, store, topic)
    forget_all(kafka_server, store, topic)
    with ProxyProcess(kafka_server.bootstrap, store.as_uri(), tmp_path) as proxy:
        for level in LEVELS:
            assert spark.rows("kafka", live(proxy.bootstrap, topic, level)) == before[level]


@pytest.mark.kafka
@pytest.mark.slow
def test_archive_then_live_has_no_gap_and_no_duplicate(
    any_kafka_spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    written = {**brokers, "topic": topic}
    spark.ask("produce", written, records(1000))
    archive_now(kafka_server, store, topic)
    tier_boundary = archived_ends(store.as_uri(), topic)
    spark.ask("produce", written, records(500, 1000))
    every = spark.rows("kafka", live(kafka_server.bootstrap, topic))
    # Half of the history is on the brokers as well: none of it may come twice.
    trim(kafka_server.bootstrap, topic, {p: end // 2 for p, end in tier_boundary.items()})
    both = {**remote(store, topic), **brokers}
    assert spark.ask("tier_boundary", both) == every
    # A stream, stopped and started again while the archive and the topic go on.
    checkpoint = str(tmp_path / "checkpoint")
    first = spark.ask("tier_boundary_stream", both, checkpoint)
    assert first == every
    spark.ask("produce", written, records(300, 1500))
    archive_now(kafka_server, store, topic)
    later = spark.ask("tier_boundary_stream", both, checkpoint)
    assert len(later) == 300
    now = spark.rows("kafka", live(kafka_server.bootstrap, topic))
    places_seen = {(row[3], row[4]) for row in first + later}
    assert len(places_seen) == len(first) + len(later)
    assert {(row[3], row[4]) for row in now} <= places_seen
    pinned = Path(f"{checkpoint}-crossing.json")
    assert TierBoundary.decode(pinned.read_text(), "").archived == {
        (topic, p): end for p, end in tier_boundary.items()
    }
    assert list(pinned.parent.glob("*.part")) == []


@pytest.mark.kafka
@pytest.mark.slow
def test_archive_then_live_fails_where_the_brokers_have_forgotten_the_crossing(
    any_kafka_spark: SparkProgram, kafka_server: KafkaServer, create_topic: CreateTopic, store: Path
) -> None:
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    spark.ask("produce", {**brokers, "topic": topic}, records(200))
    archive_now(kafka_server, store, topic)
    spark.ask("produce", {**brokers, "topic": topic}, records(200, 200))
    trim(kafka_server.bootstrap, topic, dict.fromkeys(range(PARTITIONS), 150))
    with pytest.raises(SparkSays, match=r"(?i)offset|data.?loss"):
        spark.ask("tier_boundary", {**remote(store, topic), **brokers})


def at_places(rows: list[Any]) -> list[tuple[int, int]]:
    return sorted((row[3], row[4]) for row in rows)


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_not_archived_at_the_crossing_is_read_live_and_once(
    any_kafka_spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    """A partition that has no record yet, and one that is made later, both archived meanwhile."""
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    written = {**brokers, "topic": topic}
    first_alone = [[row[0], row[1], 0, row[3]] for row in records(200)]
    spark.ask("produce", written, first_alone)
    archive_now(kafka_server, store, topic)
    both = {**remote(store, topic), **brokers}
    checkpoint = str(tmp_path / "checkpoint")
    rows_seen = spark.ask("tier_boundary_stream", both, checkpoint)
    spark.ask("produce", written, records(300, 200))
    archive_now(kafka_server, store, topic)
    rows_seen += spark.ask("tier_boundary_stream", both, checkpoint)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    spark.ask("produce", written, [[row[0], row[1], 2, row[3]] for row in records(100)])
    archive_now(kafka_server, store, topic)
    rows_seen += spark.ask("tier_boundary_stream", both, checkpoint)
    every = spark.rows("kafka", live(kafka_server.bootstrap, topic))
    assert at_places(rows_seen) == at_places(every)
    assert spark.ask("tier_boundary", both) == every


@pytest.mark.kafka
@pytest.mark.slow
def test_bounds_of_archive_then_live_hold(
    any_kafka_spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    written = {**brokers, "topic": topic}
    spark.ask("produce", written, records(200))
    archive_now(kafka_server, store, topic)
    spark.ask("produce", written, records(200, 200))
    both = {**remote(store, topic), **brokers}
    ending = {"endingOffsets": f'{{"{topic}": {{"0": 10, "1": 150}}}}'}
    rows_read = spark.ask("tier_boundary", {**both, **ending})
    assert at_places(rows_read) == [(p, n) for p, end in ((0, 10), (1, 150)) for n in range(end)]
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(SparkSays, match="endingOffsets: Spark's Kafka source has no end"):
        spark.ask("tier_boundary_stream", {**both, **ending}, checkpoint)
    latest = {**both, "startingOffsets": "latest"}
    assert spark.ask("tier_boundary_stream", latest, checkpoint) == []
    spark.ask("produce", written, records(50, 400))
    assert len(spark.ask("tier_boundary_stream", latest, checkpoint)) == 50


@pytest.mark.kafka
@pytest.mark.slow
def test_archive_then_live_says_in_one_line_what_is_wrong(
    any_kafka_spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    brokers = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    spark.ask("produce", {**brokers, "topic": topic}, records(20))
    archive_now(kafka_server, store, topic)
    good = {**remote(store, topic), **brokers}
    Path(tmp_path, "damaged-crossing.json").write_text("")
    for options, message in (
        ({**good, "topics": f"{topic},typo"}, "topic 'typo': UnknownTopicOrPartitionException"),
        (remote(store, topic), "'kafka.bootstrap.servers' is needed"),
        (good, r"damaged-crossing\.json is damaged"),
    ):
        checkpoint = "damaged" if options is good else "checkpoint"
        with pytest.raises(SparkSays, match=message) as failed:
            spark.ask("tier_boundary_stream", options, str(tmp_path / checkpoint))
        assert len(str(failed.value).splitlines()) == 1
    assigned = {name: value for name, value in good.items() if name != "topics"}
    with pytest.raises(SparkSays, match="the brokers have no partition 7"):
        spark.ask("tier_boundary", {**assigned, "assign": f'{{"{topic}": [0, 7]}}'})


@pytest.mark.kafka
@pytest.mark.slow
def test_a_stream_follows_the_archive_and_goes_on_after_a_restart(
    any_kafka_spark: SparkProgram,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    store: Path,
    tmp_path: Path,
) -> None:
    spark = any_kafka_spark
    topic = create_topic(PARTITIONS)
    written = {"kafka.bootstrap.servers": kafka_server.bootstrap, "topic": topic}
    options = remote(store, topic, startingOffsets="earliest")
    checkpoint = str(tmp_path / "checkpoint")
    rows_seen: list[Any] = []
    for round_ in range(3):
        spark.ask("produce", written, records(500, 500 * round_))
        archive_now(kafka_server, store, topic)
        rows_seen += spark.ask("stream", options, checkpoint)
        assert len(rows_seen) == 500 * (round_ + 1)
    assert spark.ask("stream", options, checkpoint) == []
    every = spark.rows("kafka", live(kafka_server.bootstrap, topic))
    assert sorted(rows_seen, key=lambda row: (row[3], row[4])) == every
