"""The store goes away: clients get no wrong response, keep their positions, and finish
afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim, new_topic
from client_readers import PYTHON_CLIENTS
from held_reader import CLIENTS, held_readers
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from removable_store import RemovableStore, folder_store, store_of_kind
from topic_data import TopicData, produce

from lab.clouds import AzureServer, GcsServer
from lab.kafka import KafkaServer
from lab.s3 import RcloneServer, S3Server
from lab.store_server import StoreServer

pytestmark = pytest.mark.kafka

OUTAGE_S = 5.5


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest) -> RemovableStore:
    return store_of_kind(request)


def archived_topic(
    kafka: KafkaServer, store: RemovableStore, folder: Path, name: str, count: int = 600
) -> TopicData:
    """A first proxy archives the topic, so that the test's proxy starts without knowledge."""
    data = new_topic(kafka, name)
    produce(kafka.bootstrap, data, count)
    with ProxyProcess(kafka.bootstrap, store.url, folder, archive=name, settings=SETTINGS):
        archive_and_trim(kafka.bootstrap, store.url, data)
    return data


def test_readers_wait_through_an_outage(
    kafka_server: KafkaServer, store: RemovableStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The archiver is in the same process and continues copying afterwards."""
    name = f"outage-{request.node.callspec.id}"
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 600)
    with ProxyProcess(
        kafka_server.bootstrap, store.url, tmp_path, archive=name,
        settings={**SETTINGS, **NO_MEMORY},
    ) as proxy:  # fmt: skip
        archive_and_trim(kafka_server.bootstrap, store.url, data)
        with held_readers(proxy.bootstrap, name, {0: 700}, hold_at=100) as readers:
            store.take_away()
            for reader in readers:
                reader.go_on()
            time.sleep(OUTAGE_S)
            produce(kafka_server.bootstrap, data, 100)  # the tail is available, even unarchived
            stood_at = [reader.count for reader in readers]
            assert all(100 <= count < 400 for count in stood_at), "it was read from memory"
            assert not any(reader.errors for reader in readers)
            wait_for("its report", lambda: "outage" in proxy.get("/api/status"))
            store.bring_back()
            for reader in readers:
                assert reader.records() == data.written
        archive_and_trim(kafka_server.bootstrap, store.url, data, keep=20)
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


SERVERS: dict[str, tuple[str, Callable[[], StoreServer]]] = {
    "versitygw": ("s3", S3Server),
    "rclone": ("rclone", RcloneServer),
    "gcs": ("gcs", GcsServer),
    "azure": ("azure", AzureServer),
}


@pytest.fixture(
    params=[
        pytest.param("versitygw", marks=pytest.mark.s3),
        pytest.param("rclone", marks=pytest.mark.s3),
        pytest.param("gcs", marks=pytest.mark.gcs),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def store_server(
    request: pytest.FixtureRequest,
    serve_part: Callable[[str, StoreServer], Iterator[StoreServer]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[StoreServer]:
    part, make = SERVERS[request.param]
    for server in serve_part(part, make()):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.slow
def test_a_store_freezes_and_then_is_killed(
    kafka_server: KafkaServer,
    store_server: StoreServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Both happen during reads: no client misses a record or gets an error."""
    name = f"frozen-{request.node.callspec.id}"
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 1500)
    url = store_server.store_url(store_server.create_bucket("frozen"), "archive")
    with ProxyProcess(
        kafka_server.bootstrap, url, tmp_path, archive=name, settings={**SETTINGS, **NO_MEMORY}
    ) as proxy:
        archive_and_trim(kafka_server.bootstrap, url, data)
        with held_readers(proxy.bootstrap, name, {0: 1500}, hold_at=100) as readers:
            store_server.pause()
            for reader in readers:
                reader.go_on()
            time.sleep(OUTAGE_S)
            assert all(100 <= reader.count < 500 for reader in readers), "it was read from memory"
            store_server.resume()
            wait_for("reads again", lambda: any(reader.count >= 500 for reader in readers))
            store_server.kill()
            assert not all(reader.finished for reader in readers)
            time.sleep(1)
            store_server.start()
            for reader in readers:
                assert reader.records() == data.written
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


def test_a_proxy_that_starts_in_an_outage(
    kafka_server: KafkaServer, store: RemovableStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It does not know the archive: it gives no OffsetOutOfRange and no wrong beginning."""
    name = f"start-{request.node.callspec.id}"
    data = archived_topic(kafka_server, store, tmp_path, name)
    start = 503
    store.take_away()
    with (
        ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as proxy,
        held_readers(proxy.bootstrap, name, {0: 600}) as readers,
        RawConnection(proxy.bootstrap) as raw,
    ):
        until = time.monotonic() + OUTAGE_S
        while time.monotonic() < until:
            fetched = raw.fetch(12, name, None, 0, wait_ms=300)
            assert (fetched.error, fetched.records) == (0, b"")
            # seek_to_beginning: a retriable error, never the broker's own start
            error, _, offset = raw.list_offset(6, name, -2)
            assert (error, offset) == (56, -1)
        # the broker's log is served all the time
        assert raw.fetch_until_data(12, name, None, start).error == 0
        for reader in readers:
            assert (reader.count, reader.errors, reader.finished) == (0, [], False)
        store.bring_back()
        for reader in readers:
            assert reader.records() == data.written
        wait_for("the beginning", lambda: raw.list_offset(6, name, -2) == (0, -1, 0))


@pytest.mark.parametrize("client", [pytest.param(CLIENTS[0], marks=pytest.mark.slow), CLIENTS[1]])
def test_seek_to_beginning_in_an_outage(
    kafka_server: KafkaServer, tmp_path: Path, client: str
) -> None:
    """Real clients repeat ListOffsets until the store is back, and then begin at 0."""
    import threading

    store = folder_store(tmp_path)
    name = f"seek-beginning-{client}"
    data = archived_topic(kafka_server, store, tmp_path, name, count=200)
    store.take_away()
    earliest: dict[str, dict[str, object]] = {
        "kafka-python": {"auto_offset_reset": "earliest"},
        "confluent-kafka": {"auto.offset.reset": "earliest"},
    }
    with ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as proxy:
        back = threading.Timer(3.0, store.bring_back)
        back.start()
        offsets = read_from_beginning(client, proxy.bootstrap, name, 200, earliest[client])
        back.join()
    assert offsets == [offset for offset, _, _ in data.written[0]]


def read_from_beginning(
    client: str, bootstrap: str, topic: str, end: int, settings: dict[str, object]
) -> list[int]:
    import confluent_kafka
    import kafka

    offsets: list[int] = []
    deadline = time.monotonic() + 60
    if client == "kafka-python":
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **settings)
        tp = kafka.TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning(tp)
        try:
            while not offsets or offsets[-1] < end - 1:
                for records in consumer.poll(timeout_ms=200).values():
                    offsets += [record.offset for record in records]
                assert time.monotonic() < deadline, offsets[-1:]
        finally:
            consumer.close()
        return offsets
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "beginning", **settings}
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    try:
        while not offsets or offsets[-1] < end - 1:
            for message in reader.consume(200, timeout=0.2):
                assert message.error() is None, message.error()
                offsets.append(message.offset())
            assert time.monotonic() < deadline, offsets[-1:]
    finally:
        reader.close()
    return offsets


@pytest.mark.s3
def test_replay_from_s3(
    kafka_server: KafkaServer, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    name = "e2e-from-s3"
    url = s3_server.store_url(s3_bucket, "years/of/data")
    data = new_topic(kafka_server, name, 2)
    with ProxyProcess(
        kafka_server.bootstrap, url, tmp_path, archive=name, settings=SETTINGS
    ) as proxy:
        produce(kafka_server.bootstrap, data, 600, partition_count=2, compression="zstd")
        produce(kafka_server.bootstrap, data, 300, partition_count=2)
        ends = {0: 900, 1: 900}
        archive_and_trim(kafka_server.bootstrap, url, data)
        for read_all in PYTHON_CLIENTS.values():
            assert read_all(proxy.bootstrap, name, ends) == data.written
