"""A real archive whose broker is asked no more, and `serve --archive-only` as a process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_readers import Records, read_confluent
from confluent_kafka import Producer
from fetchproxy_command import archive_once
from proxy_process import PROJECT, ProxyProcess
from raw_fetch import RawConnection
from topic_data import TopicData, produce, produce_transactions

from lab import limited
from lab.kafka import KafkaServer
from lab.process import ServerProcess

ISOLATIONS = ("read_uncommitted", "read_committed")
RECORDS, PARTITIONS = 600, 4
# Of the records of `ao-times`, ms; one in the middle is later than all others.
LATEST_AT = 137
_BEGIN_MS = int(time.time() * 1000) - 3_600_000  # not so old that the broker deletes them
TIMES = [_BEGIN_MS + 10 * n + (100_000 if n == LATEST_AT else 0) for n in range(300)]


@dataclass(frozen=True)
class Archived:
    store: str
    plain: TopicData
    transactional: TopicData
    ends: int  # of the transactional topic
    oracle: dict[str, Records]  # of the transactional topic, by isolation
    bytes_of_plain: bytes  # of its partition 0, as the broker sent them


def archive_from(kafka_server: KafkaServer, folder: Path) -> Archived:
    """Three topics, archived as a whole into `folder`."""
    broker = kafka_server.bootstrap
    kafka_server.create_topic("ao-plain", PARTITIONS)
    plain = TopicData("ao-plain")
    produce(broker, plain, RECORDS, partition_count=PARTITIONS, compression="lz4")
    kafka_server.create_topic("ao-txn", 1)
    transactional = TopicData("ao-txn")
    produce_transactions(broker, transactional, 12, 20)
    end = transactional.ends(broker)[0]
    produce_times(kafka_server)
    oracle = {
        isolation: read_confluent(broker, "ao-txn", {0: end}, **{"isolation.level": isolation})
        for isolation in ISOLATIONS
    }
    store = folder.as_uri()
    result = archive_once(broker, store, "ao-.*", {"archive.segment_bytes_max": 40_000})
    assert result.returncode == 0, result.stderr
    return Archived(store, plain, transactional, end, oracle, all_bytes(broker))


def produce_times(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("ao-times", 1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "batch.num.messages": 50})
    for at in TIMES:
        producer.produce("ao-times", b"v", partition=0, timestamp=at)
    assert producer.flush(60) == 0


def all_bytes(bootstrap: str) -> bytes:
    received_bytes = b""
    with RawConnection(bootstrap) as raw:
        topic_id, offset = raw.topic_id("ao-plain"), 0
        while offset < RECORDS:
            fetched = raw.fetch_until_data(16, "ao-plain", topic_id, offset)
            assert fetched.error == 0
            whole = fetched.batches
            received_bytes += b"".join(whole)
            last = int.from_bytes(whole[-1][23:27], "big")
            offset = int.from_bytes(whole[-1][:8], "big") + last + 1
    return received_bytes


class ArchiveOnlyProcess(ProxyProcess):
    """No broker is named to it."""

    def __init__(self, store: str, folder: Path, more: Mapping[str, object] | None = None) -> None:
        super().__init__("unused", store, folder)
        command = ["serve", "--archive-only", "--store", store, "--listen", self.bootstrap]
        command += ["--console", f"127.0.0.1:{self.console_port}"]
        settings = {
            "archive_only.offsets_file": folder / "offsets.json",
            "limits.serving.group_initial_rebalance_delay_ms": 500,
            "archive_only.refresh_interval_ms": 500,
            **(more or {}),
        }
        command = [*limited.command(settings), *command, *limited.options(settings)]
        self._process = ServerProcess("fetchproxy", command, self.log, cwd=PROJECT)

    def assert_sound(self) -> None:
        """Nothing has failed, and no client was sent away."""
        assert self.running, self.log_text()[-4000:]
        for event in ("session_crashed", "part_failed", "library_message"):
            assert not self.logged(event), self.logged(event)[0]
        assert not self.logged("client_connection_closed")
