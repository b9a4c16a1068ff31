"""The clients of the matrix that are built here: kafka-go, sarama and rust-rdkafka."""

from __future__ import annotations

from matrix_client import Line, MatrixClient
from matrix_programs import parsed, run

from lab.go_client import kafka_go_client, module_version, sarama_client
from lab.rust_client import rust_rdkafka, rust_rdkafka_versions


def ends_of(ends: dict[int, int]) -> str:
    return ",".join(f"{partition}:{end}" for partition, end in ends.items())


def kafka_go(do: str, bootstrap: str, topic: str, *more: str) -> str:
    where = ("-do", do, "-bootstrap", bootstrap, "-topic", topic)
    return run([str(kafka_go_client()), *where, *more])


def kafka_go_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    more = ("-ends", ends_of(ends), "-isolation", level)
    return parsed(kafka_go("read", bootstrap, topic, *more))


def kafka_go_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    more = ("-group", group, "-count", str(count), "-isolation", level)
    return parsed(kafka_go("group", bootstrap, topic, *more))


def kafka_go_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    more = ("-partition", str(partition), "-timestamp", str(timestamp))
    return int(kafka_go("times", bootstrap, topic, *more))


def sarama(do: str, bootstrap: str, topic: str, *more: str) -> str:
    where = ("-do", do, "-bootstrap", bootstrap, "-topic", topic)
    return run([str(sarama_client()), *where, *more])


def sarama_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    more = ("-ends", ends_of(ends), "-isolation", level)
    return parsed(sarama("read", bootstrap, topic, *more))


def sarama_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    more = ("-group", group, "-count", str(count), "-isolation", level)
    return parsed(sarama("group", bootstrap, topic, *more))


def sarama_produce(bootstrap: str, topic: str, count: int) -> None:
    sarama("produce", bootstrap, topic, "-count", str(count))


def sarama_transact(bootstrap: str, topic: str, count: int) -> None:
    sarama("transact", bootstrap, topic, "-count", str(count))


def sarama_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    more = ("-partition", str(partition), "-timestamp", str(timestamp))
    return int(sarama("times", bootstrap, topic, *more))


def rust(*arguments: str) -> str:
    return run([str(rust_rdkafka()), *arguments])


def rust_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    return parsed(rust("read", bootstrap, topic, ends_of(ends), level))


def rust_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    return parsed(rust("group", bootstrap, topic, group, str(count), level, "error", "0"))


def rust_produce(bootstrap: str, topic: str, count: int) -> None:
    rust("produce", bootstrap, topic, str(count))


def rust_transact(bootstrap: str, topic: str, count: int) -> None:
    rust("transact", bootstrap, topic, str(count))


def rust_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    return int(rust("times", bootstrap, topic, str(partition), str(timestamp)))


def rust_version() -> str:
    crate, librdkafka = rust_rdkafka_versions()
    return f"{crate} (librdkafka {librdkafka})"


KAFKA_GO = MatrixClient(
    name="kafka-go",
    version=lambda: module_version("kafka_go_client", "github.com/segmentio/kafka-go"),
    assign=kafka_go_assign,
    group=kafka_go_group,
    times=kafka_go_times,
    find=kafka_go_client,
    lacks={
        "read_committed": "it also returns aborted records",
        "idempotent": "its producer is not idempotent",
        "transactional": "its producer has no transactions",
    },
)
SARAMA = MatrixClient(
    name="sarama",
    version=lambda: module_version("sarama_client", "github.com/IBM/sarama"),
    assign=sarama_assign,
    group=sarama_group,
    produce=sarama_produce,
    transact=sarama_transact,
    times=sarama_times,
    find=sarama_client,
)
RUST_RDKAFKA = MatrixClient(
    name="rust-rdkafka",
    version=rust_version,
    assign=rust_assign,
    group=rust_group,
    produce=rust_produce,
    transact=rust_transact,
    times=rust_times,
    part="rust",
    find=rust_rdkafka,
)
