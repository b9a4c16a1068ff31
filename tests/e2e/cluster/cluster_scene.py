"""One topic under load, while a test does things to the cluster.

It is written all the time and archived, and the brokers delete its beginning. Stock clients read it
from there through the proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from archive_process import verify
from client_readers import read_confluent
from held_reader import HeldReader
from java_reader import JavaReader
from proxy_process import ProxyProcess, wait_for
from steady_producer import SteadyProducer
from topic_data import archived_ends, trim

from lab.kafka_cluster import KafkaCluster

NOT_YET = 1 << 40  # an end that no reader reaches
FORGOTTEN = 300  # of each partition's first 400 records
QUIET = {"log_level": 0, "error_cb": lambda error: None}  # brokers stop on purpose

Assignment = Sequence[Sequence[int]]


class ClusterScene:
    """In the `with` block the readers have read the archive up to the tail and go on reading."""

    def __init__(
        self,
        cluster: KafkaCluster,
        proxy: ProxyProcess,
        store: str,
        topic: str,
        assignment: Assignment,
        folder: Path,
        java: bool = True,
    ) -> None:
        self.topic = topic
        self.partition_count = len(assignment)
        self.cluster, self.proxy, self.store = cluster, proxy, store
        cluster.create_topic(topic, assignment)
        self.producer = SteadyProducer(cluster.bootstrap, topic, len(assignment), each_s=0.05)
        self._ends = dict.fromkeys(range(len(assignment)), NOT_YET)
        self._folder = folder
        self._java = java
        self.java: JavaReader | None = None
        self.readers: list[HeldReader] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.producer.produce(400)
            self.wait_until_archived(400)
            trim(self.cluster.bootstrap, self.topic, dict.fromkeys(self._ends, FORGOTTEN))
            bootstrap = self.proxy.bootstrap
            for client, more in (("confluent-kafka", QUIET), ("kafka-python", {})):
                reader = HeldReader(client, bootstrap, self.topic, self._ends, **more)
                self.readers.append(stack.enter_context(reader))
            if self._java:
                java = JavaReader(bootstrap, self.topic, self._folder)
                self.java = stack.enter_context(java)
            stack.enter_context(self.producer)
            self.wait_until_read(400)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_archived(self, count: int) -> None:
        """Wait until at least `count` records of each partition are archived."""

        def archived() -> bool:
            ends = archived_ends(self.store, self.topic)
            return len(ends) == self.partition_count and min(ends.values()) >= count

        wait_for(f"{count} records of {self.topic} archived", archived)

    def wait_until_read(self, count: int | None = None) -> None:
        """Wait until all readers have `count` records a partition; None: all written so far."""
        count_expected = min(self.producer.counts.values()) if count is None else count

        def read() -> bool:
            for reader in self.readers:
                assert not reader.errors, reader.errors
                if min(len(records) for records in reader.read.values()) < count_expected:
                    return False
            return self.java is None or self.java.has(count_expected)

        wait_for(f"{count_expected} records of {self.topic} read", read, timeout_s=120.0)

    def finish(self) -> None:
        """Check that all was read once and in order, is archived and readable from the archive."""
        expected = self.producer.finish()
        ends = {partition: len(records) for partition, records in expected.items()}
        self._ends.update(ends)
        for reader in self.readers:
            assert reader.records() == expected
        if self.java is not None:
            assert self.java.records(ends[0]) == expected[0]
        wait_for(f"archive of {ends}", lambda: archived_ends(self.store, self.topic) == ends)
        verify(self.store)
        trim(self.cluster.bootstrap, self.topic, ends)
        assert read_confluent(self.proxy.bootstrap, self.topic, ends, **QUIET) == expected
