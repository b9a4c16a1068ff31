"""Topics without a local log: in Kafka's own tiered storage, or in fetchproxy's archive.

One broker has both, so readers of either have the same neighbours. A topic is either tiered by
Kafka or archived by fetchproxy, never both.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
from botocore.config import Config
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.contestants import FETCHPROXY_COMMAND
from benchmarks.filling import Shape, fill
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_VERSION, local_tiered_storage_jars
from lab.s3 import S3Server

MIB = 1024 * 1024
SEGMENT_BYTES = 64 * MIB
_PROJECT = Path(__file__).parents[1]
_DEADLINE_S = 300.0

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
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "0",
}
# Retention is by bytes. It deletes local data that is in the remote tier, and never anything else.
_TIERED_TOPIC = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
}


@dataclass(frozen=True, slots=True)
class ReplayedTopic:
    """`ends`: (partition, end) pairs. The remote tier has the offsets from 0 to end (exclusive)."""

    name: str
    shape: Shape
    ends: tuple[tuple[int, int], ...]

    @property
    def records(self) -> int:
        return sum(end for _, end in self.ends)

    @property
    def value_bytes(self) -> int:
        """Uncompressed."""
        return self.records * self.shape.record_bytes


def tiered_kafka(folder: Path, version: str = KAFKA_VERSION) -> KafkaServer:
    """A broker, not started. `folder` holds its log and remote tier. Raises PartMissing."""
    tier = {"rsm.config.dir": str(folder / "tier")}
    plugin = local_tiered_storage_jars(version)
    return KafkaServer({**_TIERED, **tier}, folder / "kafka", version=version, jars_behind=plugin)


def tiered_topic(
    kafka: KafkaServer, name: str, shape: Shape, partitions: int, size_bytes: int
) -> ReplayedTopic:
    """When this returns, the whole topic is in Kafka's own remote tier. Each partition has one
    record more in its local log. Raises PartFailed."""
    create_tiered(kafka, name, partitions)
    written = fill(kafka.bootstrap, name, partitions, size_bytes // shape.record_bytes, shape)

    def one_more() -> None:
        fill(kafka.bootstrap, name, partitions, partitions, Shape(1024 * 900, "none"))

    move_to_tier(kafka, name, written, one_more)
    return ReplayedTopic(name, shape, tuple(enumerate(written)))


def create_tiered(
    kafka: KafkaServer, name: str, partitions: int, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Creates a topic that Kafka tiers."""
    kafka.create_topic(name, partitions, {**_TIERED_TOPIC, "segment.bytes": str(segment_bytes)})


def move_to_tier(
    kafka: KafkaServer, name: str, written: Sequence[int], one_more: Callable[[], None]
) -> None:
    """When this returns, all that was `written` is in Kafka's own remote tier only.

    `written`: the number of records of each partition. `one_more`: writes a record to each
    partition.

    Raises PartFailed.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    # Kafka copies only inactive segments, so the next record has to begin a new segment.
    _alter(admin, name, {"segment.ms": "1"})
    time.sleep(0.1)
    one_more()
    ends = dict(enumerate(written))
    # The local log begins at the end of the copied records: Kafka deletes only what it has copied.
    _wait(f"{name} is in Kafka's remote tier", lambda: _local_starts(kafka, name) == ends)


def archived_topic(
    kafka: KafkaServer,
    name: str,
    shape: Shape,
    partitions: int,
    size_bytes: int,
    store: str,
    environment: Mapping[str, str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> ReplayedTopic:
    """When this returns, the topic is in fetchproxy's archive at `store`, not in the broker's log.

    Raises PartFailed.
    """
    kafka.create_topic(name, partitions, {"retention.ms": "-1", "segment.bytes": str(4 * MIB)})
    written = fill(kafka.bootstrap, name, partitions, size_bytes // shape.record_bytes, shape)
    move_to_archive(kafka, name, written, store, environment, segment_bytes)
    return ReplayedTopic(name, shape, tuple(enumerate(written)))


def move_to_archive(
    kafka: KafkaServer,
    name: str,
    local_starts: Sequence[int],
    store: str,
    environment: Mapping[str, str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """When this returns, the topic is in fetchproxy's archive, and the broker's log of each
    partition begins at its `local_starts`. Raises PartFailed."""
    command = [
        *FETCHPROXY_COMMAND,
        "archive",
        "--once",
        "--bootstrap",
        kafka.bootstrap,
        "--store",
        store,
    ]
    command += ["--archive", name, "--set", f"archive.segment_bytes_max={segment_bytes}"]
    result = subprocess.run(
        command, env={**os.environ, **(environment or {})}, cwd=_PROJECT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        raise PartFailed(f"{name} could not be archived\n{result.stderr[-2000:]}")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    offsets_to_delete = [
        TopicPartition(name, partition, start) for partition, start in enumerate(local_starts)
    ]
    for future in admin.delete_records(offsets_to_delete).values():
        future.result(timeout=60.0)


def log_objects(folder: Path, topic: str) -> list[tuple[Path, int]]:
    """(file, bytes) of the `.log` objects of `topic` in an archive below `folder`, in order."""
    paths = sorted(folder.glob(f"{topic}-*/*/*.log"))
    return [(path, path.stat().st_size) for path in paths]


class S3Copy:
    """A copy of an archive folder in an S3 server, with the same keys.

    `endpoint_url`: the address to read it from, either the server or a relay in front of it.
    """

    bucket = "replayed"

    def __init__(self, server: S3Server, folder: Path, endpoint_url: str) -> None:
        self._server = server
        self._endpoint_url = endpoint_url
        server.create_bucket(self.bucket)
        with closing(server.client()) as client:
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                key = path.relative_to(folder).as_posix()
                with path.open("rb") as content:
                    client.put_object(Bucket=self.bucket, Key=key, Body=content)

    @property
    def store_url(self) -> str:
        """The URL for `--store`."""
        region = self._server.region
        return (
            f"s3://{self.bucket}/?endpoint_url={quote(self._endpoint_url, safe='')}&region={region}"
        )

    @property
    def environment(self) -> dict[str, str]:
        return self._server.environment

    def presigned(self, *keys: str) -> list[str]:
        """URLs that anyone can read for an hour."""
        with closing(self._client()) as client:
            return [
                client.generate_presigned_url(
                    "get_object", {"Bucket": self.bucket, "Key": key}, ExpiresIn=3600
                )
                for key in keys
            ]

    def _client(self) -> Any:
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self._endpoint_url,
            region_name=self._server.region,
            aws_access_key_id=self._server.access_key,
            aws_secret_access_key=self._server.secret_key,
            config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
        )


def _alter(admin: AdminClient, topic: str, config: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(timeout=60.0)


def _local_starts(kafka: KafkaServer, topic: str) -> dict[int, int]:
    """By partition, the smallest base offset of its local segments."""
    return {
        int(folder.name.rpartition("-")[2]): min(int(each.stem) for each in folder.glob("*.log"))
        for folder in kafka.data_dir.glob(f"{topic}-*")
    }


def _wait(what: str, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not check():
        if time.monotonic() > deadline:
            raise PartFailed(f"not in {_DEADLINE_S} s: {what}")
        time.sleep(0.2)


def presigned_logs(copy: S3Copy, folder: Path, topic: str) -> list[tuple[str, int]]:
    """(URL, bytes) of the `.log` objects of `topic`; `folder`: the archive that was copied."""
    logs = log_objects(folder, topic)
    urls = copy.presigned(*(path.relative_to(folder).as_posix() for path, _ in logs))
    return [(url, size) for url, (_, size) in zip(urls, logs, strict=True)]
