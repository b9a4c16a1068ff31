"""Seven clients of six kinds that read both tiers and write, while the processes that serve them
end. Each must read or write every record once, in order, and show its user no error.

kcat is not among them: it ends by itself when it loses the connection to its only broker.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from archived_topics import archive_and_trim, new_store, new_topic
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from held_reader import HeldReader
from proxy_process import wait_for
from test_other_clients import Line, as_lines, crc32, parsed
from topic_data import TopicData, produce, value_of

from lab.go_client import franz_reader, franz_reader_command, kafka_go_client
from lab.kafka import KafkaServer, tool_command

FindPart = Callable[[str, Callable[[], Path]], Path]
PARTITIONS = 2
ARCHIVED = 600  # records of each partition, most of them in the archive alone
LIVE, LAST = 500, 100  # records of each partition that are written during and after the restarts
END = ARCHIVED + LIVE
READ_S = 1_800.0
CONNECTIONS_THAT_AGREE = 16


class Served(Protocol):
    """Processes that serve the clients at `bootstrap`. Their methods end some of them."""

    @property
    def bootstrap(self) -> str: ...


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
    """Reads partition 0."""
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


def commands_of(folder: Path, at: str, topic: str, to: dict[int, int]) -> dict[str, list[str]]:
    """By client. Each program reads from offset 0, and is no member of a group: a member may read
    again what it has not committed.
    """
    ends = ",".join(f"{partition}:{end}" for partition, end in to.items())
    kafka_go = ["-do", "read", "-bootstrap", at, "-topic", topic, "-ends", ends]
    kafka_go += ["-timeout", f"{READ_S}s"]
    aiokafka = [sys.executable, str(Path(__file__).with_name("aiokafka_reader.py"))]
    return {
        "franz": franz_reader_command(at, topic, to, "read_uncommitted", READ_S),
        "java": java_command(folder, at, topic),
        "kafka-go": [str(kafka_go_client()), *kafka_go],
        "aiokafka": [*aiokafka, at, topic, ends],
    }


def wait_until_all_know_the_archive(bootstrap: str, topic: str) -> None:
    """A proxy that does not know a topic's first archive yet shows where the brokers' log begins,
    and kafka-go would begin there. Behind a balancer, each connection may reach another proxy.
    """
    in_a_row = 0

    def all_know() -> bool:
        nonlocal in_a_row
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks at log starts"})
        try:
            places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            starts = [consumer.get_watermark_offsets(place, timeout=60)[0] for place in places]
        finally:
            consumer.close()
        in_a_row = in_a_row + 1 if starts == [0] * PARTITIONS else 0
        return in_a_row >= CONNECTIONS_THAT_AGREE

    wait_for("all proxies to know the archive", all_know, timeout_s=300)


@contextmanager
def under_load(
    kafka: KafkaServer,
    folder: Path,
    find_part: FindPart,
    topic: str,
    open_served: Callable[[str], AbstractContextManager[Served]],
    interval_s: float,
    kills: bool,
) -> Iterator[Any]:
    """Gives what `open_served(store)` gives: its processes end in the body, while the clients read
    and write. At the end, looks at what each has read. `kills`: connections are lost in the middle
    of a response.
    """
    find_part("clients", franz_reader)
    find_part("clients", kafka_go_client)
    to = dict.fromkeys(range(PARTITIONS), END)
    store, data = new_store(folder), new_topic(kafka, topic, PARTITIONS)
    produce(kafka.bootstrap, data, ARCHIVED, partition_count=PARTITIONS)
    errors: list[KafkaError] = []
    with ExitStack() as stack:
        served = stack.enter_context(open_served(store))
        at = served.bootstrap
        archive_and_trim(kafka.bootstrap, store, data)
        wait_until_all_know_the_archive(at, topic)
        writer = stack.enter_context(Writer(at, data, interval_s, idempotent=kills))
        held_readers = [
            stack.enter_context(HeldReader("kafka-python", at, topic, to)),
            stack.enter_context(
                HeldReader("confluent-kafka", at, topic, to, error_cb=errors.append)
            ),
        ]
        programs = {
            name: stack.enter_context(Program(command, folder, name))
            for name, command in commands_of(folder, at, topic, to).items()
        }
        yield served
        writer.finish()
        read = {name: program.lines() for name, program in programs.items()}
        for reader in held_readers:
            assert reader.records() == data.written
    assert all(len(records) == END for records in data.written.values())
    assert parsed(read["franz"]) == as_lines(data.written, crc32)
    assert parsed(read["kafka-go"]) == as_lines(data.written)
    assert parsed(read["aiokafka"]) == as_lines(data.written)
    assert parsed_java(read["java"]) == as_lines({0: data.written[0]})
    if not kills:
        assert_quiet([*errors, *writer.errors])


def assert_quiet(errors: Sequence[KafkaError]) -> None:
    """librdkafka tells its application so much of each lost connection to its only broker."""
    assert {error.code() for error in errors} <= {KafkaError._ALL_BROKERS_DOWN}
