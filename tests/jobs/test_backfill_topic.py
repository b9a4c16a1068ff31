"""Archived records in another topic of a real broker, each once whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import legal_logs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import Phase, given, settings
from kafka import KafkaProducer
from made_batches import CODECS, Record, made_batch
from topic_copier_process import RECORDS_MAX
from written_archive import TP, WrittenArchive

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.errors import ClusterError, ConfigError
from fetchproxy.jobs import backfill_topic as job
from fetchproxy.jobs.backfill_topic import (
    CopiedPartition,
    TopicTarget,
    copy_partition,
    kafka_settings,
    plan_topic,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.decoder.arrow_batches import COLUMNS, ArrowBatches
from fetchproxy.remotelog.decoder.log_decoder import LogDecoder
from fetchproxy.remotelog.decoder.record_rows import RowLimits
from fetchproxy.remotelog.options import parse_options
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

CreateTopic = Callable[..., str]
PROJECT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, *sys.path)))}


def record(partition: int, offset: int) -> Record:
    return Record(
        None if offset % 7 == 0 else b"k%d" % offset,
        None if offset % 11 == 0 else b"v%d/%d" % (partition, offset),
        1_700_000_000_000 + offset,
        (("h", b"%d" % offset), ("n", None)) if offset % 10 == 0 else (),
    )


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Two partitions of 300 records each, in three segments."""
    made = WrittenArchive(tmp_path / "archive")
    for partition in range(2):
        for base in (0, 100, 200):
            made.add(
                [
                    made_batch(
                        at,
                        [record(partition, o) for o in range(at, at + 10)],
                        codec=CODECS[at // 10 % 5],
                    )
                    for at in range(base, base + 100, 10)
                ],
                tp=TopicIdPartition(TP.topic_id, TP.topic, partition),
            )
    return made


def config_of(kafka: KafkaServer) -> Config:
    return load_config(None, {}, [Setting("cluster.bootstrap", kafka.bootstrap, "test")])


def target(
    archive: WrittenArchive, kafka: KafkaServer, topic: str, append: bool = False
) -> TopicTarget:
    options = parse_options({"store": archive.url, "topics": "orders"})
    return TopicTarget(config_of(kafka).cluster, topic, options, append)


def run(to: TopicTarget, kafka: KafkaServer) -> list[CopiedPartition]:
    return [copy_partition(to, task) for task in plan_topic(config_of(kafka), to)[0]]


Row = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]


def read(kafka: KafkaServer, topic: str, partition: int) -> list[Row]:
    """As a consumer with read_committed does."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"read-{topic}",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[Row] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                return rows
            headers = tuple(message.headers() or ())
            rows.append((message.key(), message.value(), message.timestamp()[1], headers))
    finally:
        consumer.close()


def expected(partition: int, count: int = 300) -> list[Row]:
    made = [record(partition, offset) for offset in range(count)]
    return [(r.key, r.value, r.timestamp, r.headers) for r in made]


def test_every_record_with_all_that_it_has_and_no_more_in_a_second_run(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2, ANY_TIME)
    to = target(archive, kafka_server, topic)
    assert [outcome.records for outcome in run(to, kafka_server)] == [300, 300]
    assert [outcome.records for outcome in run(to, kafka_server)] == [0, 0]
    for partition in range(2):
        assert read(kafka_server, topic, partition) == expected(partition)


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Records may be years old, and a broker deletes those by default in some minutes.
ANY_TIME = {"message.timestamp.after.max.ms": str(INT64_MAX), "retention.ms": "-1"}
Exact = tuple[int, bytes | None, bytes | None, Any]


def stored(kafka: KafkaServer, topic: str) -> list[Exact]:
    """What the broker's log has, markers left out: no client here gives out any header key."""
    logs = sorted((kafka.data_dir / f"{topic}-0").glob("*.log"))
    rows = ArrowBatches(COLUMNS, topic, 0, exact=True)
    records: list[Exact] = []
    for log in logs:
        for batch in LogDecoder(rows, lambda *reported: pytest.fail(str(reported))).decode(
            log.read_bytes(), RowLimits()
        ):
            records += [
                (
                    row["timestamp"],
                    row["key"],
                    row["value"],
                    row["headers"] and [(h["key"], h["value"]) for h in row["headers"]],
                )
                for row in batch.to_pylist()
            ]
    return records


def written(records: Iterable[tuple[int, legal_logs.Record]]) -> list[Exact]:
    return [(at, r.key, r.value, list(r.headers) or None) for at, r in records]


def copied(archive: WrittenArchive, kafka: KafkaServer, topic: str) -> None:
    to = target(archive, kafka, topic)
    for task in plan_topic(config_of(kafka), to)[0]:
        copy_partition(to, task)


def test_a_copy_is_a_copy_of_bytes(
    tmp_path: Path, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    """Also of two timestamps in one batch that lie further apart than 63 bits."""
    times = [5, -1, -2, INT64_MAX, INT64_MIN, 0, INT64_MAX, INT64_MIN + 1, 4_102_444_800_000]
    keys = (b"\xff\xfek", b"", b"\xed\xa0\x80", b"h\x00")
    values: list[bytes | None] = [None, b"", b"\xff"]
    records = [
        legal_logs.Record(
            n,
            at,
            values[n % 3],
            values[n // 3 % 3],
            tuple((k, values[n % 3]) for k in keys[n % 5 :]),
        )
        for n, at in enumerate(times)
    ]
    batch = legal_logs.Batch(0, len(times) - 1, tuple(records), times[0], INT64_MAX)
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([legal_logs.sealed(batch).content])
    topic = create_topic(1, ANY_TIME)
    copied(archive, kafka_server, topic)
    assert stored(kafka_server, topic) == written(zip(times, records, strict=True))


@settings(max_examples=4, phases=[Phase.generate], deadline=None)
@given(log=legal_logs.legal_logs(value_bytes_max=5_000).filter(lambda log: len(log.batches) > 3))
def test_every_legal_log_is_copied_whole(
    log: legal_logs.LegalLog,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_server: KafkaServer,
) -> None:
    batches_kept = [batch for batch in log.batches if batch.last_offset >= log.log_start]
    archive = WrittenArchive(tmp_path_factory.mktemp("legal"))
    archive.add([batch.content for batch in batches_kept])
    topic = kafka_server.create_topic(f"legal-{uuid4().hex}", 1, ANY_TIME)
    copied(archive, kafka_server, topic)
    data = [batch for batch in batches_kept if not batch.is_control]
    assert stored(kafka_server, topic) == written(
        (batch.timestamp_of(record), record) for batch in data for record in batch.records
    )


@pytest.mark.parametrize("flushes", [False, True], ids=["at the end", "at the next record"])
def test_what_the_target_refuses_is_named_with_the_setting_that_lets_it_in(
    tmp_path: Path,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    monkeypatch: pytest.MonkeyPatch,
    flushes: bool,
) -> None:
    def send(self: KafkaProducer, *record: Any, **fields: Any) -> Any:
        send_future = KafkaProducer.send(self, *record, **fields)
        if flushes:
            self.flush()
        return send_future

    monkeypatch.setattr(job._Producer, "send", send)
    archive = WrittenArchive(tmp_path / "archive")
    archive.add([made_batch(0, [Record(timestamp=4_102_444_800_000), Record(), Record()])])
    topic = create_topic(1, {"message.timestamp.after.max.ms": "3600000", "retention.ms": "-1"})
    with pytest.raises(
        ClusterError, match=r"orders-0, at or after offset 0: InvalidTimestamp.*"
    ) as e:
        copied(archive, kafka_server, topic)
    assert (
        f"set message.timestamp.after.max.ms and message.timestamp.before.max.ms of {topic}"
        in str(e.value)
    )
    archive = WrittenArchive(tmp_path / "large")
    archive.add([made_batch(0, [Record(value=bytes(5000))])])
    topic = create_topic(1, {**ANY_TIME, "max.message.bytes": "2000"})
    with pytest.raises(ClusterError, match=f"set max.message.bytes of {topic}"):
        copied(archive, kafka_server, topic)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_target_that_is_deleted_is_noticed(
    archive: WrittenArchive,
    kafka_server: KafkaServer,
    create_topic: CreateTopic,
    monkeypatch: pytest.MonkeyPatch,
    comes_back: bool,
) -> None:
    """In the middle of the copy, and by the next run."""
    topic = create_topic(2, ANY_TIME)
    to = target(archive, kafka_server, topic)
    (task, other), _ = plan_topic(config_of(kafka_server), to)
    assert copy_partition(to, other).records == 300
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    commit, commits = job._Transactions._commit, []

    def committing(self: Any, next_offset: int) -> None:
        commit(self, next_offset)
        commits.append(next_offset)
        if len(commits) == 2:
            admin.delete_topics([topic])[topic].result(60)
            gone(admin, topic)
            if comes_back:
                kafka_server.create_topic(topic, 2, ANY_TIME)

    monkeypatch.setattr(job._Transactions, "_commit", committing)
    monkeypatch.setattr(job, "TRANSACTION_RECORDS_MAX", 100)
    monkeypatch.setattr(job, "LOOK_EVERY_S", 1)
    monkeypatch.setattr(job, "CLOSE_MAX_S", 1)
    message = f"topic {topic} was deleted and recreated after this backfill had started"
    gone_for_good = f"topic {topic} no longer exists: create it again"
    with pytest.raises(ClusterError, match=message if comes_back else gone_for_good):
        copy_partition(to, task)
    if not comes_back:
        with pytest.raises(ClusterError, match=f"topic {topic} does not exist: create it first"):
            plan_topic(config_of(kafka_server), to)
        return
    again, _ = plan_topic(config_of(kafka_server), to)
    # Brokers forget a deleted topic's positions: of this partition one was committed since.
    with pytest.raises(ConfigError, match=message):
        copy_partition(to, again[0])
    assert copy_partition(to, again[1]).records == 300


def gone(admin: AdminClient, topic: str) -> None:
    while topic in admin.list_topics(timeout=30).topics:
        sleep(0.05)


def test_one_that_was_killed_goes_on_and_repeats_nothing(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2, ANY_TIME)
    command = [sys.executable, str(Path(__file__).with_name("topic_copier_process.py"))]
    command += [archive.url, kafka_server.bootstrap, topic]
    for after in (0, RECORDS_MAX, RECORDS_MAX):
        killed = subprocess.run(
            [*command, str(after)], cwd=PROJECT, env=ENVIRONMENT, check=False, timeout=120
        )
        assert killed.returncode == -signal.SIGKILL
    to = target(archive, kafka_server, topic)
    outcome = copy_partition(to, plan_topic(config_of(kafka_server), to)[0][0])
    assert outcome.records == 300 - 2 * RECORDS_MAX
    assert read(kafka_server, topic, 0) == expected(0)


def test_a_target_that_has_records_of_others_is_not_touched(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2, ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce(topic, b"there", partition=0)
    assert producer.flush(20) == 0
    to = target(archive, kafka_server, topic)
    (task, _), _ = plan_topic(config_of(kafka_server), to)
    with pytest.raises(ConfigError, match="has records, and it is not known whether"):
        copy_partition(to, task)
    appending = target(archive, kafka_server, topic, append=True)
    assert copy_partition(appending, task).records == 300
    assert read(kafka_server, topic, 0)[1:] == expected(0)


def test_what_cannot_go_is_said_before_anything_starts(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    plan = partial(plan_topic, config_of(kafka_server))
    with pytest.raises(ConfigError, match=r"has 1 partitions, the source has (at least )?2"):
        plan(target(archive, kafka_server, create_topic(1)))
    with pytest.raises(ClusterError):
        plan(target(archive, kafka_server, "no-such-topic"))
    by_token = ClusterConfig(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")
    with pytest.raises(ConfigError, match="PLAIN and SCRAM"):
        kafka_settings(by_token)
