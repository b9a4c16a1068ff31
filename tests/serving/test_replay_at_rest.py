"""Stock consumers read a compressed and encrypted archive through a proxy as users run it.

The tests also check the errors of a proxy that lacks the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_readers import PYTHON_CLIENTS
from fetchproxy_command import output_of
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.record_batch import walk
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from test_replay_real_kafka import SETTINGS, archive_all, refuses_offset_0
from topic_data import TopicData, produce, trim

from fetchproxy.storage.key_rings import NO_KEYS, read_keys, write_keys
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("at-rest")
    write_keys(made / "keys.json", NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return made


@pytest.fixture(scope="module")
def proxy(module_kafka_server: KafkaServer, folder: Path) -> Iterator[ProxyProcess]:
    settings = {
        **SETTINGS,
        "store.compression": "zstd",
        "store.encryption_keys": str(folder / "keys.json"),
        "archive.spool_dir": str(folder / "spool"),
    }
    store = (folder / "store").as_uri()
    (folder / "store").mkdir()
    with ProxyProcess(
        module_kafka_server.bootstrap, store, folder, archive="test-.*", settings=settings
    ) as process:
        yield process
        crashed = process.logged("session_crashed") + process.logged("part_failed")
        assert not crashed, crashed[0]


@pytest.fixture(scope="module")
def replayed(module_kafka_server: KafkaServer, folder: Path, proxy: ProxyProcess) -> TopicData:
    """Its first records are only in the archive, in segments of two keys."""
    kafka = module_kafka_server
    kafka.create_topic("test-at-rest", 2)
    data = TopicData("test-at-rest")
    for key_id, codec in (("k1", "none"), ("k2", "lz4")):
        ring = folder / "keys.json"
        if key_id not in read_keys(ring).keys:
            write_keys(ring, read_keys(ring).with_new(key_id, bytes(32)), new=False)
        produce(kafka.bootstrap, data, 1_000, partition_count=2, compression=codec)
        archive_all((folder / "store").as_uri(), data, data.ends(kafka.bootstrap))
    trim(kafka.bootstrap, data.topic, {0: 700, 1: 800})
    assert refuses_offset_0(kafka.bootstrap, data.topic, 0)
    return data


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_stock_consumer_reads_everything_once_and_in_order(
    module_kafka_server: KafkaServer, replayed: TopicData, proxy: ProxyProcess, client: str
) -> None:
    ends = replayed.ends(module_kafka_server.bootstrap)
    assert PYTHON_CLIENTS[client](proxy.bootstrap, replayed.topic, ends) == replayed.written


def test_nothing_in_the_store_is_in_the_clear(replayed: TopicData, folder: Path) -> None:
    packings = [*(folder / "store").rglob("*.packing")]
    assert len(packings) == len([*(folder / "store").rglob("*.log")]) > 2
    keys = {key for path in packings for key in ("k1", "k2") if f'"{key}"' in path.read_text()}
    assert keys == {"k1", "k2"}
    some = {value for _, _, value in replayed.written[0][:50]}
    stored = b"".join(p.read_bytes() for p in (folder / "store").rglob("*.log"))
    assert not any(value in stored for value in some)


def test_a_proxy_without_the_key_says_so_and_serves_nothing_else(
    module_kafka_server: KafkaServer, replayed: TopicData, folder: Path
) -> None:
    store = (folder / "store").as_uri()
    with ProxyProcess(module_kafka_server.bootstrap, store, folder) as process:
        with RawConnection(process.bootstrap) as connection:
            fetched = connection.fetch_until_data(11, replayed.topic, None, 0)
        assert (fetched.error, fetched.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        status = process.get("/api/status")
    assert "segments_locked" in status
    assert "store.encryption_keys is not set" in status


@pytest.mark.remedy("segment_metadata_changed")
def test_metadata_that_somebody_has_changed_are_not_served_by(
    module_kafka_server: KafkaServer, replayed: TopicData, folder: Path
) -> None:
    """The changed metadata give a shorter segment: clients would skip its last records. `verify
    --repair` makes them again, and the process that refused them serves the segment.
    """
    first = min((folder / "store").glob(f"{replayed.topic}-*/0/*.metadata"))
    as_it_was = first.read_bytes()
    document = json.loads(as_it_was)
    document["end_offset"] -= 5
    first.write_text(json.dumps(document))
    store, keys = (folder / "store").as_uri(), {"store.encryption_keys": folder / "keys.json"}
    try:
        with ProxyProcess(module_kafka_server.bootstrap, store, folder, settings=keys) as process:
            with RawConnection(process.bootstrap) as connection:
                fetched = connection.fetch_until_data(11, replayed.topic, None, 0)
            assert (fetched.error, fetched.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
            status = process.get("/api/status")
            assert "segment_metadata_changed" in status
            assert "it differs from what the segment was encrypted with: end_offset is" in status
            repair = ("verify", "--repair", "--store", store)
            more = ("--set", f"store.encryption_keys={folder / 'keys.json'}")
            output_of(*repair, *more)
            assert first.read_bytes() == as_it_was
            with RawConnection(process.bootstrap) as connection:
                wait_for(
                    "the segment is served",
                    lambda: connection.fetch(11, replayed.topic, None, 0).records,
                )
            wait_for(
                "the end of the condition",
                lambda: json.loads(process.get("/api/status"))["conditions"] == [],
            )
    finally:
        first.write_bytes(as_it_was)


def test_served_batches_are_the_brokers_own(
    module_kafka_server: KafkaServer, proxy: ProxyProcess, folder: Path
) -> None:
    """The archive serves byte for byte what the broker served before its log was trimmed."""
    kafka = module_kafka_server
    trimmed = TopicData("test-at-rest-bytes")
    kafka.create_topic(trimmed.topic, 1)
    produce(kafka.bootstrap, trimmed, 500)
    with RawConnection(kafka.bootstrap) as connection:
        own_data = read_all(connection, trimmed.topic)
    archive_all((folder / "store").as_uri(), trimmed, trimmed.ends(kafka.bootstrap))
    trim(kafka.bootstrap, trimmed.topic, {0: 500})
    with RawConnection(proxy.bootstrap) as connection:
        assert read_all(connection, trimmed.topic) == own_data


def read_all(connection: RawConnection, topic: str) -> bytes:
    data, offset = b"", 0
    while offset < 500:
        fetched = connection.fetch_until_data(11, topic, None, offset)
        assert fetched.error == 0
        *_, last = walk(fetched.records)
        data += fetched.records[: last.end]
        offset = last.last_offset + 1
    return data
