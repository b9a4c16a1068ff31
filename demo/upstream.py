"""The Kafka cluster of the demo.

It is librdkafka's mock cluster, which deletes old records by itself, or a real Apache Kafka broker,
which deletes them on request.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from demo import records
from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_VERSION
from lab.mock_cluster import MockCluster
from lab.process import StartedServer

# The records of each partition that a trimmed broker keeps: about as many as the mock cluster.
_RECORDS_KEPT = 17_000


class Upstream(StartedServer):
    """`with MockUpstream() as upstream: … upstream.bootstrap`."""

    name: str
    # The mock cluster does not wake a waiting fetch when data arrive, so its tail readers fetch
    # often.
    fetch_wait_ms: int
    # The number of records that may be produced but not archived yet, without losing any.
    lead_records_max: int

    _server: MockCluster | KafkaServer

    @property
    def bootstrap(self) -> str:
        return self._server.bootstrap

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @abstractmethod
    def create_topics(self) -> None: ...

    @abstractmethod
    def forget(self, archived_ends: Mapping[int, int]) -> str:
        """Deletes the beginning of the topic at the broker. Returns a sentence about it."""


class MockUpstream(Upstream):
    name = "librdkafka's mock cluster"
    fetch_wait_ms = 2
    lead_records_max = 10_000  # at ~270 B this is about half of the 5 MiB that it keeps

    def __init__(self) -> None:
        self._server = MockCluster()

    def create_topics(self) -> None:
        asking = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for topic in (records.TOPIC, records.LIVE_TOPIC):
            asking.list_topics(topic, timeout=30)

    def forget(self, archived_ends: Mapping[int, int]) -> str:
        return "This broker keeps the last 5 MiB of each partition, so it has dropped the rest."


class KafkaUpstream(Upstream):
    name = f"Apache Kafka {KAFKA_VERSION}"
    fetch_wait_ms = 500
    lead_records_max = records.RECORDS_PER_PARTITION

    def __init__(self) -> None:
        self._server: KafkaServer = KafkaServer()

    def create_topics(self) -> None:
        for topic in (records.TOPIC, records.LIVE_TOPIC):
            self._server.create_topic(topic, records.PARTITIONS)

    def forget(self, archived_ends: Mapping[int, int]) -> str:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        kept_from = [
            Position(records.TOPIC, partition, end - _RECORDS_KEPT)
            for partition, end in archived_ends.items()
        ]
        for trimmed in admin.delete_records(kept_from).values():
            trimmed.result(timeout=30)
        return (
            f"DeleteRecords, sent to the broker directly, has removed all but the last "
            f"{_RECORDS_KEPT:,} records of each partition."
        )


def open_upstream(kind: str) -> Upstream:
    return {"mock": MockUpstream, "kafka": KafkaUpstream}[kind]()
