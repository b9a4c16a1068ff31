"""Clients in other languages read what was produced, and fail aloud where they must."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lab.go_client import franz_reader, franz_reader_command
from lab.kafka import KafkaServer, run_tool
from lab.kcat import find_kcat

pytestmark = pytest.mark.kafka

RECORD_COUNT = 20
FindPart = Callable[[str, Callable[[], Path]], Path]


@pytest.fixture
def filled_topic(kafka_server: KafkaServer, create_topic: Callable[..., str]) -> str:
    topic = create_topic(partition_count=2)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for number in range(RECORD_COUNT):
        producer.produce(topic, key=f"k{number}", value=f"v{number}", partition=number % 2)
    assert producer.flush(30) == 0
    return topic


def read_by_franz_go(
    bootstrap: str, topic: str, ends: dict[int, int]
) -> subprocess.CompletedProcess[str]:
    command = franz_reader_command(bootstrap, topic, ends)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


def test_franz_go_reads_every_record(
    find_part: FindPart, kafka_server: KafkaServer, filled_topic: str
) -> None:
    find_part("clients", franz_reader)
    ends = {0: RECORD_COUNT // 2, 1: RECORD_COUNT // 2}
    done = read_by_franz_go(kafka_server.bootstrap, filled_topic, ends)
    assert done.returncode == 0, done.stderr
    expected = {
        f"{number % 2} {number // 2} {checksum(f'k{number}')} {checksum(f'v{number}')}"
        for number in range(RECORD_COUNT)
    }
    assert len(done.stdout.splitlines()) == RECORD_COUNT
    assert set(done.stdout.splitlines()) == expected


def test_franz_go_fails_below_the_log_start(
    find_part: FindPart, kafka_server: KafkaServer, filled_topic: str
) -> None:
    find_part("clients", franz_reader)
    trim = TopicPartition(filled_topic, 0, 3)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    admin.delete_records([trim])[trim].result(timeout=30)
    done = read_by_franz_go(kafka_server.bootstrap, filled_topic, {0: 10})
    assert done.returncode == 1
    assert "OFFSET_OUT_OF_RANGE" in done.stderr


def test_kcat_reads_every_record(
    find_part: FindPart, kafka_server: KafkaServer, filled_topic: str
) -> None:
    executable = str(find_part("kcat", find_kcat))
    done = subprocess.run(
        [
            *(executable, "-C", "-q", "-e", "-b", kafka_server.bootstrap, "-t", filled_topic),
            *("-p", "1", "-o", "0", "-f", "%o %k %s\n", "-X", "auto.offset.reset=error"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = [f"{number // 2} k{number} v{number}" for number in range(1, RECORD_COUNT, 2)]
    assert done.stdout.splitlines() == expected


def test_the_java_consumer_reads_every_record(kafka_server: KafkaServer, filled_topic: str) -> None:
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka_server.bootstrap, "--topic", filled_topic),
        *("--partition", "0", "--offset", "0", "--max-messages", str(RECORD_COUNT // 2)),
        *("--timeout-ms", "30000"),
    )
    assert done.stdout.splitlines() == [f"v{number}" for number in range(0, RECORD_COUNT, 2)]


def checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
