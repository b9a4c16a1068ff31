"""Codes and names against kafka-python's own error classes."""

from __future__ import annotations

from typing import Any

from fetchproxy_protocol.apis import ErrorCode
from kafka import errors as kafka_errors

# What kafka-python calls by an older or another name than Kafka 4.1 does, or does not know.
RENAMED = {
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}


def test_names_are_kafkas() -> None:
    kinds: list[Any] = [kind for kind in vars(kafka_errors).values() if isinstance(kind, type)]
    kafka_names = {
        kind.errno: kind.message
        for kind in kinds
        if issubclass(kind, kafka_errors.BrokerResponseError) and kind.errno is not None
    }
    known = [code for code in ErrorCode if int(code) in kafka_names]
    assert len(known) > 30
    assert {
        int(code): kafka_names[code] for code in known if code.name != kafka_names[code]
    } == RENAMED
