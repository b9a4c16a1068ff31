"""A stock consumer with a rack that counts the bytes it gets from each broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Self

import confluent_kafka

READ_S = 60.0


class RackReader:
    """confluent-kafka on one partition from offset 0; it never resets its position."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self.read: list[tuple[int, bytes, bytes]] = []
        self._bytes_from: dict[int, int] = {}
        self._where = confluent_kafka.TopicPartition(topic, 0, 0)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"rack-{topic}",
                "client.rack": rack,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": 8000,
                "queued.max.messages.kbytes": 1,
                "queued.min.messages": 1,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 10,
                "statistics.interval.ms": 100,
                "stats_cb": self._note,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.assign([self._where])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def bytes_from(self, node_id: int) -> int:
        """Bytes received on connections to this node so far, from the client's own statistics."""
        return self._bytes_from.get(node_id, 0)

    def read_until(self, count: int) -> None:
        """Read until there are `count` records since the start or the last `seek`."""
        self._poll_until(lambda: len(self.read) >= count, f"{count} records")

    def read_from(self, node_id: int, size_bytes: int) -> None:
        """Read until this node has sent `size_bytes` in all. Statistics lag behind the records."""
        self._poll_until(
            lambda: self.bytes_from(node_id) >= size_bytes, f"{size_bytes} bytes of {node_id}"
        )

    def _poll_until(self, check: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READ_S
        while not check():
            self.poll()
            state = f"read {len(self.read)}, {self._bytes_from} bytes"
            assert time.monotonic() < deadline, f"not in {READ_S} s: {what}; {state}"

    def poll(self) -> None:
        for message in self._consumer.consume(50, timeout=0.1):
            assert message.error() is None, message.error()
            self.read.append((message.offset(), message.key(), message.value()))

    def pause(self) -> None:
        self._consumer.pause([self._where])

    def resume(self) -> None:
        self._consumer.resume([self._where])

    def seek(self, offset: int) -> None:
        self.read = []
        where = confluent_kafka.TopicPartition(self._where.topic, 0, offset)
        self._consumer.seek(where)

    def _note(self, statistics: str) -> None:
        brokers: dict[str, dict[str, Any]] = json.loads(statistics)["brokers"]
        for broker in brokers.values():
            if broker["nodeid"] >= 0:
                self._bytes_from[broker["nodeid"]] = broker["rxbytes"]
