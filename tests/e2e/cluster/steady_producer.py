"""A producer that writes to every partition of a topic all the time, whatever brokers do."""

from __future__ import annotations

import threading
import time
from typing import Self

import confluent_kafka
from client_readers import read_confluent
from topic_data import value_of

Record = tuple[int, bytes, bytes]  # offset, key, value


class SteadyProducer:
    """Record N of a partition has offset N and the timestamp `first_ms` + N.

    That holds as long as no broker is killed. If a leader is killed with a batch in flight, the
    batch may be in the log twice, in spite of idempotence; `finish` returns the real log.
    """

    def __init__(self, bootstrap: str, topic: str, partition_count: int, each_s: float) -> None:
        self.counts = dict.fromkeys(range(partition_count), 0)
        self.errors: list[str] = []
        self.first_ms = int(time.time() * 1000) - 3_600_000
        self._bootstrap = bootstrap
        self._topic = topic
        self._each_s = each_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer of {topic}")
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 20,
                "log_level": 0,
                "error_cb": lambda error: None,  # brokers stop on purpose
            }
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def produce(self, count: int) -> None:
        """Produce `count` acknowledged records for each partition."""
        for _ in range(count):
            self._one_each()
        assert self._producer.flush(120) == 0
        assert not self.errors, self.errors[:3]

    def finish(self) -> dict[int, list[Record]]:
        """Stop, and return each partition's log from offset 0, as the brokers have it.

        The brokers have deleted its beginning, which was written before any broker was killed.
        """
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0
        assert not self.errors, self.errors[:3]
        starts, ends = self._edges()
        records_read = read_confluent(self._bootstrap, self._topic, ends, starts, log_level=0)
        written = self.expected()
        for partition, records in records_read.items():
            forgotten = written[partition][: starts[partition]]
            first = dict[bytes, bytes]()
            for _, key, value in [*forgotten, *records]:
                assert first.setdefault(key, value) == value, f"{key!r} with two values"
            assert list(first.items()) == [record[1:] for record in written[partition]]
            written[partition] = [*forgotten, *records]
        return written

    def _edges(self) -> tuple[dict[int, int], dict[int, int]]:
        """Log starts and log ends, from the brokers."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "edges", "log_level": 0}
        )
        try:
            edges = {
                p: consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition(self._topic, p), timeout=30
                )
                for p in self.counts
            }
        finally:
            consumer.close()
        return {p: start for p, (start, _) in edges.items()}, {p: e for p, (_, e) in edges.items()}

    def expected(self) -> dict[int, list[Record]]:
        """The produced records, once and in order."""
        return {
            p: [(n, b"k%d" % n, value_of(p, n, 300)) for n in range(count)]
            for p, count in self.counts.items()
        }

    def _run(self) -> None:
        while not self._stop.wait(self._each_s):
            self._one_each()

    def _one_each(self) -> None:
        for partition, number in list(self.counts.items()):
            key, value = b"k%d" % number, value_of(partition, number, 300)
            self._producer.produce(
                *(self._topic, value, key, partition),
                on_delivery=self._delivered,
                timestamp=self.first_ms + number,
            )
            self.counts[partition] = number + 1
        self._producer.poll(0)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(str(error))
