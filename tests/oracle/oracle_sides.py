"""The two parts that are compared: a Kafka that has tiered storage, and one behind fetchproxy.

A `Side` answers raw requests and can be told to move and to forget segments; it knows nothing of
what was written, and compares nothing.
"""

from __future__ import annotations

import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from oracle_wire import WireConnection

from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_VERSION, local_tiered_storage_jars
from lab.process import ServerProcess, free_port, port_responses

HEAP = "384m"
DEADLINE_S = 60.0  # for what takes milliseconds: only a hang may end it
LATEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -4, -5

_TIERED = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "rsm.config.delete.on.close": "false",
    "remote.log.metadata.manager.class.name": (
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "50",
}
_BOTH = {
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "50",
    "log.segment.delete.delay.ms": "0",
    "group.coordinator.rebalance.protocols": "classic",
}
# Segments are rolled by the timestamps of the batches, so both brokers roll at the same offsets;
# the clock of the generated batches runs ahead of the wall clock, hence `after.max`.
SEGMENT_MS = 3_600_000
_TOPIC = {
    "segment.ms": str(SEGMENT_MS),
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


def until(what: str, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < deadline, f"not in {DEADLINE_S} s: {what}"
        time.sleep(0.005)


class Side(ABC):
    """`wire` is a client's connection, `broker` one to the broker itself, to arrange things by."""

    name: str
    wire: WireConnection
    broker: WireConnection

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka = kafka
        self.topic_ids: dict[str, UUID] = {}

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def topic_config(self) -> dict[str, str]: ...

    @abstractmethod
    def archive(self, topic: str, borders: Mapping[int, list[int]]) -> None:
        """Move the segments that end at a partition's borders (exclusive, rising) to the remote
        tier. All that can be moved must be: Kafka switches it by topic."""

    @abstractmethod
    def forget(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Partitions' local logs shall begin at `offsets`; what is below is in the remote tier."""

    def start(self) -> None:
        self.kafka.start()
        self.connect()

    def connect(self) -> None:
        self.disconnect()
        self.wire = WireConnection(self.bootstrap)
        self.broker = WireConnection(self.kafka.bootstrap)

    def disconnect(self) -> None:
        for name in ("wire", "broker"):
            if hasattr(self, name):
                getattr(self, name).close()

    def reconnect(self) -> None:
        """A new client, of which nobody has heard before."""
        self.wire.close()
        self.wire = WireConnection(self.bootstrap)

    def stop(self) -> None:
        self.disconnect()
        self.kafka.stop()

    def restart_broker(self) -> None:
        self.disconnect()
        self.kafka.stop()  # data stay, having a folder of their own
        self.kafka.start()
        until(f"{self.name} serves clients", self._serves)

    def _serves(self) -> bool:
        try:
            self.connect()
            self.wire.ask("ApiVersions", 0, {})
        except OSError:
            return False
        return True

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        configs = [{"name": k, "value": v} for k, v in {**_TOPIC, **self.topic_config()}.items()]
        topic_fields = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        topic_fields |= {"assignments": [], "configs": configs}
        response = self.broker.ask(
            "CreateTopics", 5, {"topics": [topic_fields], "timeout_ms": 30_000}
        )
        assert response.topics[0].error_code == 0, response.topics[0]
        until(f"{topic} on {self.name}", lambda: self.leads(topic, partitions))

    def delete_topic(self, topic: str) -> None:
        self.broker.ask("DeleteTopics", 3, {"topic_names": [topic], "timeout_ms": 30_000})

    def metadata(self, topic: str) -> Any:
        request_fields = {"topics": [{"name": topic, "topic_id": UUID(int=0)}]}
        return self.broker.ask("Metadata", 12, request_fields).topics[0]

    def leads(self, topic: str, partitions: int) -> bool:
        topic_metadata = self.metadata(topic)
        self.topic_ids[topic] = topic_metadata.topic_id
        ready = [p for p in topic_metadata.partitions if p.error_code == 0 and p.leader_id >= 0]
        return (
            topic_metadata.error_code == 0
            and len(ready) == partitions
            and all(
                self.list_offset(topic, LATEST, number) is not None for number in range(partitions)
            )
        )

    def list_offset(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        """Of the broker itself; None where it gives an error."""
        entry = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        request_fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [entry]}]}
        partition_response = (
            self.broker.ask("ListOffsets", 9, request_fields).topics[0].partitions[0]
        )
        return None if partition_response.error_code else partition_response.offset


class TieredKafka(Side):
    name = "kafka"

    def __init__(self, folder: Path, version: str = KAFKA_VERSION) -> None:
        self.store = folder / "tiered"
        settings = {**_BOTH, **_TIERED, "rsm.config.dir": str(self.store)}
        super().__init__(
            KafkaServer(
                settings,
                folder / "kafka-a",
                HEAP,
                version=version,
                jars_behind=local_tiered_storage_jars(version),
            )
        )

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap

    def topic_config(self) -> dict[str, str]:
        return {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}

    def bases(self, topic: str, partition: int) -> list[int]:
        """Base offsets of the segments that the broker has locally; the last one is active."""
        folder = self.kafka.data_dir / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))

    def archive(self, topic: str, borders: Mapping[int, list[int]]) -> None:
        self._alter(topic, {"remote.log.copy.disable": "false"})
        last = {partition: ends[-1] - 1 for partition, ends in borders.items()}
        self._await(topic, LATEST_TIERED, last)
        self._alter(topic, {"remote.log.copy.disable": "true"})

    def _await(self, topic: str, timestamp: int, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            until(
                f"ListOffsets {timestamp} of {topic}-{partition} is {offset}",
                lambda p=partition, o=offset: self.list_offset(topic, timestamp, p) == o,  # type: ignore[misc]
            )

    def forget(self, topic: str, offsets: Mapping[int, int]) -> None:
        self._alter(topic, {"remote.log.copy.disable": "false", "local.retention.bytes": "1"})
        self._await(topic, EARLIEST_LOCAL, offsets)
        self._alter(topic, {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"})

    def _alter(self, topic: str, config: Mapping[str, str]) -> None:
        configs = [
            {"name": name, "config_operation": 0, "value": value} for name, value in config.items()
        ]
        resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
        response = self.broker.ask("IncrementalAlterConfigs", 1, {"resources": [resource]})
        assert response.responses[0].error_code == 0, response.responses[0]


class ProxiedKafka(Side):
    name = "fetchproxy"

    def __init__(self, folder: Path, version: str = KAFKA_VERSION) -> None:
        self.store = (folder / "archive").as_uri()
        (folder / "archive").mkdir(parents=True)
        super().__init__(KafkaServer(_BOTH, folder / "kafka-b", HEAP, version=version))
        self.log = folder / "fetchproxy.log"
        self.port, self._control_port = free_port(), free_port()
        self._proxy: ServerProcess | None = None
        self._control: socket.socket | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.kafka.start()
        script = str(Path(__file__).with_name("steered_proxy.py"))
        command = [sys.executable, script, self.kafka.bootstrap, self.store]
        command += [str(self.port), str(self._control_port)]
        self._proxy = ServerProcess("steered fetchproxy", command, self.log)
        self._proxy.start()
        ports = (self.port, self._control_port)
        self._proxy.wait_until(lambda: all(port_responses(port) for port in ports), DEADLINE_S)
        self._control = socket.create_connection(("127.0.0.1", self._control_port))
        self._control.settimeout(DEADLINE_S)
        self.connect()

    def stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._proxy is not None:
            self._proxy.stop()
        super().stop()

    def topic_config(self) -> dict[str, str]:
        return {}

    def archive(self, topic: str, borders: Mapping[int, list[int]]) -> None:
        for partition, ends in borders.items():
            words = [topic, str(partition), *map(str, ends)]
            response = self._steer(" ".join(words))
            assert response == f"end {ends[-1]}", f"archiver: {response!r} for {words}"

    def _steer(self, line: str) -> str:
        assert self._control is not None
        self._control.sendall(f"{line}\n".encode())
        with self._control.makefile("r") as lines:
            return lines.readline().strip()

    def forget(self, topic: str, offsets: Mapping[int, int]) -> None:
        entries = [{"partition_index": p, "offset": offset} for p, offset in offsets.items()]
        request_fields = {"topics": [{"name": topic, "partitions": entries}], "timeout_ms": 30_000}
        partition_responses = (
            self.broker.ask("DeleteRecords", 2, request_fields).topics[0].partitions
        )
        results = {p.partition_index: (p.error_code, p.low_watermark) for p in partition_responses}
        assert results == {p: (0, offset) for p, offset in offsets.items()}, partition_responses

    def crashes(self) -> list[str]:
        """Lines of the proxy's log that no scenario may cause."""
        marks = ("session_crashed", "part_failed", "Traceback", "library_message")
        return [line for line in self.log.read_text().splitlines() if any(m in line for m in marks)]
