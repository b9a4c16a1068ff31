"""One librdkafka consumer that reads a topic from offset 0 to a given number of records.

`python -m benchmarks.drain BOOTSTRAP TOPIC PARTITIONS RECORDS` prints
`{"seconds": …, "cpu_seconds": …}` as JSON. A process of its own, so that its CPU time is its own
and no run finds memory or threads of the run before.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

_STALLED_S = 60.0
_BATCH_RECORDS = 10_000  # `consume` makes the message objects in C; Python only counts them

# Stock, but for the sizes: with librdkafka's own queue limits (64 MiB, then a pause of one second)
# this would measure how the consumer sleeps.
_SETTINGS = {
    "group.id": "benchmark",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "max.partition.fetch.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": 256 * 1024,
    "queued.min.messages": 10_000_000,
    "fetch.queue.backoff.ms": 1,
}


def drain(bootstrap: str, topic: str, partitions: int, records: int) -> tuple[float, float]:
    """(seconds, CPU seconds of this process) from the first fetch on. Raises KafkaException."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **_SETTINGS})
    consumer.list_topics(topic, timeout=30.0)
    cpu_before, begun = _cpu_seconds(), time.perf_counter()
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    seen = 0
    while seen < records:
        batch = consumer.consume(_BATCH_RECORDS, timeout=0.1)
        if not batch and time.perf_counter() - begun > _STALLED_S:
            raise SystemExit(f"only {seen} of {records} records after {_STALLED_S} s")
        # Errors stand alone in the queue, so looking at a batch's ends finds them soon enough.
        for message in batch[:1] + batch[-1:]:
            if message.error() is not None:
                raise KafkaException(message.error())
        seen += len(batch)
    seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - cpu_before
    consumer.close()
    return seconds, cpu_seconds


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    seconds, cpu_seconds = drain(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}))
