"""One process after the other takes the ports, and clients notice nothing: each reads and writes
every record once, in order, and shows no error.
"""

from __future__ import annotations

import subprocess
import threading
import urllib.error
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from confluent_kafka import KafkaError, Producer
from held_reader import HeldReader
from held_reader import collected_here as collected_here
from proxy_process import ProxyProcess, wait_for
from test_other_clients import Line, as_lines, crc32, parsed
from topic_data import TopicData, produce, value_of

from lab.go_client import franz_reader, franz_reader_command
from lab.kafka import KafkaServer, tool_command
from lab.process import free_ports

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_here"),
]

FindPart = Callable[[str, Callable[[], Path]], Path]
PARTITIONS = 2
ARCHIVED = 600  # records of each partition, most of them in the archive alone
LIVE, LAST = 500, 100  # records of each partition that are written during and after the restarts
END = ARCHIVED + LIVE
READ_S = 1_800.0


class Writer:
    """Produces `LIVE` records a partition through the proxy, the last ones when it is told to.

    If it is not idempotent, a record whose response is lost is written twice.
    """

    def __init__(
        self, bootstrap: str, data: TopicData, interval_s: float, idempotent: bool = False
    ) -> None:
        self._interval_s = interval_s
        self.failures: list[object] = []
        self.errors: list[KafkaError] = []
        self._data = data
        self._finish, self._give_up = threading.Event(), threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "enable.idempotence": idempotent,
                "max.in.flight": 1,  # so that retries keep the order
                "error_cb": self.errors.append,
            }
        )
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_up.set()
        self._finish.set()
        self._thread.join()

    def finish(self) -> None:
        self._finish.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert not self.failures, self.failures[:3]
        for written in self._data.written.values():
            written.sort()

    def _run(self) -> None:
        for number in range(ARCHIVED, END):
            if number == END - LAST:
                self._finish.wait()
            if self._give_up.is_set():
                return
            for partition in range(PARTITIONS):
                self._send(partition, number)
            self._producer.poll(0 if self._finish.is_set() else self._interval_s)

    def _send(self, partition: int, number: int) -> None:
        key, value = b"k%d" % number, value_of(partition, number, 300)

        def delivered(error: object, message: Any) -> None:
            if error is not None:
                self.failures.append(error)
            else:
                self._data.written[partition].append((message.offset(), key, value))

        self._producer.produce(self._data.topic, value, key, partition, on_delivery=delivered)


class Restarts:
    """Processes that have the same ports, one after the other."""

    def __init__(self, kafka: KafkaServer, store: str, folder: Path, archive: str) -> None:
        self._port = free_ports(1 + 2)  # the lab's broker has node id 1
        self._start = lambda: ProxyProcess(
            kafka.bootstrap,
            store,
            folder,
            archive=archive,
            settings={
                **SETTINGS,
                "gateway.share_ports": True,
                "archive.group_id": f"{archive}-archivers",
            },
            port=self._port,
        )
        self._folder = folder
        self.now = self._started()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _started(self) -> ProxyProcess:
        process = self._start()
        process.start()
        wait_for("ready", lambda: is_ready(process))
        return process

    def again(self) -> None:
        """As docs/operate/upgrade.md says."""
        before, self.now = self.now, self._started()
        before.stop()
        (drained,) = before.logged("drained")
        assert drained["connections_cut"] == 0
        assert not before.logged("session_crashed") + before.logged("part_failed")

    def killed(self) -> None:
        before, self.now = self.now, self._started()
        before.kill()


def is_ready(process: ProxyProcess) -> bool:
    try:
        process.get("/readyz")
    except (urllib.error.HTTPError, urllib.error.URLError, ConnectionError):
        return False
    return True


class Program:
    """A client that reads each partition to its end, and prints what it reads."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._output = folder / f"{name}.out"
        with open(self._output, "wb") as out, open(folder / f"{name}.err", "wb") as err:
            self._process = subprocess.Popen(command, stdout=out, stderr=err)
        self._complaints = folder / f"{name}.err"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def lines(self) -> list[str]:
        status = self._process.wait(READ_S)
        complaints = self._complaints.read_text()
        assert status == 0, complaints[-3000:]
        assert " ERROR " not in complaints, complaints[-3000:]
        return self._output.read_text().splitlines()


def java_command(folder: Path, bootstrap: str, topic: str) -> list[str]:
    """Reads partition 0. Not as a member of a group, which may read again what it has not committed
    yet.
    """
    return tool_command(
        folder,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "0"),
        *("--max-messages", str(END)),
        *("--property", "print.offset=true", "--property", "print.partition=true"),
        *("--property", "print.key=true", "--property", "key.separator= "),
    )


def parsed_java(lines: list[str]) -> list[Line]:
    return parsed([line.replace("Partition:", "").replace("Offset:", "") for line in lines])


def test_a_few_restarts(kafka_server: KafkaServer, tmp_path: Path, find_part: FindPart) -> None:
    under_load(kafka_server, tmp_path, find_part, ["again"] * 3, interval_s=0.02)


@pytest.mark.slow
def test_a_hundred_restarts(kafka_server: KafkaServer, tmp_path: Path, find_part: FindPart) -> None:
    under_load(kafka_server, tmp_path, find_part, ["again"] * 100, interval_s=0.8)


@pytest.mark.slow
def test_thirty_kills(kafka_server: KafkaServer, tmp_path: Path, find_part: FindPart) -> None:
    """No client loses a record, and an idempotent producer writes none twice."""
    under_load(kafka_server, tmp_path, find_part, ["killed"] * 30, interval_s=0.2)


def under_load(
    kafka: KafkaServer, folder: Path, find_part: FindPart, ends: list[str], interval_s: float
) -> None:
    """The processes end as `ends` says, while the clients read and write."""
    find_part("clients", franz_reader)
    kills = "killed" in ends
    topic, to = f"rolling-{kills}-{len(ends)}", dict.fromkeys(range(PARTITIONS), END)
    store, data = new_store(folder), new_topic(kafka, topic, PARTITIONS)
    produce(kafka.bootstrap, data, ARCHIVED, partition_count=PARTITIONS)
    errors: list[KafkaError] = []
    with ExitStack() as stack:
        processes = Restarts(kafka, store, folder, topic)
        stack.callback(lambda: processes.now.stop())
        at = processes.bootstrap
        archive_and_trim(kafka.bootstrap, store, data)
        writer = stack.enter_context(Writer(at, data, interval_s, idempotent=kills))
        readers_held = [
            stack.enter_context(HeldReader("kafka-python", at, topic, to)),
            stack.enter_context(
                HeldReader("confluent-kafka", at, topic, to, error_cb=errors.append)
            ),
        ]
        commands = {
            "franz": franz_reader_command(at, topic, to, "read_uncommitted", READ_S),
            "java": java_command(folder, at, topic),
        }
        programs = {
            name: stack.enter_context(Program(command, folder, name))
            for name, command in commands.items()
        }
        for end in ends:
            getattr(processes, end)()
        writer.finish()
        lines_by_client = {name: program.lines() for name, program in programs.items()}
        for reader in readers_held:
            assert reader.records() == data.written
    assert all(len(records) == END for records in data.written.values())
    assert parsed(lines_by_client["franz"]) == as_lines(data.written, crc32)
    assert parsed_java(lines_by_client["java"]) == as_lines({0: data.written[0]})
    if not kills:
        # librdkafka tells its application so much of each lost connection to its only broker. kcat
        # ends then, so it is not among the clients here.
        codes = {error.code() for error in [*errors, *writer.errors]}
        assert codes <= {KafkaError._ALL_BROKERS_DOWN}
