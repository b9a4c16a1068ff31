"""A broker that starts with logs which Produce would refuse: its files and its cluster's metadata
are written by hand. Not a test.

Topics and partitions, with any leader epoch, are records of the metadata log's bootstrap
checkpoint, so one start of the broker is enough. It finds no sign of an orderly shutdown, and
builds each log's indexes, leader epochs and producer states itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID

from legal_logs import CONTROL, Batch, LegalLog, Record, sealed

from fetchproxy.segments.object_keys import uuid_text
from lab.kafka import KafkaServer

# Nothing may be deleted or rolled by a timestamp, of which there are all.
SETTINGS: dict[str, str] = {
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.cleaner.enable": "false",
    # To the controller, the broker that registers is one that has lost its disk.
    "unclean.leader.election.enable": "true",
    "log.message.timestamp.after.max.ms": str(2**63 - 1),
}
_TOPIC_RECORD, _PARTITION_RECORD = 2, 3
_NO_LEADER = -1


@dataclass(frozen=True)
class PlantedPartition:
    """`leader_epoch`: before the broker's start, which raises it."""

    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    log: LegalLog

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.log}"


def planted_kafka(folder: Path, node_id: int, settings: Mapping[str, str]) -> KafkaServer:
    """A broker with this node id, which is not started."""
    node_settings = {
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{{controller_port}}",
    }
    return KafkaServer({**SETTINGS, **node_settings, **settings}, folder)


def plant(kafka: KafkaServer, node_id: int, planted: Iterable[PlantedPartition]) -> None:
    """Formats the broker's folder and puts the logs into it. The broker must not run."""
    kafka.prepare()
    partitions = list(planted)
    properties = dict(
        line.split("=", 1)
        for line in (kafka.data_dir / "meta.properties").read_text().splitlines()
        if "=" in line
    )
    _plant_metadata(kafka.data_dir, node_id, properties["directory.id"], partitions)
    starts = [f"{p.topic} {p.partition} {p.log.log_start}\n" for p in partitions]
    (kafka.data_dir / "log-start-offset-checkpoint").write_text(
        f"0\n{len(starts)}\n{''.join(starts)}"
    )
    for partition in partitions:
        plant_log(kafka.data_dir, partition)


def plant_log(log_dir: Path, planted: PlantedPartition) -> None:
    folder = log_dir / f"{planted.topic}-{planted.partition}"
    folder.mkdir()
    topic_id = uuid_text(planted.topic_id)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    for base_offset, content in planted.log.segments().items():
        (folder / f"{base_offset:020d}.log").write_bytes(content)


def _plant_metadata(
    log_dir: Path, node_id: int, directory_id: str, planted: list[PlantedPartition]
) -> None:
    """Puts the topics' records before the footer, the last batch, of the bootstrap checkpoint."""
    path = log_dir / "bootstrap.checkpoint"
    raw = path.read_bytes()
    ends = []
    at = 0
    while at < len(raw):
        ends.append(at)
        at += 12 + struct.unpack_from(">i", raw, at + 8)[0]
    before, footer = raw[: ends[-1]], raw[ends[-1] :]
    assert footer[22] & CONTROL, "the checkpoint does not end with a control batch"
    topics = {p.topic: p.topic_id for p in planted}
    values = [_topic_record(name, topic_id) for name, topic_id in topics.items()]
    values += [_partition_record(p, node_id, directory_id) for p in planted]
    records = tuple(Record(n, 0, None, value) for n, value in enumerate(values))
    last = struct.unpack_from(">q", footer)[0]
    batch = sealed(Batch(last, len(records) - 1, records, 0, 0))
    moved = struct.pack(">q", last + len(records)) + footer[8:]
    path.write_bytes(before + batch.content + moved)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _framed(kind: int, version: int, body: bytes) -> bytes:
    return _uvarint(1) + _uvarint(kind) + _uvarint(version) + body + b"\x00"  # no tagged fields


def _topic_record(name: str, topic_id: UUID) -> bytes:
    text = name.encode()
    return _framed(_TOPIC_RECORD, 0, _uvarint(len(text) + 1) + text + topic_id.bytes)


def _partition_record(planted: PlantedPartition, node_id: int, directory_id: str) -> bytes:
    import base64

    one = b"\x02" + struct.pack(">i", node_id)  # a compact array of one element
    none = b"\x01"
    directory = base64.urlsafe_b64decode(directory_id + "==")
    return _framed(
        _PARTITION_RECORD,
        1,
        b"".join(
            [
                struct.pack(">i", planted.partition),
                planted.topic_id.bytes,
                *(one, one, none, none),
                struct.pack(">iii", _NO_LEADER, planted.leader_epoch, 0),
                b"\x02",
                directory,
            ]
        ),
    )


def random_topic_id(rng: Random) -> UUID:
    """Never one that begins with a dash, which Kafka does not give either."""
    while True:
        made = UUID(bytes=rng.randbytes(16), version=4)
        if not uuid_text(made).startswith("-"):
            return made
