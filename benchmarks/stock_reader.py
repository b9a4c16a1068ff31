"""Measures how fast one stock librdkafka consumer reads a topic from offset 0.

`python -m benchmarks.stock_reader CALL BOOTSTRAP TOPIC RECORDS FIRST PARTITIONS` prints `{"first":
…, "later": …}` as JSON: records a second for the first FIRST records, and for the rest. With
`when-told` at the end, it prints a line when it is ready and begins when it reads a line. With
`never-pauses` at the end, it is no longer stock: a full queue stops it for 10 ms and not for 1,000.
"""

from __future__ import annotations

import json
import os
import sys
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

POLL, CONSUME = "poll", "consume"
WHEN_TOLD, READY = "when-told", "ready"
NEVER_PAUSES = "never-pauses"
_BATCH_RECORDS = 5_000
_STALLED_S = 120.0


def read(
    call: str,
    bootstrap: str,
    topic: str,
    records: int,
    first: int,
    partitions: int,
    *,
    when_told: bool,
    never_pauses: bool,
) -> dict[str, float]:
    """Raises KafkaException."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **({"fetch.queue.backoff.ms": 10} if never_pauses else {}),
        }
    )
    consumer.list_topics(topic, timeout=30.0)
    if when_told:
        print(READY, flush=True)
        sys.stdin.readline()
    begun = time.perf_counter()
    first_s = 0.0
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    count = 0
    while count < records:
        if call == CONSUME:
            batch = consumer.consume(_BATCH_RECORDS, timeout=0.1)
        else:
            message = consumer.poll(0.1)
            batch = [] if message is None else [message]
        if batch and batch[-1].error() is not None:
            raise KafkaException(batch[-1].error())
        count += len(batch)
        if not first_s and count >= first:
            first_s = time.perf_counter() - begun
        if not batch and time.perf_counter() - begun > _STALLED_S:
            raise SystemExit(f"only {count} of {records} records after {_STALLED_S} s")
    later_s = time.perf_counter() - begun - first_s
    return {"first": first / first_s, "later": (records - first) / later_s}


if __name__ == "__main__":
    options = {WHEN_TOLD, NEVER_PAUSES} & set(sys.argv)
    call, bootstrap, topic, *numbers = (each for each in sys.argv[1:] if each not in options)
    records, first, partitions = map(int, numbers)
    paced, eager = WHEN_TOLD in options, NEVER_PAUSES in options
    rates = read(
        call, bootstrap, topic, records, first, partitions, when_told=paced, never_pauses=eager
    )
    print(json.dumps(rates), flush=True)
    os._exit(0)  # the records in the queue are not needed, and freeing them takes seconds
