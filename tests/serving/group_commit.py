"""A consumer group's commit, which waits until the group's coordinator has begun."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from proxy_process import wait_for

# The first group of a new broker: its coordinator begins.
_BEGINNING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Of partition 0. Raises KafkaException."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})

    def is_committed() -> bool:
        try:
            offsets = [TopicPartition(topic, 0, offset)]
            [outcome] = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() in _BEGINNING:
                return False
            raise
        assert outcome.error is None
        return True

    try:
        wait_for("the commit", is_committed)
    finally:
        consumer.close()
