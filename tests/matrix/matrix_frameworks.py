"""Kafka Streams, Kafka Connect's file sink and source, and MirrorMaker 2 as clients of the matrix.

Connect and MirrorMaker run in a worker of their own, a process per question. What they do not show
is left out of their lines: the file sink has no keys, a mirrored topic has offsets of its own.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from matrix_client import Line, MatrixClient
from matrix_programs import parsed, run
from matrix_stack import PARTITIONS, TOPIC

from lab.frameworks import ConnectWorker, frameworks_jars, streams_command
from lab.kafka_versions import KAFKA_VERSION

WORKER_S = 90.0
_numbers = itertools.count(1)


def streams_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    more = (group, str(count), level, "none", "0")
    return parsed(run(streams_command("read", bootstrap, topic, *more)))


def streams_copy(bootstrap: str, sink: str, count: int, guarantee: str) -> None:
    """The first records of the archived topic are what it writes."""
    group = f"streams-{guarantee}-{next(_numbers)}"
    commit_zero(bootstrap, TOPIC, group, PARTITIONS)
    run(streams_command("copy", bootstrap, TOPIC, group, str(count), guarantee, sink))


def streams_produce(bootstrap: str, topic: str, count: int) -> None:
    streams_copy(bootstrap, topic, count, "at_least_once")


def streams_transact(bootstrap: str, topic: str, count: int) -> None:
    streams_copy(bootstrap, topic, count, "exactly_once_v2")


def commit_zero(bootstrap: str, topic: str, group: str, partition_count: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    zero = [confluent_kafka.TopicPartition(topic, p, 0) for p in range(partition_count)]
    try:
        for committed in consumer.commit(offsets=zero, asynchronous=False):
            assert committed.error is None, committed.error
    finally:
        consumer.close()


def until_there(
    worker: ConnectWorker, count: int, linger_s: float, lines: Callable[[], list[Line]]
) -> list[Line]:
    """What `lines` has when there are `count` and no more have come for `linger_s`."""
    deadline = time.monotonic() + WORKER_S
    while len(lines_now := lines()) < count:
        failures = worker.failures()
        assert not failures, failures[0]
        assert time.monotonic() < deadline, f"{len(lines_now)} of {count}: {worker.log_tail()}"
        time.sleep(0.2)
    time.sleep(linger_s)
    return lines()


_SUNK = re.compile(r"Struct\{value=(\S*),partition=(\d+),offset=(\d+)\}")


def sunk(path: Path) -> list[Line]:
    """A last line that is not whole yet is left out."""
    if not path.exists():
        return []
    return [(int(p), int(o), "", v) for v, p, o in _SUNK.findall(path.read_text())]


def connect_sink(
    bootstrap: str, topic: str, group: str, count: int, level: str, reset: str, linger_s: float
) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="matrix-connect-") as name:
        file = Path(name) / "sunk.txt"
        connector = {
            "name": "sink",
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "topics": topic,
            "file": str(file),
            "consumer.override.group.id": group,
            "consumer.override.isolation.level": level,
            "consumer.override.auto.offset.reset": reset,
            "transforms": "hoist,where",
            "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
            "transforms.hoist.field": "value",
            "transforms.where.type": "org.apache.kafka.connect.transforms.InsertField$Value",
            "transforms.where.partition.field": "partition",
            "transforms.where.offset.field": "offset",
        }
        with ConnectWorker(Path(name), bootstrap, connector) as worker:
            until_there(worker, count, linger_s, lambda: sunk(file))
        return sunk(file)


def connect_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    return connect_sink(bootstrap, topic, group, count, level, "none", 0.0)


def connect_produce(bootstrap: str, topic: str, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="matrix-connect-") as name:
        file = Path(name) / "lines.txt"
        file.write_text("".join(f"v{number}\n" for number in range(count)))
        connector = {
            "name": "source",
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "topic": topic,
            "file": str(file),
            "producer.override.enable.idempotence": "true",
        }
        with (
            ConnectWorker(Path(name), bootstrap, connector) as worker,
            TopicLines(bootstrap, topic) as written,
        ):
            until_there(worker, count, 0.0, written.all)


class TopicLines:
    """All records of a topic that may not be there yet, as they come."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int = 1) -> None:
        self._lines: list[Line] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "allow.auto.create.topics": False,
            }
        )
        tps = [confluent_kafka.TopicPartition(topic, p, 0) for p in range(partition_count)]
        self._consumer.assign(tps)

    def __enter__(self) -> TopicLines:
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()

    def all(self) -> list[Line]:
        while messages := self._consumer.consume(1000, timeout=0.5):
            for message in messages:
                if message.error() is not None:
                    unknown = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
                    assert message.error().code() == unknown, message.error()
                    continue
                key, value = (message.key() or b"").decode(), (message.value() or b"").decode()
                self._lines.append((message.partition(), -1, key, value))
        return list(self._lines)


def mirror(
    bootstrap: str,
    target: str,
    topic: str,
    count: int,
    level: str,
    *,
    partition_count: int,
    reset: str = "earliest",
    linger_s: float = 0.0,
    offsets: list[dict[str, Any]] | None = None,
) -> list[Line]:
    """`offsets`: the source offsets that it has stored. It goes on behind them."""
    alias = f"m{next(_numbers)}"
    for stored in offsets or []:
        stored["partition"]["cluster"] = alias
    connector = {
        "name": "mirror",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": alias,
        "target.cluster.alias": "target",
        "source.cluster.bootstrap.servers": bootstrap,
        "target.cluster.bootstrap.servers": target,
        "topics": topic,
        "replication.factor": "1",
        "offset-syncs.topic.location": "target",
        "offset-syncs.topic.replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "consumer.isolation.level": level,
        "consumer.auto.offset.reset": reset,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    }
    with (
        tempfile.TemporaryDirectory(prefix="matrix-mirror-") as name,
        ConnectWorker(Path(name), target, connector, offsets) as worker,
        TopicLines(target, f"{alias}.{topic}", partition_count) as copied,
    ):
        return until_there(worker, count, linger_s, copied.all)


def mirror_assign(bootstrap: str, topic: str, counts: dict[int, int], level: str) -> list[Line]:
    """The copy goes to the same cluster, under another name that is not archived."""
    count = sum(counts.values())
    return mirror(bootstrap, bootstrap, topic, count, level, partition_count=len(counts))


KAFKA_STREAMS = MatrixClient(
    name="Kafka Streams",
    version=lambda: KAFKA_VERSION,
    group=streams_group,
    produce=streams_produce,
    transact=streams_transact,
    aborted=0,
    part="frameworks",
    find=frameworks_jars,
    reads_on=True,
    lacks={"assign": "it can read only in a group", "times": "it never looks up offsets by time"},
)
KAFKA_CONNECT = MatrixClient(
    name="Kafka Connect",
    version=lambda: KAFKA_VERSION,
    group=connect_group,
    produce=connect_produce,
    part="frameworks",
    find=frameworks_jars,
    reads_on=True,
    sees_keys=False,
    lacks={
        "assign": "it can read only in a group",
        "transactional": "its standalone worker does not write transactions",
        "times": "it never looks up offsets by time",
    },
)
MIRROR_MAKER = MatrixClient(
    name="MirrorMaker 2",
    version=lambda: KAFKA_VERSION,
    assign=mirror_assign,
    assign_until="count",
    part="frameworks",
    find=frameworks_jars,
    sees_offsets=False,
    lacks={
        "group": "it stores its offsets itself, without a group",
        "idempotent": "it uses the producer of Kafka Connect",
        "transactional": "its standalone worker does not write transactions",
        "times": "it never looks up offsets by time",
    },
)
