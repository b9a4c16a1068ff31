"""`fetchproxy archive` is killed at random moments while producers go on; no data is lost.

`verify` must find no fault. When the broker has deleted most records, a stock consumer also reads
all of them through the proxy: no offset is missing or doubled.
"""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from archive_process import archive_process, segments, verify
from archived_topics import archive_and_trim, new_store, new_topic
from client_readers import read_confluent
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

PARTITIONS = 2
MANY_SMALL = {"archive.segment_bytes_max": 6_000, "limits.writing.fetch_bytes_max": 16_384}


@pytest.mark.parametrize(
    "kills", [4, pytest.param(50, marks=pytest.mark.slow)], ids=["4-kills", "50-kills"]
)
def test_killed_at_random_moments(kafka_server: KafkaServer, tmp_path: Path, kills: int) -> None:
    name = f"archive-killed-{kills}"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name, PARTITIONS)
    produce(kafka_server.bootstrap, data, 200, partition_count=PARTITIONS)
    archiver = archive_process(
        kafka_server.bootstrap, store, name, tmp_path,
        {**MANY_SMALL, "archive.spool_dir": tmp_path / "spool"},
    )  # fmt: skip
    (tmp_path / "spool").mkdir()
    rng = random.Random(kills)
    stop = threading.Event()
    producing = threading.Thread(target=produce_until, args=(stop, kafka_server.bootstrap, data))
    producing.start()
    try:
        for _ in range(kills):
            before = sum(archived_ends(store, name).values())
            archiver.start()
            wait_for(
                "progress", lambda before=before: sum(archived_ends(store, name).values()) > before
            )
            time.sleep(rng.uniform(0.0, 0.4))
            archiver.kill()
    finally:
        stop.set()
        producing.join()
    archiver.start()
    try:
        archive_and_trim(kafka_server.bootstrap, store, data, keep=20)
    finally:
        archiver.stop()
    check_archive(store, name, data)
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
        ends = {p: len(records) for p, records in data.written.items()}
        assert read_confluent(proxy.bootstrap, name, ends) == data.written


def produce_until(stop: threading.Event, bootstrap: str, data: TopicData) -> None:
    while not stop.is_set():
        produce(bootstrap, data, 15, partition_count=PARTITIONS, batch_records=5)
        stop.wait(0.25)


def check_archive(store: str, name: str, data: TopicData) -> None:
    assert verify(store).rstrip().endswith(": clean")
    for partition, records in data.written.items():
        ranges = [
            (row["base_offset"], row["last_offset"])
            for row in segments(store, name)
            if row["partition"] == partition and row["state"] == "COPY_SEGMENT_FINISHED"
        ]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == records[-1][0]
        assert all(last + 1 == base for (_, last), (base, _) in pairwise(ranges))
