"""Spark's Kafka source, batch and stream, and its sink: one session serves a whole run."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from matrix_client import Line, MatrixClient

from lab.spark import SPARK_VERSION, SparkKafka


@functools.cache
def spark() -> SparkKafka:
    session = SparkKafka()
    atexit.register(session.close)
    return session


def as_lines(rows: list[Any]) -> list[Line]:
    """A partition's records in the order of their offsets: rows of a table have none."""
    return sorted((p, offset, key, value) for p, offset, key, value in rows)


def batch(bootstrap: str, topic: str, until: dict[int, int], level: str) -> list[Line]:
    return as_lines(spark().ask("batch", bootstrap, topic, level))


def stream(bootstrap: str, topic: str, until: dict[int, int], level: str) -> list[Line]:
    return as_lines(spark().ask("stream", bootstrap, topic, level))


def produce(bootstrap: str, topic: str, count: int) -> None:
    spark().ask("produce", bootstrap, topic, count)


def times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    return int(spark().ask("times", bootstrap, topic, partition, timestamp))


NO_GROUPS = "it stores its offsets itself, without a group"
NO_TRANSACTIONS = "it does not write transactions"

SPARK = MatrixClient(
    name="Spark",
    version=lambda: SPARK_VERSION,
    assign=batch,
    produce=produce,
    times=times,
    part="spark",
    find=spark,
    lacks={"group": NO_GROUPS, "transactional": NO_TRANSACTIONS},
)
SPARK_STREAM = MatrixClient(
    name="Spark streaming",
    version=lambda: SPARK_VERSION,
    assign=stream,
    part="spark",
    find=spark,
    lacks={
        "group": NO_GROUPS,
        "idempotent": "its sink is the same as for a batch",
        "transactional": NO_TRANSACTIONS,
        "times": "it looks up offsets by time as a batch does",
    },
)
