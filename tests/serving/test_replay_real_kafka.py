"""The main job on a real broker: stock consumers read from offset 0 to the live end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_readers import PYTHON_CLIENTS, ReadAll
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Tp
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce, produce_transactions, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

SETTINGS = {
    "archive.segment_bytes_max": 40_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
    "limits.reading.chunk_bytes": 16_384,
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("proxy")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive="test-.*", settings=SETTINGS
    ) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        crashed = process.logged("session_crashed") + process.logged("part_failed")
        assert not crashed, crashed[0]


def archive_all(store: str, data: TopicData, ends: dict[int, int]) -> None:
    wait_for(f"archive of {ends}", lambda: archived_ends(store, data.topic) == ends)


def refuses_offset_0(bootstrap: str, topic: str, partition: int) -> bool:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "direct", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([Tp(topic, partition, 0)])
        message = consumer.poll(20)
        return message is not None and message.error() is not None
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def replayed(kafka_server: KafkaServer, store: str, proxy: ProxyProcess):
    """Topics whose first records are only in the archive, made once for all clients."""
    made: dict[str, TopicData] = {}

    def make(codec: str, partition_count: int) -> TopicData:
        name = f"test-replay-{codec}-{partition_count}"
        if name not in made:
            kafka_server.create_topic(name, partition_count)
            data = made[name] = TopicData(name)
            produce(
                kafka_server.bootstrap,
                data,
                1500,
                partition_count=partition_count,
                compression=codec,
            )
            archive_all(store, data, data.ends(kafka_server.bootstrap))
            # an offset inside a batch, a different one in each partition
            trim(kafka_server.bootstrap, name, {p: 1111 + 7 * p for p in data.partitions})
            assert refuses_offset_0(kafka_server.bootstrap, name, 0)
        return made[name]

    return make


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
@pytest.mark.parametrize(
    ("codec", "partition_count"), [*((codec, 1) for codec in CODECS), ("lz4", 4)]
)
def test_a_stock_consumer_reads_everything_once_and_in_order(
    replayed, proxy: ProxyProcess, kafka_server: KafkaServer, client: str, codec: str,
    partition_count: int,
) -> None:  # fmt: skip
    data = replayed(codec, partition_count)
    records = PYTHON_CLIENTS[client](proxy.bootstrap, data.topic, data.ends(kafka_server.bootstrap))
    assert records == data.written


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_read_committed_skips_what_was_aborted(
    kafka_server: KafkaServer, store: str, proxy: ProxyProcess, client: str
) -> None:
    name = f"test-tx-{client}"
    kafka_server.create_topic(name, 1)
    data = TopicData(name)
    produce_transactions(kafka_server.bootstrap, data, 30, 40)
    ends = data.ends(kafka_server.bootstrap)
    archive_all(store, data, ends)
    trim(kafka_server.bootstrap, name, {0: 900})
    committed: dict[str, dict[str, object]] = {
        "confluent-kafka": {"isolation.level": "read_committed"},
        "kafka-python": {"isolation_level": "read_committed"},
        "aiokafka": {"isolation_level": "read_committed"},
    }
    reader: ReadAll = PYTHON_CLIENTS[client]
    assert reader(proxy.bootstrap, name, ends, **committed[client]) == data.written


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_the_crossing_point_moves_while_a_consumer_reads(
    kafka_server: KafkaServer, store: str, proxy: ProxyProcess, client: str, tmp_path: Path
) -> None:
    import threading

    name = f"test-moving-{client}"
    kafka_server.create_topic(name, 1)
    data = TopicData(name)
    produce(kafka_server.bootstrap, data, 2000)
    archive_all(store, data, data.ends(kafka_server.bootstrap))
    trim(kafka_server.bootstrap, name, {0: 500})

    def go_on() -> None:
        for _ in range(4):
            produce(kafka_server.bootstrap, data, 500)
            ends = archived_ends(store, name)
            trim(kafka_server.bootstrap, name, {0: ends[0] - 13})

    moving = threading.Thread(target=go_on)
    moving.start()
    records = PYTHON_CLIENTS[client](proxy.bootstrap, name, {0: 4000})
    moving.join()
    assert records == data.written
