"""One librdkafka consumer that reads a given number of records of a topic from offset 0.

`python -m benchmarks.drain CONSUMER BOOTSTRAP TOPIC PARTITIONS RECORDS` prints `{"seconds": …,
"cpu_seconds": …}` as JSON. It is a process of its own, so its CPU time is only its own and no run
inherits memory or threads from the run before.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

_STALLED_S = 60.0
_BATCH_RECORDS = 10_000  # `consume` makes the message objects in C; Python only counts them

_SETTINGS = {"group.id": "benchmark", "enable.auto.commit": False, "auto.offset.reset": "error"}
STOCK = "stock"
UNPAUSED = "unpaused"
TLS = "TLS"
PLAINTEXT = (STOCK, UNPAUSED)
# A stock librdkafka stops fetching for a second when 64 MiB of records wait for its application.
# Users run this client, but it tells more about the pauses than about the way to the broker: a
# faster way only causes more pauses. The second consumer has large fetches and does not pause. The
# third does the same by TLS.
_UNPAUSED: dict[str, int | str] = {
    "max.partition.fetch.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": 256 * 1024,
    "queued.min.messages": 10_000_000,
    "fetch.queue.backoff.ms": 1,
}
CONSUMERS: dict[str, dict[str, int | str]] = {
    STOCK: {},
    UNPAUSED: _UNPAUSED,
    TLS: {
        **_UNPAUSED,
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "false",
    },
}


def drain(
    settings: Mapping[str, int | str], bootstrap: str, topic: str, partitions: int, records: int
) -> tuple[float, float]:
    """(seconds, CPU seconds of this process), from the first fetch. Raises KafkaException."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **_SETTINGS, **settings})
    consumer.list_topics(topic, timeout=30.0)
    cpu_before, begun = _cpu_seconds(), time.perf_counter()
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    count = 0
    while count < records:
        batch = consumer.consume(_BATCH_RECORDS, timeout=0.1)
        if not batch and time.perf_counter() - begun > _STALLED_S:
            raise SystemExit(f"only {count} of {records} records after {_STALLED_S} s")
        # An error is a message of its own in the queue, so a check of each batch's ends finds it
        # soon enough.
        for message in batch[:1] + batch[-1:]:
            if message.error() is not None:
                raise KafkaException(message.error())
        count += len(batch)
    seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - cpu_before
    consumer.close()
    return seconds, cpu_seconds


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    name, bootstrap, topic, partitions, records = sys.argv[1:]
    took = drain(CONSUMERS[name], bootstrap, topic, int(partitions), int(records))
    print(json.dumps({"seconds": took[0], "cpu_seconds": took[1]}))
