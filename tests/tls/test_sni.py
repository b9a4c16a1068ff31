"""One port for three brokers: clients are told names, and go by them to the right broker."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from host_names import names_here, with_names
from proxy_process import ProxyProcess, wait_for
from raw_tls import RawTls, responses, tls_connection
from test_bad_input import request
from tls_parts import READERS, confluent_tls, java_tls
from topic_data import TopicData, produce

from lab.kafka import tool_command
from lab.mock_cluster import MockCluster

PARTITIONS = 4  # the mock cluster's choice, and so are their leaders
COUNT = 200
BOOTSTRAP = "kafka.test"
NODES = [f"broker-{node}.kafka.test" for node in (1, 2, 3)]
NAMES = [BOOTSTRAP, *NODES]
NOT_LEADER_OR_FOLLOWER = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster(broker_count=3) as three:
        yield three


@pytest.fixture(scope="module")
def through(
    cluster: MockCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("sni")
    (folder / "store").mkdir()
    settings: dict[str, object] = {
        "gateway.tls_certificate_file": authority.issue("sni", ("*.kafka.test", BOOTSTRAP)),
        "gateway.sni_bootstrap_host": BOOTSTRAP,
        "gateway.sni_node_pattern": "broker-{node_id}.kafka.test",
    }
    with ProxyProcess(
        cluster.bootstrap, (folder / "store").as_uri(), folder, settings=settings
    ) as proxy:
        yield proxy
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


@pytest.fixture(scope="module")
def leaders(cluster: MockCluster) -> tuple[str, list[int]]:
    """A topic, and who leads its partitions: partitions on one broker alone would show nothing."""
    return cluster.topic_on_several_brokers("sni")


@pytest.fixture(scope="module")
def data(cluster: MockCluster, leaders: tuple[str, list[int]]) -> TopicData:
    written = TopicData(leaders[0])
    produce(cluster.bootstrap, written, COUNT, partition_count=PARTITIONS)
    return written


@pytest.fixture(scope="module")
def leader(leaders: tuple[str, list[int]], data: TopicData) -> int:
    """Of partition 0."""
    return leaders[1][0]


def test_a_name_stands_for_a_broker_also_after_a_restart(
    through: ProxyProcess, authority: Authority, data: TopicData, leader: int
) -> None:
    """A client that knew the names dials a broker first, before any Metadata has passed."""
    through.stop()
    through.start()
    for node, name in enumerate(NODES, 1):
        with RawTls(through, authority, name) as connection:
            error, _, offset = connection.list_offset(5, data.topic, -1)
        expected = (0, COUNT) if node == leader else (NOT_LEADER_OR_FOLLOWER, -1)
        assert (error, offset) == expected, f"node {node}, leader {leader}"


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_python_clients_read_all_partitions(
    through: ProxyProcess, authority: Authority, data: TopicData, client: str
) -> None:
    read_all, settings = READERS[client]
    ends = dict.fromkeys(range(PARTITIONS), COUNT)
    with names_here(NAMES):
        bootstrap = f"{BOOTSTRAP}:{through.port}"
        assert read_all(bootstrap, data.topic, ends, **settings(authority, None)) == data.written


# Runs in a process of its own: prints brokers, and what it has read of each partition.
CONFLUENT = """
import json, sys
sys.path.insert(0, {serving!r})
from client_readers import read_confluent
from confluent_kafka import Consumer
settings, bootstrap = {settings!r}, {bootstrap!r}
asking = Consumer({{"bootstrap.servers": bootstrap, "group.id": "sni", **settings}})
brokers = asking.list_topics(timeout=20).brokers
asking.close()
read = read_confluent(bootstrap, {topic!r}, {ends!r}, **settings)
print(json.dumps([
    {{node: f"{{b.host}}:{{b.port}}" for node, b in brokers.items()}},
    {{p: [[o, k.decode(), v.decode()] for o, k, v in records] for p, records in read.items()}},
]))
"""


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


FindPart = Callable[[str, Callable[[], object]], list[str]]


def as_text(records: list[tuple[int, bytes, bytes]]) -> list[list[object]]:
    return [[offset, key.decode(), value.decode()] for offset, key, value in records]


def test_librdkafka_reads_all_partitions(
    through: ProxyProcess, authority: Authority, data: TopicData, tmp_path: Path,
    find_part: FindPart,
) -> None:  # fmt: skip
    script = CONFLUENT.format(
        serving=str(Path(__file__).parents[1] / "serving"),
        settings=confluent_tls(authority, None),
        bootstrap=f"{BOOTSTRAP}:{through.port}",
        topic=data.topic,
        ends=dict.fromkeys(range(PARTITIONS), COUNT),
    )
    command = find_part(
        "names", lambda: with_names(tmp_path, NAMES, [sys.executable, "-c", script])
    )
    brokers, records_by_partition = json.loads(run(command))
    port = through.port
    assert brokers == {str(n): f"{name}:{port}" for n, name in enumerate(NODES, 1)}
    assert records_by_partition == {str(p): as_text(records) for p, records in data.written.items()}


@pytest.mark.slow
@pytest.mark.kafka
def test_the_java_consumer_reads_from_a_broker_that_it_was_told(
    through: ProxyProcess, authority: Authority, data: TopicData, tmp_path: Path,
    find_part: FindPart,
) -> None:  # fmt: skip
    """Of one partition: the mock cluster has no groups for this consumer."""
    tool = tool_command(
        tmp_path,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", f"{BOOTSTRAP}:{through.port}", "--topic", data.topic),
        *("--consumer.config", str(java_tls(authority, None, tmp_path))),
        *("--partition", "0", "--offset", "0"),
        *("--max-messages", str(COUNT), "--timeout-ms", "60000"),
    )
    lines = run(find_part("names", lambda: with_names(tmp_path, NAMES, tool))).splitlines()
    assert lines == [value.decode() for _, _, value in data.written[0]]


def test_a_client_without_a_server_name_gets_the_bootstrap(
    through: ProxyProcess, authority: Authority
) -> None:
    with tls_connection(through, authority, server_name=None) as peer:
        assert responses(peer)


@pytest.mark.parametrize("name", ["broker-1.kafka.test.evil", "localhost", "broker-x.kafka.test"])
def test_an_unknown_name_is_refused(through: ProxyProcess, authority: Authority, name: str) -> None:
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        tls_connection(through, authority, server_name=name)
    wait_for("log", lambda: through.logged("tls_handshake_failed"))
    failures = through.logged("tls_handshake_failed")
    assert {entry["reason"] for entry in failures} == {"server_name"}
    assert failures[0]["server_name"], "the name is in the log"


def test_a_name_of_no_broker_is_closed_with_a_reason(
    through: ProxyProcess, authority: Authority
) -> None:
    with tls_connection(through, authority, server_name="broker-9.kafka.test") as peer:
        peer.sendall(request(18, 0))
        assert peer.recv(1) == b""
    wait_for("log", lambda: through.logged("broker_unreachable"))
    assert "node 9 is not in the cluster" in through.logged("broker_unreachable")[-1]["error"]


def test_nobody_listens_on_a_second_port(through: ProxyProcess) -> None:
    inodes = {
        os.readlink(f"/proc/{through.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{through.pid}/fd")
    }
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            listening.add(int(fields[1].rpartition(":")[2], 16))
    assert listening == {through.port, through.console_port}
