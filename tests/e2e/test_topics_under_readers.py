"""A topic is made again, or gets partitions, under a client that reads it: the new records, all of
them, and none of the old ones. Each client reads a topic without an archive from the broker as
well: what happens to it there may happen to it through the proxy.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from archive_process import segments
from archived_topics import archive_and_trim, new_topic
from client_readers import Records
from confluent_kafka.admin import AdminClient, NewPartitions
from java_reader import RECORD, JavaReader
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OLD, NEW, GROWN = 400, 450, 3
REFRESH_MS = 300  # of the clients' metadata: nothing else tells them of new partitions
# UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC_ID and INCONSISTENT_TOPIC_ID; librdkafka: no such topic yet.
NO_TOPIC = {3, 100, 103, -188}
Row = tuple[int, int, bytes, bytes]  # partition, offset, key, value
Rows = Callable[[], list[Row]]
_groups = itertools.count(1)


@contextmanager
def polled(poll: Callable[[], list[Row]]) -> Iterator[Rows]:
    """What `poll` has brought so far, in its order. It runs in a thread; what it raises counts."""
    rows: list[Row] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                rows.extend(poll())
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the rows
            failures.append(error)

    def so_far() -> list[Row]:
        if failures:
            raise failures[0]
        return rows.copy()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield so_far
    finally:
        stop.set()
        thread.join()


@contextmanager
def librdkafka(bootstrap: str, topic: str, folder: Path) -> Iterator[Rows]:
    settings = {"bootstrap.servers": bootstrap, "group.id": f"under-{next(_groups)}"}
    settings |= {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 8_000}
    more = {"enable.auto.commit": False, "topic.metadata.refresh.interval.ms": REFRESH_MS}
    consumer = confluent_kafka.Consumer({**settings, **more})
    consumer.subscribe([topic])

    def poll() -> list[Row]:
        messages = consumer.consume(50, timeout=0.1)
        errors = {m.error().code() for m in messages if m.error() is not None}
        assert errors <= NO_TOPIC, errors
        sound = [m for m in messages if m.error() is None]
        return [(m.partition(), m.offset(), m.key(), m.value()) for m in sound]

    with closing(consumer), polled(poll) as rows:
        yield rows


@contextmanager
def kafka_python(bootstrap: str, topic: str, folder: Path) -> Iterator[Rows]:
    """Without a group: beside a broker itself, its groups sometimes stay without partitions after a
    look that did not find the topic.
    """
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=8_000,
        metadata_max_age_ms=REFRESH_MS,
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])

    def poll() -> list[Row]:
        polled = consumer.poll(timeout_ms=100, max_records=50)
        return [(r.partition, r.offset, r.key, r.value) for rs in polled.values() for r in rs]

    with closing(consumer), polled(poll) as rows:
        yield rows


@contextmanager
def java(bootstrap: str, topic: str, folder: Path) -> Iterator[Rows]:
    (folder / bootstrap).mkdir()
    reader = JavaReader(
        bootstrap,
        topic,
        folder / bootstrap,
        f"under-{next(_groups)}",
        auto_offset_reset="earliest",
        metadata_max_age_ms=REFRESH_MS,
    )
    with reader:
        yield lambda: [
            (int(partition), int(offset), key.encode(), value.encode())
            for partition, offset, key, value in RECORD.findall(reader.read())
        ]


FollowingReader = Callable[[str, str, Path], AbstractContextManager[Rows]]
READERS = [librdkafka, kafka_python, pytest.param(java, marks=pytest.mark.slow)]


def made_again(kafka_server: KafkaServer, name: str) -> TopicData:
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    admin.delete_topics([name])[name].result(30)
    wait_for("its end", lambda: name not in admin.list_topics(timeout=20).topics)
    new = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, new, NEW, size=77)
    return new


@pytest.mark.parametrize("reader", READERS)
def test_a_topic_is_made_again_under_its_reader(
    reader: FollowingReader,
    kafka_server: KafkaServer,
    proxy: ProxyProcess,
    e2e_store: str,
    tmp_path: Path,
) -> None:
    archived, plain = (f"{kind}-again-{reader.__name__}" for kind in ("e2e", "plain"))
    old = {name: new_topic(kafka_server, name) for name in (archived, plain)}
    for data in old.values():
        produce(kafka_server.bootstrap, data, OLD)
    archive_and_trim(kafka_server.bootstrap, e2e_store, old[archived])
    with (
        reader(proxy.bootstrap, archived, tmp_path) as through,
        reader(kafka_server.bootstrap, plain, tmp_path) as direct,
    ):
        for rows in (through, direct):
            wait_for("the old topic", lambda rows=rows: len(rows()) == OLD)
        new = {name: made_again(kafka_server, name) for name in (archived, plain)}
        wait_for("its archive", lambda: _archived_up_to(e2e_store, archived, NEW))
        trim(kafka_server.bootstrap, archived, {0: NEW - 10})
        for name, rows in ((archived, through), (plain, direct)):
            wait_for(f"the end of {name}", lambda rows=rows: rows()[-1][1] == NEW - 1)
            rows_read = [row[1:] for row in rows()]
            assert rows_read[:OLD] == old[name].written[0]
            first = rows_read[OLD][0]  # 0, or the client's old position
            assert rows_read[OLD:] == new[name].written[0][first:]


def _archived_up_to(store: str, topic: str, end: int) -> bool:
    return any(row["last_offset"] == end - 1 for row in segments(store, topic))


# Not kafka-python: beside a broker itself, it sometimes does not rebalance for new partitions.
@pytest.mark.parametrize("reader", [librdkafka, pytest.param(java, marks=pytest.mark.slow)])
def test_a_topic_gets_partitions_under_its_reader(
    reader: FollowingReader,
    kafka_server: KafkaServer,
    proxy: ProxyProcess,
    e2e_store: str,
    tmp_path: Path,
) -> None:
    """Their first records have left the broker before the client hears of them."""
    data = new_topic(kafka_server, f"e2e-grows-{reader.__name__}")
    produce(kafka_server.bootstrap, data, 100)
    archive_and_trim(kafka_server.bootstrap, e2e_store, data, keep=10)
    with reader(proxy.bootstrap, data.topic, tmp_path) as rows:

        def records_now() -> Records:
            """Once each: a rebalance may take a client back to its group's last commit."""
            records = sorted({(partition, tuple(record)) for partition, *record in rows()})
            return {p: [r for of, r in records if of == p] for p in {of for of, _ in records}}

        wait_for("the first partition", lambda: records_now() == data.written)
        admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
        admin.create_partitions([NewPartitions(data.topic, GROWN)])[data.topic].result(30)
        produce(kafka_server.bootstrap, data, 200, partition_count=GROWN)
        archive_and_trim(kafka_server.bootstrap, e2e_store, data, keep=30)
        wait_for("all partitions", lambda: records_now() == data.written)
