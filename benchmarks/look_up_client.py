"""One kafka-python consumer that asks for partitions' beginnings, ends and offsets by time.

`python -m benchmarks.look_up_client BOOTSTRAP TOPIC PARTITIONS TIMESTAMP QUESTION…` asks the
questions in that order over open connections and prints `{question: {"seconds": …, "offsets":
sum}}` as JSON. It is a process of its own, so no run inherits anything from another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition

BEGINNING, END, TIMES = "beginning_offsets", "end_offsets", "offsets_for_times"
QUESTIONS = (BEGINNING, END, TIMES)
_TIMEOUT_MS = 120_000


def main(bootstrap: str, topic: str, partitions: int, timestamp: int, *questions: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        request_timeout_ms=_TIMEOUT_MS,
        metadata_max_age_ms=600_000,
    )
    every = [TopicPartition(topic, number) for number in range(partitions)]

    def times() -> dict[TopicPartition, int]:
        offsets = consumer.offsets_for_times(dict.fromkeys(every, timestamp))
        return {tp: -1 if offsets[tp] is None else offsets[tp].offset for tp in every}

    calls: dict[str, Callable[[], dict[TopicPartition, int]]] = {
        BEGINNING: lambda: consumer.beginning_offsets(every),
        END: lambda: consumer.end_offsets(every),
        TIMES: times,
    }
    # Leaders are known and connections are open before the timing starts.
    consumer.partitions_for_topic(topic)
    consumer.end_offsets(every[:1])
    responses: dict[str, dict[str, float]] = {}
    for question in questions:
        begun = time.perf_counter()
        offsets = calls[question]()
        seconds = time.perf_counter() - begun
        responses[question] = {"seconds": seconds, "offsets": sum(offsets.values())}
    consumer.close()
    print(json.dumps(responses))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
