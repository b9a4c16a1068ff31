"""Measures the time from `produce` to the consumer for one record, over several ways in turn.

`python -m benchmarks.latency_probe UPSTREAM SAMPLES WAYS` prints `{name: [milliseconds, …]}` as
JSON. WAYS is a JSON list of [name, bootstrap, topic] or [name, bootstrap, topic, consumer
settings]. One process runs the producer and the consumers, so one clock measures both times. The
producer connects to the broker itself, as in production. Each way has its own topic and a consumer
that waits in a long poll. There is one record at a time, in one way after the other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

_PAUSE_S = 0.005  # so that every consumer waits in its long poll again
_STALLED_S = 30.0
_WARM_UP_SAMPLES = 20
_RECORD = bytes(100)

Way = Sequence[Any]  # name, bootstrap, topic, and optional settings


def probe(upstream: str, samples: int, ways: Sequence[Way]) -> dict[str, list[float]]:
    """Raises KafkaException if a client fails."""
    # librdkafka leaves Nagle's algorithm on by default, which would add a delay of its own.
    no_delay = {"socket.nagle.disable": True}
    producer = Producer({"bootstrap.servers": upstream, "linger.ms": 0, "acks": 1, **no_delay})
    consumers = {}
    # The broker itself is asked for the end offset: the same call also asks for the beginning, for
    # which the proxy would need the archive.
    asking = Consumer({"bootstrap.servers": upstream, "group.id": "benchmark"})
    for name, bootstrap, topic, *settings in ways:
        consumer = Consumer(
            {
                **dict(*settings),
                "bootstrap.servers": bootstrap,
                "group.id": "benchmark",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **no_delay,
            }
        )
        end = asking.get_watermark_offsets(TopicPartition(topic, 0), timeout=30.0)[1]
        consumer.assign([TopicPartition(topic, 0, end)])
        consumers[name] = consumer
    asking.close()
    latencies_ms: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for sample in range(samples + _WARM_UP_SAMPLES):
        for name, _, topic, *_ in ways:
            took_ms = _once(producer, topic, consumers[name])
            if sample >= _WARM_UP_SAMPLES:
                latencies_ms[name].append(took_ms)
            producer.poll(0)
            time.sleep(_PAUSE_S)
    for consumer in consumers.values():
        consumer.close()
    return latencies_ms


def _once(producer: Producer, topic: str, consumer: Consumer) -> float:
    begun = time.perf_counter()
    producer.produce(topic, _RECORD, partition=0)
    message = consumer.poll(_STALLED_S)
    took_s = time.perf_counter() - begun
    if message is None:
        raise SystemExit(f"a record of {topic} did not arrive in {_STALLED_S} s")
    if message.error() is not None:
        raise KafkaException(message.error())
    return took_s * 1000


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))))
