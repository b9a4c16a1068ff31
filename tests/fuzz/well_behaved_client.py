"""A client that produces, reads that back and replays an archived topic, until told to end.

`python well_behaved_client.py HOST:PORT ARCHIVED_TOPIC ARCHIVED_RECORDS`; ends with its standard
input. Prints one JSON line: rounds done and what went wrong. Resets are off.
"""

from __future__ import annotations

import json
import sys
import threading

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PATIENCE_S = 60.0


def reader(bootstrap: str, topic: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "well-behaved",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def read(consumer: Consumer, count: int) -> list[tuple[int, bytes]]:
    """Raises KafkaException for any error; TimeoutError where nothing comes."""
    records_read: list[tuple[int, bytes]] = []
    while len(records_read) < count:
        message = consumer.poll(PATIENCE_S)
        if message is None:
            raise TimeoutError(f"{len(records_read)} of {count} records in {PATIENCE_S} s")
        if message.error():
            raise KafkaException(message.error())
        records_read.append((message.offset(), message.value()))
    return records_read


def one_round(number: int, producer: Producer, tail: Consumer, archived: list[str]) -> None:
    bootstrap, topic, count = archived
    values_sent = [f"{number}-{i}".encode() for i in range(10)]
    for value in values_sent:
        producer.produce("well-behaved", value, partition=0)
    assert producer.flush(PATIENCE_S) == 0, "not all produced"
    assert read(tail, 10) == [(10 * number + i, value) for i, value in enumerate(values_sent)]
    history = reader(bootstrap, topic, 0)
    offsets = [offset for offset, _ in read(history, int(count))]
    history.close()
    assert offsets == list(range(int(count))), "archived records are missing or doubled"


def main(bootstrap: str, archived_topic: str, archived_records: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    tail = reader(bootstrap, "well-behaved", 0)
    rounds = 0
    fault = None
    try:
        while not over.is_set():
            one_round(rounds, producer, tail, [bootstrap, archived_topic, archived_records])
            rounds += 1
            over.wait(0.2)
    except (AssertionError, KafkaException, TimeoutError) as error:
        fault = repr(error)
    tail.close()
    print(json.dumps({"rounds": rounds, "fault": fault}))


if __name__ == "__main__":
    main(*sys.argv[1:])
