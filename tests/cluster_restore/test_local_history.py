"""The last records of a lost cluster in the new brokers themselves, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from folder_fixture import folder_fixture
from local_restore import LocalRestore
from lost_history import (
    ISOLATIONS,
    PARTITIONS,
    LostHistory,
    lose_history,
    producer_ids,
    read_batches,
    read_rows,
    write_transactions,
)
from test_cluster_restore import assert_no_phantom, ends, produced

from fetchproxy.storage.key_rings import NO_KEYS, write_keys
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

BROKERS = {1, 2, 3}


@folder_fixture
def three_empty_brokers(find_part: Callable[..., None]) -> Iterator[KafkaCluster]:
    """Each test restores another topic."""
    cluster = KafkaCluster()
    try:
        find_part("kafka", cluster.start)
        yield cluster
    finally:
        cluster.stop()


def assert_same_records(
    bootstrap: str, servers: Mapping[int, KafkaServer], lost: LostHistory
) -> dict[int, int]:
    """On every replica, the log's own bytes; and what stock consumers read. The starts."""
    now = ends(bootstrap, lost.topic, PARTITIONS)
    assert [end for _, end in now] == [lost.ends[n] for n in range(PARTITIONS)]
    starts = {n: start for n, (start, _) in enumerate(now)}
    for server in servers.values():
        batches = read_batches(server, lost.topic, PARTITIONS)
        for number, start in starts.items():
            expected = {base: raw for base, raw in lost.batches[number].items() if base >= start}
            assert batches[number] == expected, (server.data_dir, number)
    for isolation in ISOLATIONS:
        rows = read_rows(bootstrap, lost.topic, PARTITIONS, isolation)
        for number, start in starts.items():
            expected_rows = [row for row in lost.rows[isolation][number] if row[0] >= start]
            assert rows[number] == expected_rows, (isolation, number)
    return starts


def assert_producers_go_on(
    bootstrap: str, servers: Mapping[int, KafkaServer], lost: LostHistory
) -> None:
    """Their ids are new: no broker takes their records for archived ones."""
    for number in range(PARTITIONS):
        assert produced(bootstrap, lost.topic, number, b"next") == lost.ends[number]
    write_transactions(bootstrap, lost.topic, f"{lost.topic}-0", 2)
    for server in servers.values():
        batches = read_batches(server, lost.topic, PARTITIONS)
        new = {n: {base: raw for base, raw in of_n.items() if base >= lost.ends[n]}
               for n, of_n in batches.items()}  # fmt: skip
        assert min(producer_ids(new), default=1 << 62) > lost.producer_id_max


def test_all_records_are_as_before_on_every_replica_also_if_it_was_killed(
    own_kafka_server: KafkaServer, three_empty_brokers: KafkaCluster, tmp_path: Path
) -> None:
    """The restore is killed while followers fetch, and is run again."""
    lost = lose_history(own_kafka_server, "history", tmp_path, megabytes=30)
    bootstrap, servers = three_empty_brokers.bootstrap, three_empty_brokers.nodes
    run = (bootstrap, lost.store, tmp_path / "job", "1GiB", 3)
    LocalRestore(*run).kill_while_serving()

    report = LocalRestore(*run).report()

    assert not report["faults"]
    local = {(one["topic"], one["partition"]): one for one in report["local"]}
    assert {place: (one["first_offset"], one["end_offset"]) for place, one in local.items()} == {
        ("history", n): (0, lost.ends[n]) for n in range(PARTITIONS)
    }
    assert report["producer_id_max"] >= lost.producer_id_max
    three_empty_brokers.wait_for_in_sync("history")
    assert set(assert_same_records(bootstrap, servers, lost).values()) == {0}
    assert_producers_go_on(bootstrap, servers, lost)
    assert_no_phantom(bootstrap, BROKERS)


@pytest.mark.slow
def test_the_last_bytes_begin_at_a_batch(
    own_kafka_server: KafkaServer, three_empty_brokers: KafkaCluster, tmp_path: Path
) -> None:
    lost = lose_history(own_kafka_server, "tail", tmp_path)
    bootstrap, servers = three_empty_brokers.bootstrap, three_empty_brokers.nodes

    report = LocalRestore(bootstrap, lost.store, tmp_path / "job", "200KiB", 3).report()

    three_empty_brokers.wait_for_in_sync("tail")
    starts = assert_same_records(bootstrap, servers, lost)
    for number, start in starts.items():
        assert start in lost.batches[number]
        size = sum(len(raw) for base, raw in lost.batches[number].items() if base >= start)
        assert 100 << 10 < size <= 200 << 10
    assert [one["first_offset"] for one in report["local"]] == list(starts.values())
    # A restore that is done changes nothing, also after new records, and whatever it is to do.
    assert_producers_go_on(bootstrap, servers, lost)
    for local in ("200KiB", "1GiB", None):
        again = LocalRestore(bootstrap, lost.store, tmp_path / "job", local, 3).report()
        assert not again["faults"]
        assert not again["refused"]
    assert [start for start, _ in ends(bootstrap, "tail", PARTITIONS)] == list(starts.values())


@pytest.mark.slow
def test_packed_segments_come_into_a_topic_that_is_empty_also_if_it_was_killed(
    own_kafka_server: KafkaServer, three_empty_brokers: KafkaCluster, tmp_path: Path
) -> None:
    """While followers fetch, no real broker may lead: its log is not whole."""
    keys = tmp_path / "keys"
    write_keys(keys, NO_KEYS.with_new("k", bytes(32)), new=True)
    packed = {"store.compression": "zstd", "store.encryption_keys": str(keys)}
    lost = lose_history(
        own_kafka_server, "packed", tmp_path, megabytes=20, more_settings=packed
    )  # fmt: skip
    bootstrap, servers = three_empty_brokers.bootstrap, three_empty_brokers.nodes
    three_empty_brokers.create_topic("packed", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    run = (bootstrap, lost.store, tmp_path / "job", "1GiB", 3, str(keys))
    LocalRestore(*run).kill_while_serving()

    report = LocalRestore(*run).report()

    assert not report["refused"]
    assert not report["faults"]
    three_empty_brokers.wait_for_in_sync("packed")
    assert set(assert_same_records(bootstrap, servers, lost).values()) == {0}
    assert_producers_go_on(bootstrap, servers, lost)
    assert_no_phantom(bootstrap, BROKERS)
