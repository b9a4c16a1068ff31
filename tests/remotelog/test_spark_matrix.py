"""Each PySpark, each way to read, each kind of topic, with the driver killed by SIGKILL before each
write of checkpoint, tier boundary file and output: rows are those that Spark's Kafka source has
given.

What is written and when the driver dies: lab/clients/killing_file_system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from fetchproxy_protocol.record_batch import walk
from killed_drivers import KilledDrivers
from made_batches import Record, made_batch
from spark_program import SparkProgram
from spark_versions import VERSIONS, check_set_up
from test_spark_kafka import archive_now, forget_all, live, remote, write_transactions
from topic_data import archived_ends, trim
from written_archive import WrittenArchive

from lab.kafka import KafkaServer
from lab.parts import PYSPARKS

pytestmark = pytest.mark.spark

Rows = list[list[Any]]
Place = tuple[int, int]
FindPart = Callable[[str, Callable[[], None]], None]
KINDS = ("plain", "transactional", "corrupt", "gap", "empty")
MODES = ("batch", "stream", "availableNow", "archive_then_live")
ADMITS = "4.2"  # from which version on a stream takes limits
PARTITIONS = 2
RECORDS = 300  # of each piece that is produced


@dataclass(frozen=True)
class Case:
    """`archived`: the rows of the archive; `every`: and those that only the brokers have."""

    options: Mapping[str, str]
    archived: Rows
    every: Rows


class Topics:
    """Of each kind one, made when it is asked for first."""

    def __init__(self, kafka: KafkaServer, spark: SparkProgram, folder: Path) -> None:
        self._kafka = kafka
        self._spark = spark
        self._folder = folder
        self._made: dict[str, Case] = {}
        self._forgotten: Rows = []  # by the brokers, before all of a topic was read

    def case(self, kind: str) -> Case:
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> Case:
        name, store = f"matrix-{kind}", self._folder / kind
        self._kafka.create_topic(name, PARTITIONS + (kind == "empty"))
        level = "read_committed" if kind == "transactional" else "read_uncommitted"
        write = write_transactions if kind == "transactional" else write_plain
        write(self._kafka, name, "zstd")
        archive_now(self._kafka, store, name)
        lost: set[Place] = set()
        if kind == "gap":
            lost = self._with_gap(name, store)
        elif kind == "corrupt":
            lost = with_damage(store)
        archived = archived_ends(store.as_uri(), name)
        write(self._kafka, name, "lz4")  # for the brokers alone
        brokers = live(self._kafka.bootstrap, name, level)
        every = [*self._forgotten, *self._spark.rows("kafka", brokers)]
        self._forgotten = []
        forget_all(self._kafka, store, name)
        options = remote(store, name, level)
        options |= {"kafka.bootstrap.servers": self._kafka.bootstrap}
        options |= {"corruptBatches": "skip"} if kind == "corrupt" else {}
        options |= {"failOnDataLoss": "false"} if kind == "gap" else {}
        there = sorted((row for row in every if (row[3], row[4]) not in lost), key=in_order)
        return Case(options, [row for row in there if row[4] < archived.get(row[3], 0)], there)

    def _with_gap(self, name: str, store: Path) -> set[Place]:
        """A third of a piece was deleted before it was archived."""
        first = archived_ends(store.as_uri(), name)
        write_plain(self._kafka, name, "none")
        ends = {partition: end + RECORDS // 6 for partition, end in first.items()}
        before = self._spark.rows("kafka", live(self._kafka.bootstrap, name))
        self._forgotten = [row for row in before if row[4] < ends[row[3]]]
        trim(self._kafka.bootstrap, name, ends)
        archive_now(self._kafka, store, name)
        return {(p, offset) for p, start in first.items() for offset in range(start, ends[p])}


def write_plain(kafka: KafkaServer, topic: str, codec: str) -> None:
    """With null and empty keys and values, and headers, in batches of fifty."""
    settings = {"compression.type": codec, "batch.num.messages": 50, "linger.ms": 20}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
    for n in range(RECORDS):
        key = None if n % 7 == 0 else b"" if n % 11 == 0 else b"key %d" % n
        value = None if n % 13 == 0 else b"\xff value %d " % n * (n % 9)
        headers = [("h", b"x" * (n % 5)), ("null", None)] if n % 3 == 0 else None
        producer.produce(topic, value, key, n % PARTITIONS, headers=headers)
    assert producer.flush(60) == 0


def with_damage(store: Path) -> set[Place]:
    """A byte of one batch is another one now; the offsets of that batch, in partition 0."""
    log = sorted(store.glob("*/0/*.log"))[0]
    raw = bytearray(log.read_bytes())
    at, damaged = 0, None
    for header in walk(bytes(raw)):
        if damaged is None and at:
            raw[at + 70] ^= 1
            damaged = header
        at += header.size
    assert damaged is not None, "the segment has one batch alone"
    log.write_bytes(raw)
    return {(0, offset) for offset in range(damaged.base_offset, damaged.last_offset + 1)}


def in_order(row: list[Any]) -> Any:
    return row[2:5]


@pytest.fixture(scope="module")
def topics(
    spark: SparkProgram, kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Topics:
    return Topics(kafka_server, spark, tmp_path_factory.mktemp("matrix"))


def options_for(mode: str, version: str, all_options: Mapping[str, str]) -> dict[str, str]:
    brokers = mode == "archive_then_live"
    options = {
        name: value for name, value in all_options.items() if brokers or "kafka." not in name
    }
    if mode != "batch":
        options["startingOffsets"] = "earliest"
    if mode == "availableNow" and version >= ADMITS:
        options["maxOffsetsPerTrigger"] = str(RECORDS // 2)
    return options


def check_steps(mode: str, steps: list[str]) -> None:
    """The driver was killed before each of these, at least."""
    expected_steps = ["create out/part-N-U"]
    if mode == "batch":
        expected_steps = ["delete out", "rename out/part-N-U", "create out/_SUCCESS"]
    else:
        logs = ("checkpoint/offsets/0", "out/_spark_metadata/0", "checkpoint/commits/0")
        expected_steps += ["rename checkpoint/metadata", *(f"rename {name}" for name in logs)]
    if mode == "archive_then_live":
        expected_steps += ["create crossing.json.U.part", "rename crossing.json"]
    for step in expected_steps:
        assert any(each.startswith(step) for each in steps), (step, steps)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", list(PYSPARKS))
def test_rows_are_those_of_sparks_kafka_source(
    topics: Topics, part: str, mode: str, tmp_path: Path, find_part: FindPart
) -> None:
    find_part(part, lambda: check_set_up(part))
    version, live = PYSPARKS[part], mode == "archive_then_live"
    cases = {kind: topics.case(kind) for kind in KINDS}
    drivers = KilledDrivers(version, tmp_path / "query", kafka=live)
    drivers.run(mode, {k: options_for(mode, version, case.options) for k, case in cases.items()})
    for kind, case in cases.items():
        check_steps(mode, drivers.steps(kind))
        assert drivers.rows(kind) == (case.every if live else case.archived), kind


# The first PySpark and the last one without brokers, each killed once, at its last step.
SHORT = {
    "spark-oldest": ("stream", "rename checkpoint/commits/0"),
    "spark-newest": ("batch", "create out/_SUCCESS"),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", [each for each in VERSIONS if each.values[0] in SHORT])
def test_a_driver_that_is_killed_at_its_last_step(
    part: str, tmp_path: Path, find_part: FindPart
) -> None:
    find_part(part, lambda: check_set_up(part))
    archive = WrittenArchive(tmp_path / "archive")
    for base in (0, 20):  # and a gap
        archive.add([made_batch(base, [Record(b"k", b"v%d" % n, n) for n in range(10)])])
    mode, step = SHORT[part]
    drivers = KilledDrivers(PYSPARKS[part], tmp_path / "query", kafka=False)
    chosen = {"store": archive.url, "topics": "orders", "includeHeaders": "true"}
    options = options_for(mode, PYSPARKS[part], {**chosen, "failOnDataLoss": "false"})
    drivers.run(mode, {"orders": options}, only=step)
    assert drivers.steps("orders") == [step]
    offsets = [*range(10), *range(20, 30)]
    expected_rows = [(0, o, (b"v%d" % (o % 10)).hex(), o % 10 * 1000) for o in offsets]
    assert [(row[3], row[4], row[1], row[5]) for row in drivers.rows("orders")] == expected_rows
