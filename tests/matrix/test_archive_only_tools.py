"""Frameworks out of an archive-only node, with the settings of docs/deploy/tools.md and without."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from archive_only_process import ArchiveOnlyProcess
from confluent_kafka import Consumer, TopicPartition
from matrix_frameworks import TopicLines, sunk, until_there
from matrix_programs import parsed, run
from proxy_process import ProxyProcess, wait_for
from test_fail_over import archive
from topic_data import TopicData, produce, trim

from lab.frameworks import ConnectWorker, frameworks_jars, streams_command
from lab.kafka import KafkaServer, run_tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FindPart = Callable[[str, Callable[[], object]], object]
COUNT, TOPIC = 500, "archived-for-tools"
REASON = "this node serves an archive, which cannot be written to"


@pytest.fixture(scope="module")
def node(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArchiveOnlyProcess]:
    folder = tmp_path_factory.mktemp("tools")
    kafka_server.create_topic(TOPIC, 1)
    produce(kafka_server.bootstrap, TopicData(TOPIC), COUNT)
    store = (folder / "store").as_uri()
    archive(kafka_server, store, TOPIC)
    with ArchiveOnlyProcess(store, folder) as process:
        yield process
        process.assert_sound()


def mirror_of(node: ArchiveOnlyProcess, target: str, alias: str) -> dict[str, str]:
    return {
        "name": "mirror",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": alias,
        "target.cluster.alias": "target",
        "source.cluster.bootstrap.servers": node.bootstrap,
        "target.cluster.bootstrap.servers": target,
        "topics": TOPIC,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    }


def test_mirror_maker_with_the_recipe_copies_everything(
    node: ArchiveOnlyProcess, kafka_server: KafkaServer, find_part: FindPart, tmp_path: Path
) -> None:
    find_part("frameworks", frameworks_jars)
    recipe = {
        "offset-syncs.topic.location": "target",
        "sync.topic.configs.enabled": "false",
    }
    connector = mirror_of(node, kafka_server.bootstrap, "withrecipe") | recipe
    with (
        ConnectWorker(tmp_path, kafka_server.bootstrap, connector) as worker,
        TopicLines(kafka_server.bootstrap, f"withrecipe.{TOPIC}") as copied,
    ):
        until_there(worker, COUNT, 0.0, copied.all)
        log = (tmp_path / "connect.log").read_text()
    assert "UnsupportedVersionException" not in log
    assert REASON not in log


def test_without_the_recipe_its_log_gives_the_reason(
    node: ArchiveOnlyProcess, kafka_server: KafkaServer, find_part: FindPart, tmp_path: Path
) -> None:
    find_part("frameworks", frameworks_jars)
    connector = mirror_of(node, kafka_server.bootstrap, "bydefault")
    log = tmp_path / "connect.log"
    with ConnectWorker(tmp_path, kafka_server.bootstrap, connector):
        wait_for("the reason", lambda: REASON in log.read_text(), 120.0)
    assert "PolicyViolationException" in log.read_text()


def test_a_sink_reads_the_archive_and_the_worker_lives_on_a_cluster(
    node: ArchiveOnlyProcess, kafka_server: KafkaServer, find_part: FindPart, tmp_path: Path
) -> None:
    find_part("frameworks", frameworks_jars)
    file = tmp_path / "sunk.txt"
    connector = {
        "name": "sink",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": TOPIC,
        "file": str(file),
        "consumer.override.bootstrap.servers": node.bootstrap,
        "consumer.override.auto.offset.reset": "earliest",
        "transforms": "hoist,where",
        "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.hoist.field": "value",
        "transforms.where.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.where.partition.field": "partition",
        "transforms.where.offset.field": "offset",
    }
    with ConnectWorker(tmp_path, kafka_server.bootstrap, connector) as worker:
        until_there(worker, COUNT, 0.0, lambda: sunk(file))
    assert [offset for _, offset, _, _ in sunk(file)] == list(range(COUNT))


def test_streams_reads_an_archive_and_writes_nothing_to_it(
    node: ArchiveOnlyProcess, find_part: FindPart
) -> None:
    """An application without a state or a sink runs; one that needs topics is told the reason."""
    find_part("frameworks", frameworks_jars)
    options = ("app-that-reads", str(COUNT), "read_committed", "earliest", "0")
    records = parsed(run(streams_command("read", node.bootstrap, TOPIC, *options)))
    assert [offset for _, offset, _, _ in records] == list(range(COUNT))
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "app-that-reads"})
    with closing(consumer):
        (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    assert committed.offset == COUNT
    counting = ("app-that-counts", str(COUNT), "at_least_once", TOPIC)
    refused = subprocess.run(
        streams_command("count", node.bootstrap, TOPIC, *counting),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert refused.returncode == 1
    assert REASON in refused.stdout + refused.stderr


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_streams_counts_both_tiers_through_the_proxy(
    kafka_server: KafkaServer, find_part: FindPart, tmp_path: Path, guarantee: str
) -> None:
    """Its repartition topic and its changelog are made, written, read and purged through it."""
    find_part("frameworks", frameworks_jars)
    source = kafka_server.create_topic(f"to-be-counted-{guarantee}", 1)
    sink = kafka_server.create_topic(f"counts-{guarantee}", 1)
    data = TopicData(source)
    produce(kafka_server.bootstrap, data, COUNT)
    store = (tmp_path / "store").as_uri()
    archive(kafka_server, store, source)
    trim(kafka_server.bootstrap, source, {0: COUNT - 100})
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
        counting = (f"app-{guarantee}", str(COUNT), guarantee, sink)
        run(streams_command("count", proxy.bootstrap, source, *counting))
        assert not proxy.logged("session_crashed")
    expected = Counter(key[-1:].decode() for _, key, _ in data.written[0])
    with TopicLines(kafka_server.bootstrap, sink) as lines:
        wait_for("the counts", lambda: len(lines.all()) >= COUNT)
        counts = [value.split() for *_, value in lines.all()]
    assert {byte: int(count) for byte, count in counts} == expected


TOOLS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "log dirs": ("LogDirsCommand", ("--describe",), '"logDir":"archive"'),
    "create": (
        "TopicCommand",
        ("--create", "--topic", "new", "--partitions", "1", "--replication-factor", "1"),
        REASON,
    ),
    "transactions": ("TransactionsCommand", ("list",), "TransactionalId"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tools_get_an_answer(node: ArchiveOnlyProcess, tool: str) -> None:
    name, arguments, says = TOOLS[tool]
    result = run_tool(
        f"org.apache.kafka.tools.{name}",
        *("--bootstrap-server", node.bootstrap),
        *arguments,
        check=False,
    )
    assert says in result.stdout + result.stderr
