"""How each client of the matrix reads a topic from offset 0 on, with each reset policy it knows.

A reader takes as many records as there are and then looks for more for a while. An error that the
client is told, or a reader that does not get that far, is a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from matrix_all_clients import CLIENTS
from matrix_client import Line, MatrixClient
from matrix_frameworks import commit_zero, connect_sink, mirror
from matrix_native_clients import kafka_go, rust, sarama
from matrix_programs import franz, java_console, kcat, parsed, run
from matrix_spark import spark

from lab.frameworks import streams_command
from lab.node_client import kafkajs_command

PATIENCE_S = 60.0
LINGER_S = 2.0
STOP_S = 5.0
AIOKAFKA_WAIT_S = 0.5  # so long its fetches wait, by default
LINGER = ("-linger", f"{LINGER_S}s", "-timeout", f"{PATIENCE_S}s")
LINGER_MS = str(int(LINGER_S * 1000))
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Ask:
    """`reset` as the client calls it. `broker` is where a copy may be written."""

    bootstrap: str
    broker: str
    topic: str
    count: int
    reset: str

    @property
    def from_start(self) -> bool:
        """The policy itself says where to begin; else the reader is told to begin at 0."""
        return self.reset == "earliest"

    def group(self) -> str:
        """A new one, which has 0 committed where the policy does not lead there."""
        name = f"gap-{next(_numbers)}"
        if not self.from_start:
            commit_zero(self.bootstrap, self.topic, name, 1)
        return name


def runs(lines: list[Line]) -> list[tuple[int, int]]:
    """(first, last) of each run of offsets that follow each other, in the order of reading."""
    ranges: list[tuple[int, int]] = []
    for _, offset, _, _ in lines:
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
    return ranges


class Lines:
    """What one reader has got, and whether it has to go on."""

    def __init__(self, count: int, linger_s: float = LINGER_S) -> None:
        self.lines: list[Line] = []
        self._count = count
        self._linger_s = linger_s
        self._give_up = time.monotonic() + PATIENCE_S
        self._done: float | None = None

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        self.lines.append((partition, offset, key.decode(), value.decode()))

    @property
    def wants_more(self) -> bool:
        now = time.monotonic()
        if self._done is None and len(self.lines) >= self._count:
            self._done = now + self._linger_s
        assert self._done is not None or now < self._give_up, f"stuck behind {runs(self.lines)}"
        return self._done is None or now < self._done


def read_confluent(ask: Ask, lines: Lines | None = None) -> list[Line]:
    lines = lines or Lines(ask.count)
    settings = {
        "bootstrap.servers": ask.bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": ask.reset,
    }
    consumer = confluent_kafka.Consumer(settings)
    start = confluent_kafka.OFFSET_BEGINNING if ask.from_start else 0
    consumer.assign([confluent_kafka.TopicPartition(ask.topic, 0, start)])
    try:
        while lines.wants_more:
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                lines.add(message.partition(), message.offset(), message.key(), message.value())
    finally:
        consumer.close()
    return lines.lines


def read_kafka_python(ask: Ask, lines: Lines | None = None) -> list[Line]:
    lines = lines or Lines(ask.count)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=ask.bootstrap, auto_offset_reset=ask.reset, enable_auto_commit=False
    )
    tp = kafka.TopicPartition(ask.topic, 0)
    consumer.assign([tp])
    if ask.from_start:
        consumer.seek_to_beginning(tp)
    else:
        consumer.seek(tp, 0)
    try:
        while lines.wants_more:
            for record in consumer.poll(timeout_ms=200, max_records=5000).get(tp, []):
                lines.add(record.partition, record.offset, record.key, record.value)
    finally:
        consumer.close()
    return lines.lines


def read_aiokafka(ask: Ask, lines: Lines | None = None) -> list[Line]:
    lines = lines or Lines(ask.count)

    async def read() -> list[Line]:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=ask.bootstrap, auto_offset_reset=ask.reset, enable_auto_commit=False
        ) as consumer:
            tp = aiokafka.TopicPartition(ask.topic, 0)
            consumer.assign([tp])
            if ask.from_start:
                await consumer.seek_to_beginning(tp)
            else:
                consumer.seek(tp, 0)
            while lines.wants_more:
                for record in (await consumer.getmany(timeout_ms=200)).get(tp, []):
                    lines.add(record.partition, record.offset, record.key, record.value)
        return lines.lines

    return asyncio.run(read())


def read_java(ask: Ask) -> list[Line]:
    """One more than there is: it ends when nothing has come for so long."""
    start = "earliest" if ask.from_start else "0"
    return java_console(
        *(ask.bootstrap, ask.topic, ask.count + 1, "read_uncommitted"),
        *("--partition", "0", "--offset", start),
        reset=ask.reset,
        timeout_ms=12_000,
    )


def read_kcat(ask: Ask) -> list[Line]:
    """It ends by itself at the log's end; twice as many as there are would show a second pass."""
    start = "beginning" if ask.from_start else "0"
    return parsed(
        kcat(
            *("-C", "-e", "-q", "-b", ask.bootstrap, "-t", ask.topic, "-p", "0", "-o", start),
            *("-c", str(2 * ask.count), "-f", "%p %o %k %s\n"),
            *("-X", f"auto.offset.reset={ask.reset}"),
        )
    )


def read_franz_go(ask: Ask) -> list[Line]:
    more = ("-reset", ask.reset, "-count", str(ask.count), *LINGER)
    return parsed(franz("follow", ask.bootstrap, ask.topic, *more))


def read_kafka_go(ask: Ask) -> list[Line]:
    more = ("-group", ask.group(), "-count", str(ask.count), "-reset", ask.reset, *LINGER)
    return parsed(kafka_go("group", ask.bootstrap, ask.topic, *more))


def read_sarama(ask: Ask) -> list[Line]:
    more = ("-group", ask.group(), "-count", str(ask.count), "-reset", ask.reset, *LINGER)
    return parsed(sarama("group", ask.bootstrap, ask.topic, *more))


def read_rust(ask: Ask) -> list[Line]:
    more = (ask.group(), str(ask.count), "read_uncommitted", ask.reset, LINGER_MS)
    return parsed(rust("group", ask.bootstrap, ask.topic, *more))


def read_kafkajs(ask: Ask) -> list[Line]:
    more = (ask.group(), str(ask.count), ask.reset, LINGER_MS)
    return parsed(run(kafkajs_command("follow", ask.bootstrap, ask.topic, *more)))


def read_streams(ask: Ask) -> list[Line]:
    more = (ask.group(), str(ask.count), "read_uncommitted", ask.reset, LINGER_MS)
    return parsed(run(streams_command("read", ask.bootstrap, ask.topic, *more)))


def read_connect(ask: Ask) -> list[Line]:
    group, level = ask.group(), "read_uncommitted"
    return connect_sink(ask.bootstrap, ask.topic, group, ask.count, level, ask.reset, LINGER_S)


def read_mirror(ask: Ask) -> list[Line]:
    stored = None
    if not ask.from_start:  # it stores the offset of the last record that it has copied
        where = {"topic": ask.topic, "partition": 0}
        stored = [{"partition": where, "offset": {"offset": 0}}]
    return mirror(
        *(ask.bootstrap, ask.broker, ask.topic),
        *(ask.count if ask.from_start else ask.count - 1, "read_uncommitted"),
        partition_count=1,
        reset=ask.reset,
        linger_s=LINGER_S,
        offsets=stored,
    )


def read_spark(ask: Ask) -> list[Line]:
    rows = spark().ask("batch", ask.bootstrap, ask.topic, "read_uncommitted")
    return sorted((p, offset, key, value) for p, offset, key, value in rows)


def read_spark_stream(ask: Ask) -> list[Line]:
    rows = spark().ask("stream", ask.bootstrap, ask.topic, "read_uncommitted")
    return sorted((p, offset, key, value) for p, offset, key, value in rows)


@dataclass(frozen=True, slots=True)
class GapReader:
    """`policies` as the client names them. `stores_last`: told to begin at 0, it begins behind it,
    as what it stores is the last record that it has had."""

    client: MatrixClient
    read: Callable[[Ask], list[Line]]
    policies: tuple[str, ...]
    stores_last: bool = False


STOPPED = (AssertionError, kafka.errors.KafkaError, aiokafka.errors.KafkaError)


def read_until_stopped(name: str, ask: Ask) -> list[Line]:
    """What a Python client gets until it is told an error, or `STOP_S` behind `ask.count`."""
    readers = {
        "confluent-kafka": read_confluent,
        "kafka-python": read_kafka_python,
        "aiokafka": read_aiokafka,
    }
    lines = Lines(ask.count, STOP_S)
    with contextlib.suppress(*STOPPED):
        readers[name](ask, lines)
    return lines.lines


_BY_NAME = {client.name: client for client in CLIENTS}
_NONE = ("earliest", "latest", "none")
_ERROR = ("earliest", "latest", "error")

GAP_READERS: tuple[GapReader, ...] = (
    GapReader(_BY_NAME["Java"], read_java, _NONE),
    GapReader(_BY_NAME["confluent-kafka"], read_confluent, _ERROR),
    GapReader(_BY_NAME["kcat"], read_kcat, _ERROR),
    GapReader(_BY_NAME["kafka-python"], read_kafka_python, _NONE),
    GapReader(_BY_NAME["aiokafka"], read_aiokafka, _NONE),
    GapReader(_BY_NAME["franz-go"], read_franz_go, _NONE),
    GapReader(_BY_NAME["kafka-go"], read_kafka_go, _ERROR),
    GapReader(_BY_NAME["sarama"], read_sarama, _ERROR),
    GapReader(_BY_NAME["rust-rdkafka"], read_rust, _ERROR),
    GapReader(_BY_NAME["kafkajs"], read_kafkajs, ("earliest", "latest")),
    GapReader(_BY_NAME["Kafka Streams"], read_streams, _NONE),
    GapReader(_BY_NAME["Kafka Connect"], read_connect, _NONE),
    GapReader(_BY_NAME["MirrorMaker 2"], read_mirror, _NONE, stores_last=True),
    # Spark keeps its offsets itself, and forbids its consumers any reset.
    GapReader(_BY_NAME["Spark"], read_spark, ("earliest",)),
    GapReader(_BY_NAME["Spark streaming"], read_spark_stream, ("earliest",)),
)
