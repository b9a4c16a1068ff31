"""Codes and names against kafka-python's own error classes."""

from __future__ import annotations

from fetchproxy_protocol.apis import ErrorCode
from kafka import errors as kafka_errors

# What kafka-python calls by an older or another name than Kafka 4.1 does.
RENAMED = {
    (-1, "UNKNOWN"),
    (0, "NO_ERROR"),
    (6, "NOT_LEADER_FOR_PARTITION"),
    (10, "MESSAGE_SIZE_TOO_LARGE"),
    (17, "INVALID_TOPIC"),
    (39, "INVALID_REPLICATION_ASSIGNMENT"),
}


def test_codes_are_complete_to_kafka_4_1() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


def test_names_are_kafkas() -> None:
    theirs = {
        kind.errno: kind.message
        for kind in vars(kafka_errors).values()
        if isinstance(kind, type)
        and issubclass(kind, kafka_errors.BrokerResponseError)
        and kind.errno is not None
    }
    other = {(errno, name) for errno, name in theirs.items() if ErrorCode(errno).name != name}
    assert len(theirs) > 90
    assert other == RENAMED
