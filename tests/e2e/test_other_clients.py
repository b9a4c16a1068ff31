"""Clients that share no code with Python's: franz-go, kcat and the Java console consumer.

Each reads offset 0 to the live end through the proxy, each record once and in order. The expected
records are the produced ones, or the broker's own answers before its log was trimmed.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from archived_topics import MakeReplayed, archive_and_trim, new_topic
from client_readers import Records, read_confluent
from proxy_process import ProxyProcess
from topic_data import TopicData, produce_transactions

from lab.go_client import franz_reader, franz_reader_command
from lab.kafka import KafkaServer, run_tool
from lab.kcat import find_kcat

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], Path]], Path]
ISOLATIONS = ("read_uncommitted", "read_committed")
CODECS = ("none", "lz4", "zstd")
Line = tuple[int, int, str, str]  # partition, offset, key, value (or their checksums)
LineReader = Callable[[str, str, dict[int, int], str], list[Line]]


def run(command: list[str]) -> list[str]:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


def as_lines(records: Records, of: Callable[[bytes], str] = bytes.decode) -> list[Line]:
    return [(p, offset, of(k), of(v)) for p in sorted(records) for offset, k, v in records[p]]


def parsed(lines: list[str], separator: str = " ") -> list[Line]:
    """Sorted by partition; records of a partition keep their order."""
    split = [line.split(separator, 3) for line in lines]
    return sorted(((int(p), int(o), k, v) for p, o, k, v in split), key=lambda line: line[0])


def crc32(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def read_by_franz_go(
    bootstrap: str, topic: str, ends: dict[int, int], isolation: str
) -> list[Line]:
    return parsed(run(franz_reader_command(bootstrap, topic, ends, isolation, 90.0)))


def read_by_kcat(bootstrap: str, topic: str, ends: dict[int, int], isolation: str) -> list[Line]:
    lines: list[str] = []
    for partition in ends:
        lines += run(
            [
                *(str(find_kcat()), "-C", "-q", "-e", "-b", bootstrap, "-t", topic),
                *("-p", str(partition), "-o", "0", "-f", "%p %o %k %s\n"),
                *("-X", "auto.offset.reset=error", "-X", f"isolation.level={isolation}"),
            ]
        )
    return parsed(lines)


def read_by_java(
    bootstrap: str, topic: str, where: list[str], count: int, isolation: str
) -> list[Line]:
    result = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, *where),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
        *("--isolation-level", isolation),
        *("--property", "print.offset=true"),
        *("--property", "print.partition=true"),
        *("--property", "print.key=true"),
        *("--property", "key.separator= "),
    )
    assert "OffsetOutOfRange" not in result.stderr
    plain = [line.replace("Partition:", "").replace("Offset:", "") for line in
             result.stdout.splitlines()]  # fmt: skip
    return parsed(plain)


FROM_0 = ["--partition", "0", "--offset", "0"]


@pytest.mark.parametrize(("codec", "partition_count"), [*((c, 1) for c in CODECS), ("lz4", 4)])
@pytest.mark.parametrize("client", ["franz-go", "kcat"])
def test_clients_that_are_told_their_partitions(
    find_part: FindPart, replayed: MakeReplayed, proxy: ProxyProcess, client: str, codec: str,
    partition_count: int,
) -> None:  # fmt: skip
    data = replayed(codec, partition_count)
    ends = {p: len(records) for p, records in data.written.items()}
    if client == "franz-go":
        find_part("clients", franz_reader)
        lines = read_by_franz_go(proxy.bootstrap, data.topic, ends, "read_uncommitted")
        assert lines == as_lines(data.written, crc32)
    else:
        find_part("kcat", find_kcat)
        lines = read_by_kcat(proxy.bootstrap, data.topic, ends, "read_uncommitted")
        assert lines == as_lines(data.written)


@pytest.mark.parametrize("codec", CODECS)
def test_the_java_consumer_from_an_offset(
    replayed: MakeReplayed, proxy: ProxyProcess, codec: str
) -> None:
    data = replayed(codec)
    count = len(data.written[0])
    lines = read_by_java(proxy.bootstrap, data.topic, FROM_0, count, "read_uncommitted")
    assert lines == as_lines(data.written)


def test_the_java_consumer_in_a_group_from_the_beginning(
    replayed: MakeReplayed, proxy: ProxyProcess
) -> None:
    """The first records are in the archive, as ListOffsets shows; it reads four partitions."""
    data = replayed("lz4", 4)
    count = sum(map(len, data.written.values()))
    where = ["--group", "e2e-java", "--from-beginning"]
    lines = read_by_java(proxy.bootstrap, data.topic, where, count, "read_uncommitted")
    assert lines == as_lines(data.written)


@pytest.fixture(scope="module")
def transactional(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess
) -> tuple[TopicData, dict[str, Records]]:
    """A topic with aborted transactions, and the broker's records by isolation before the trim."""
    data = new_topic(kafka_server, "e2e-transactions")
    produce_transactions(kafka_server.bootstrap, data, 30, 30)
    ends = data.ends(kafka_server.bootstrap)
    oracle = {
        isolation: read_confluent(
            kafka_server.bootstrap, data.topic, ends, **{"isolation.level": isolation}
        )
        for isolation in ISOLATIONS
    }
    assert oracle["read_committed"] == data.written
    assert len(oracle["read_uncommitted"][0]) > len(data.written[0])
    archive_and_trim(kafka_server.bootstrap, e2e_store, data)
    return data, oracle


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("client", ["franz-go", "kcat", "java"])
def test_transactions(
    find_part: FindPart, transactional: tuple[TopicData, dict[str, Records]],
    proxy: ProxyProcess, kafka_server: KafkaServer, client: str, isolation: str,
) -> None:  # fmt: skip
    data, oracle = transactional
    ends, expected = data.ends(kafka_server.bootstrap), oracle[isolation]
    if client == "franz-go":
        find_part("clients", franz_reader)
        lines = read_by_franz_go(proxy.bootstrap, data.topic, ends, isolation)
        assert lines == as_lines(expected, crc32)
        return
    if client == "kcat":
        find_part("kcat", find_kcat)
        lines = read_by_kcat(proxy.bootstrap, data.topic, ends, isolation)
    else:
        count = len(expected[0])
        lines = read_by_java(proxy.bootstrap, data.topic, FROM_0, count, isolation)
    assert lines == as_lines(expected)
