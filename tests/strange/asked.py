"""What a node says of its partitions, by raw requests: bytes, offsets, epochs. Not a test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fetchproxy_protocol.record_batch import walk
from oracle_wire import WireConnection
from planted_kafka import PlantedPartition

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_FETCH_VERSION, _LIST_VERSION, _EPOCH_VERSION = 13, 9, 4
_PARTITION_BYTES = 300_000
SETTLES_S = 60.0  # only a hang gets there
_NOT_AVAILABLE = {3, 5, 6, 9, 56, 72, 100}  # asked again: the node is still starting

Key = tuple[str, int]


@dataclass
class PartitionRead:
    """Of one partition from an offset on: its whole batches, or the error that ended it."""

    records: bytes = b""
    aborted: set[tuple[int, int]] = field(default_factory=set)
    error: int = 0
    next_offset: int = 0
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1


def key_of(planted: PlantedPartition) -> Key:
    return planted.topic, planted.partition


def read(
    wire: WireConnection,
    planted: Sequence[PlantedPartition],
    isolation: int,
    starts: Mapping[Key, int],
    ends: Mapping[Key, int],
) -> dict[Key, PartitionRead]:
    """Reads each partition from its start until `ends` (exclusive) or an error."""
    reads = {key_of(p): PartitionRead(next_offset=starts[key_of(p)]) for p in planted}
    by_id = {p.topic_id: p.topic for p in planted}
    ids = {p.topic: p.topic_id for p in planted}
    deadline = time.monotonic() + SETTLES_S
    keys_left = set(reads)
    while keys_left:
        response = wire.ask("Fetch", _FETCH_VERSION, _fetch(reads, keys_left, ids, isolation))
        assert response.error_code == 0, response
        moved = False
        for topic in response.responses:
            for part in topic.partitions:
                moved |= _take(reads[by_id[topic.topic_id], part.partition_index], part)
        keys_left = {k for k in keys_left if not reads[k].error and reads[k].next_offset < ends[k]}
        if moved:
            deadline = time.monotonic() + SETTLES_S
        assert time.monotonic() < deadline, {k: reads[k] for k in keys_left}
    return reads


def read_topic(wire: WireConnection, topic: str, partition: int) -> bytes:
    """All batches of another topic's partition, whatever is in them."""
    key = (topic, partition)
    end = list_offsets(wire, [(key, -1)])[key, -1][1]
    topic_read = PartitionRead()
    topic_id = wire.ask("Metadata", 12, {"topics": [{"name": topic, "topic_id": UUID(int=0)}]})
    ids = {topic: topic_id.topics[0].topic_id}
    while topic_read.next_offset < end:
        fields = _fetch({key: topic_read}, [key], ids, READ_UNCOMMITTED)
        response = wire.ask("Fetch", _FETCH_VERSION, fields)
        assert response.error_code == 0, response
        for topic_response in response.responses:
            _take(topic_read, topic_response.partitions[0])
        assert not topic_read.error, topic_read
    return topic_read.records


def _fetch(
    reads: Mapping[Key, PartitionRead], keys: Iterable[Key], ids: Mapping[str, Any], isolation: int
) -> dict[str, Any]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for name, number in sorted(keys):
        fields = {"partition": number, "fetch_offset": reads[name, number].next_offset}
        fields |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
        grouped.setdefault(name, []).append(fields | {"partition_max_bytes": _PARTITION_BYTES})
    return {
        "replica_id": -1,
        "max_wait_ms": 200,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {"topic": name, "topic_id": ids[name], "partitions": parts}
            for name, parts in grouped.items()
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _take(partition_read: PartitionRead, part: Any) -> bool:
    if part.error_code in _NOT_AVAILABLE:
        return False
    partition_read.error = part.error_code
    partition_read.high_watermark, partition_read.last_stable = (
        part.high_watermark,
        part.last_stable_offset,
    )
    partition_read.log_start = part.log_start_offset
    partition_read.aborted |= {
        (t.producer_id, t.first_offset) for t in part.aborted_transactions or ()
    }
    records = bytes(part.records or b"")
    moved = False
    for header in walk(records):
        if header.last_offset < partition_read.next_offset:
            continue
        partition_read.records += records[header.position : header.end]
        partition_read.next_offset = header.last_offset + 1
        moved = True
    return moved


def list_offsets(
    wire: WireConnection, questions: Iterable[tuple[Key, int]], isolation: int = READ_UNCOMMITTED
) -> dict[tuple[Key, int], tuple[int, int, int, int]]:
    """(error, offset, timestamp, epoch) by partition and time."""
    offsets_by_question: dict[tuple[Key, int], tuple[int, int, int, int]] = {}
    by_time: dict[int, list[Key]] = {}
    for key, timestamp in questions:
        by_time.setdefault(timestamp, []).append(key)
    for timestamp, keys in by_time.items():
        topics: dict[str, list[dict[str, Any]]] = {}
        for name, number in keys:
            part = {"partition_index": number, "timestamp": timestamp, "current_leader_epoch": -1}
            topics.setdefault(name, []).append(part)
        entries = [{"name": name, "partitions": parts} for name, parts in topics.items()]
        response = wire.ask(
            "ListOffsets",
            _LIST_VERSION,
            {"replica_id": -1, "isolation_level": isolation, "topics": entries},
        )
        for topic in response.topics:
            for p in topic.partitions:
                offsets_by_question[(topic.name, p.partition_index), timestamp] = (
                    *(p.error_code, p.offset, p.timestamp),
                    p.leader_epoch,
                )
    return offsets_by_question


def epoch_ends(
    wire: WireConnection, questions: Iterable[tuple[Key, int]]
) -> dict[tuple[Key, int], tuple[int, int, int]]:
    """(error, epoch, end offset) by partition and asked epoch."""
    ends_by_question: dict[tuple[Key, int], tuple[int, int, int]] = {}
    by_key: dict[Key, list[int]] = {}
    for key, epoch in questions:
        by_key.setdefault(key, []).append(epoch)
    rounds = max(map(len, by_key.values()), default=0)
    for number in range(rounds):
        topics: dict[str, list[dict[str, Any]]] = {}
        at = {key: epochs[number] for key, epochs in by_key.items() if number < len(epochs)}
        for (name, partition), epoch in at.items():
            part = {"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}
            topics.setdefault(name, []).append(part)
        entries = [{"topic": name, "partitions": parts} for name, parts in topics.items()]
        response = wire.ask(
            "OffsetForLeaderEpoch", _EPOCH_VERSION, {"replica_id": -1, "topics": entries}
        )
        for topic in response.topics:
            for p in topic.partitions:
                key = (topic.topic, p.partition)
                ends_by_question[key, at[key]] = (p.error_code, p.leader_epoch, p.end_offset)
    return ends_by_question


def delete_records(wire: WireConnection, offsets: Mapping[Key, int]) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, number), offset in offsets.items():
        topics.setdefault(name, []).append({"partition_index": number, "offset": offset})
    entries = [{"name": name, "partitions": parts} for name, parts in topics.items()]
    response = wire.ask("DeleteRecords", 2, {"topics": entries, "timeout_ms": 30_000})
    for topic in response.topics:
        for p in topic.partitions:
            assert p.error_code == 0, (topic.name, p)
            assert p.low_watermark == offsets[topic.name, p.partition_index], (topic.name, p)
