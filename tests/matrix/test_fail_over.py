"""Clients go from the proxy to an archive-only node, and back, at the same host and ports.

A client that knows nodes' ports alone finds the node behind `gateway.node_map`. The groups' commits
come along by `fetchproxy groups`.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from archive_only_process import ArchiveOnlyProcess
from fetchproxy_command import archive_once, fetchproxy
from group_commit import commit
from matrix_client import Line
from matrix_native_clients import SARAMA
from matrix_programs import FRANZ_GO, JAVA, KAFKAJS, parsed
from matrix_python_clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from lab.kafka import KafkaServer, run_tool

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves the sockets of its refused connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

COUNT, BEFORE = 1_000, 400

Assign = Callable[[str, str, dict[int, int], str], list[Line]]


@pytest.fixture(autouse=True)
def _sockets_are_collected() -> Iterator[None]:
    """Here, and not in a later test, for which they would be an error."""
    yield
    gc.collect()


def old_java(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    """A client from before KIP-899: it never bootstraps again."""
    result = run_tool(
        "kafka.tools.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "0"),
        *("--max-messages", str(ends[0]), "--timeout-ms", "90000"),
        *("--property", "print.offset=true", "--property", "print.partition=true"),
        *("--property", "print.key=true", "--property", "key.separator= "),
        version="3.3.2",
    )
    return parsed(result.stdout.replace("Partition:", "").replace("Offset:", ""))


def named(test: str, client: str) -> str:
    return f"{test}-{client.lower().replace(' ', '-')}"


def groups(what: str, bootstrap: str, file: Path, code: int = 0) -> str:
    result = fetchproxy("groups", what, "--bootstrap", bootstrap, str(file))
    assert result.returncode == code, result.stderr
    return result.stdout + result.stderr


def archive(kafka: KafkaServer, store: str, topic: str) -> None:
    assert archive_once(kafka.bootstrap, store, topic).returncode == 0


class Node(ArchiveOnlyProcess):
    """At the ports of a proxy that has gone."""

    def __init__(self, store: str, folder: Path, gone: ProxyProcess, node_port: int) -> None:
        super().__init__(store, folder, {"gateway.node_map": f"1={node_port}"})
        command = self._process.command
        command[command.index(self.bootstrap)] = gone.bootstrap
        self.port, self.bootstrap = gone.port, gone.bootstrap


def node_port(proxy: ProxyProcess) -> int:
    wait_for("the node's listener", lambda: proxy.logged("node_listener_opened"))
    [opened] = proxy.logged("node_listener_opened")
    return int(opened["port"])


# Without sarama and kafka-go, whose programs end at the first error that they are told.
ASSIGNED: dict[str, Assign | None] = {
    "librdkafka": CONFLUENT.assign,
    "kafka-python": KAFKA_PYTHON.assign,
    "aiokafka": AIOKAFKA.assign,
    "franz-go": FRANZ_GO.assign,
    "Java 4.1": JAVA.assign,
    "Java 3.3": old_java,
}
QUICK = "kafka-python"


@pytest.mark.parametrize(
    "client", [pytest.param(n, marks=[] if n == QUICK else pytest.mark.slow) for n in ASSIGNED]
)
def test_a_client_goes_on_from_the_archive(
    kafka_server: KafkaServer, tmp_path: Path, client: str
) -> None:
    assign = ASSIGNED[client]
    assert assign is not None
    topic = kafka_server.create_topic(named("fail-over", client), 1)
    data = TopicData(topic)
    produce(kafka_server.bootstrap, data, BEFORE)
    store = (tmp_path / "store").as_uri()
    archive(kafka_server, store, topic)
    with ThreadPoolExecutor(1) as reader:
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
            port = node_port(proxy)
            relayed = proxy.metric("fetchproxy_relayed_bytes_total", "client")
            read_once = partial(assign, proxy.bootstrap, topic, {0: COUNT}, "read_uncommitted")
            reading = reader.submit(read_once)
            wait_for(
                "the first part",
                lambda: (
                    proxy.metric("fetchproxy_relayed_bytes_total", "client") - relayed > 120_000
                    or reading.done()
                ),
            )
        produce(kafka_server.bootstrap, data, COUNT - BEFORE)
        archive(kafka_server, store, topic)
        with Node(store, tmp_path, proxy, port):
            lines = reading.result()
    assert [(p, offset) for p, offset, _, _ in lines] == [(0, n) for n in range(COUNT)]


GROUPS = {
    "librdkafka": CONFLUENT.group,
    "kafka-python": KAFKA_PYTHON.group,
    "aiokafka": AIOKAFKA.group,
    "franz-go": FRANZ_GO.group,
    "sarama": SARAMA.group,
    "kafkajs": KAFKAJS.group,
    "Java 4.1": JAVA.group,
}


@pytest.mark.parametrize(
    "client", [pytest.param(n, marks=[] if n == QUICK else pytest.mark.slow) for n in GROUPS]
)
def test_a_groups_commits_go_there_and_back(
    kafka_server: KafkaServer, tmp_path: Path, client: str
) -> None:
    read_group = GROUPS[client]
    assert read_group is not None
    topic = kafka_server.create_topic(named("commits", client), 1)
    group = f"of-{topic}"
    produce(kafka_server.bootstrap, TopicData(topic), COUNT)
    commit(kafka_server.bootstrap, group, topic, 0)
    store, file = (tmp_path / "store").as_uri(), tmp_path / "offsets.json"
    archive(kafka_server, store, topic)
    lines = read_group(kafka_server.bootstrap, topic, group, BEFORE, "read_uncommitted")
    output = groups("export", kafka_server.bootstrap, file)
    assert f"written to {file}" in output
    with ArchiveOnlyProcess(store, tmp_path) as node:
        lines += read_group(node.bootstrap, topic, group, 300, "read_uncommitted")
        node.assert_sound()
    groups("import", kafka_server.bootstrap, file)
    rest = COUNT - BEFORE - 300
    lines += read_group(kafka_server.bootstrap, topic, group, rest, "read_uncommitted")
    assert [offset for _, offset, _, _ in lines] == list(range(COUNT))


def test_what_cannot_be_committed_is_named_and_the_rest_is(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    topic, gone = (
        kafka_server.create_topic("commits", 1),
        kafka_server.create_topic("commits-gone", 1),
    )
    bootstrap, file = kafka_server.bootstrap, tmp_path / "offsets.json"
    produce(bootstrap, TopicData(topic), 10)
    for group in ("idle", "busy"):
        commit(bootstrap, f"{group}-{topic}", topic, 4)
    commit(bootstrap, f"other-{topic}", gone, 0)
    busy = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"busy-{topic}", "enable.auto.commit": False}
    )
    try:
        busy.subscribe([topic])
        assert busy.poll(60) is not None  # it is a member now
        groups("export", bootstrap, file)
        content = json.loads(file.read_text())
        own_rows = [row for row in content["offsets"] if row[0].endswith(f"-{topic}")]
        assert [row[:3] + row[4:5] for row in own_rows] == [
            [f"busy-{topic}", topic, 0, 4],
            [f"idle-{topic}", topic, 0, 4],
            [f"other-{topic}", gone, 0, 0],
        ]
        for row in own_rows:
            row[4] = 6
        own_rows[2][3] = "00000000-0000-0000-0000-000000000001"  # another topic of this name
        file.write_text(json.dumps({**content, "offsets": own_rows}))
        output = groups("import", bootstrap, file, code=1)
    finally:
        busy.close()
    assert "offsets of 1 group committed" in output
    assert f"group busy-{topic}:" in output
    assert "stop them first" in output
    assert f"{gone}: the cluster does not have the topic with this id" in output
    groups("export", bootstrap, file)
    after = {row[0]: row[4] for row in json.loads(file.read_text())["offsets"]}
    assert after[f"idle-{topic}"] == 6
    assert after[f"busy-{topic}"] == 4
