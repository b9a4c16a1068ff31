"""Only librdkafka pauses by a clock, so of all other clients not one response is held back. Each
reads a million small records, archived ones and then the tail, through a proxy that paces
librdkafka.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import confluent_kafka
import kafka
import pytest
from matrix_programs import PROGRAM_S
from proxy_process import ProxyProcess, wait_for
from topic_data import archived_ends, trim

from benchmarks.filling import Shape, fill
from lab.go_client import franz_reader, franz_reader_command, kafka_go_client, sarama_client
from lab.kafka import KafkaServer, run_tool
from lab.node_client import kafkajs_command

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], object]], object]
TOPIC, PARTITIONS, RECORDS = "pacing", 4, 1_000_000
SETTINGS = {"archive.segment_age_max_ms": 300, "limits.writing.rlm_process_interval_ms": 100}
METRICS = (
    "fetchproxy_client_pauses_total",
    "fetchproxy_paced_answers_total",
    "fetchproxy_paced_seconds_total",
)
# As of librdkafka's queue, and its pause.
QUEUE_RECORDS, PAUSE_S = 100_000, 1.0
# On a busy machine a reader may be slower than any pace.
CONTROLS_MAX = 5


@dataclass(frozen=True)
class Pacing:
    proxy: ProxyProcess
    ends: dict[int, int]

    def counted(self) -> list[float]:
        return [self.proxy.metric(name) for name in METRICS]


@pytest.fixture(scope="module")
def pacing(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pacing]:
    folder = tmp_path_factory.mktemp("pacing")
    store = (folder / "store").as_uri()
    (folder / "store").mkdir()
    kafka_server.create_topic(TOPIC, PARTITIONS)
    written = fill(kafka_server.bootstrap, TOPIC, PARTITIONS, RECORDS, Shape(20, "none"))
    ends = dict(enumerate(written))
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive=TOPIC, settings=SETTINGS
    ) as proxy:
        wait_for("the archive", lambda: archived_ends(store, TOPIC) == ends)
        trim(
            kafka_server.bootstrap, TOPIC, {partition: end // 2 for partition, end in ends.items()}
        )
        yield Pacing(proxy, ends)


# --- each says how many records it has read ---
def read_java(pacing: Pacing) -> int:
    result = run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", pacing.proxy.bootstrap, "--topic", TOPIC),
        *("--messages", str(RECORDS), "--timeout", "60000", "--hide-header"),
        timeout_s=PROGRAM_S,
    )
    return int(result.stdout.strip().splitlines()[-1].split(",")[4])


def read_kafka_python(pacing: Pacing) -> int:
    """Its application stops as often and as long as librdkafka would."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=pacing.proxy.bootstrap, auto_offset_reset="none", check_crcs=False
    )
    tps = [kafka.TopicPartition(TOPIC, partition) for partition in pacing.ends]
    consumer.assign(tps)
    for tp in tps:
        consumer.seek(tp, 0)
    count = behind_pause = 0
    deadline = time.monotonic() + PROGRAM_S
    try:
        while count < RECORDS and time.monotonic() < deadline:
            polled = consumer.poll(timeout_ms=500, max_records=50_000)
            count += sum(map(len, polled.values()))
            if count - behind_pause >= 2 * QUEUE_RECORDS:
                behind_pause = count
                time.sleep(PAUSE_S)
    finally:
        consumer.close()
    return count


def printed(command: list[str]) -> int:
    """Of lines that begin with partition and offset, each counted once; values are any bytes."""
    result = subprocess.run(command, capture_output=True, check=False, timeout=PROGRAM_S)
    assert result.returncode == 0, result.stderr[-3000:]
    return len(set(re.findall(rb"^\d \d+ ", result.stdout, re.MULTILINE)))


def read_franz_go(pacing: Pacing) -> int:
    return printed(franz_reader_command(pacing.proxy.bootstrap, TOPIC, pacing.ends))


def read_by_ends(program: Callable[[], object]) -> Callable[[Pacing], int]:
    def read(pacing: Pacing) -> int:
        ends = ",".join(f"{partition}:{end}" for partition, end in pacing.ends.items())
        where = ("-bootstrap", pacing.proxy.bootstrap, "-topic", TOPIC, "-ends", ends)
        return printed([str(program()), "-do", "read", *where])

    return read


def read_kafkajs(pacing: Pacing) -> int:
    more = ("pacing-kafkajs", str(RECORDS), "earliest", "0")
    return printed(kafkajs_command("follow", pacing.proxy.bootstrap, TOPIC, *more))


@dataclass(frozen=True)
class Other:
    """A client that does not stand on librdkafka."""

    read: Callable[[Pacing], int]
    part: str = "clients"
    find: Callable[[], object] = bool


OTHERS = [
    pytest.param(Other(read_java), id="Java"),
    pytest.param(Other(read_kafka_python), id="kafka-python", marks=pytest.mark.slow),
    pytest.param(Other(read_franz_go, find=franz_reader), id="franz-go"),
    pytest.param(
        Other(read_by_ends(sarama_client), find=sarama_client), id="sarama", marks=pytest.mark.slow
    ),
    pytest.param(
        Other(read_by_ends(kafka_go_client), find=kafka_go_client),
        id="kafka-go",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Other(read_kafkajs, "kafkajs", kafkajs_command), id="kafkajs", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("client", OTHERS)
def test_no_answer_to_another_client_is_held_back(
    client: Other, find_part: FindPart, pacing: Pacing
) -> None:
    find_part(client.part, client.find)
    before = pacing.counted()
    assert client.read(pacing) == RECORDS
    assert pacing.counted() == before


def test_answers_to_librdkafka_are_held_back(pacing: Pacing) -> None:
    """The control: the same records, through the same proxy."""
    before = pacing.counted()
    for _ in range(CONTROLS_MAX):
        assert read_confluent(pacing) == RECORDS
        if all(now > then for now, then in zip(pacing.counted(), before, strict=True)):
            return
    raise AssertionError("no answer was paced")


def read_confluent(pacing: Pacing) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": pacing.proxy.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, p, 0) for p in pacing.ends])
    count = 0
    try:
        while count < RECORDS and (messages := consumer.consume(10_000, timeout=60.0)):
            assert all(message.error() is None for message in messages)
            count += len(messages)
    finally:
        consumer.close()
    return count
