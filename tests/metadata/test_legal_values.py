"""Impossible values are refused at their source: the metadata topic, the store, or a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from fetchproxy_protocol.primitives import decode_uvarint
from memory_object_store import MemoryObjectStore
from scripted_store import ScriptedStore
from segment_values import TP, segment
from structlog.testing import capture_logs
from topic_backing import TopicBacking

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.archiver_positions import decode_positions
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.topic_based import PROBLEMS_MAX
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import METADATA_UNREADABLE
from fetchproxy.segments.description import (
    decode_partition_deletion,
    decode_segment,
    encode_segment,
)
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.segments.records import (
    MetadataEvent,
    decode_entry,
    decode_message,
    encode_cache_entry,
    encode_message,
)

WHERE = "offset 41"
NAMES = [
    "",
    ".",
    "..",
    "../../../tmp/owned",
    "/tmp/owned",
    "a/b",
    "a\0b",
    "a b",
    "\u00e4",
    "x" * 250,
]


def named(topic: str) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=7), topic, 0)


def deletion(topic: str) -> RemotePartitionDeleteMetadata:
    state = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    return RemotePartitionDeleteMetadata(named(topic), state, 1)


def of_topic(topic: str) -> list[MetadataEvent]:
    copied = segment(1, 0, 9)
    return [
        replace(copied, segment_id=RemoteLogSegmentId(named(topic), UUID(int=1))),
        deletion(topic),
    ]


@pytest.mark.parametrize("topic", NAMES)
def test_no_event_of_a_name_that_no_topic_has(topic: str) -> None:
    for event in of_topic(topic):
        with pytest.raises(CorruptSegment, match=f"{WHERE}: field topic: .* is not a topic name"):
            decode_message(encode_message(event), WHERE)


@pytest.mark.parametrize("topic", NAMES)
def test_no_object_of_a_name_that_no_topic_has(topic: str) -> None:
    document = json.loads(encode_segment(segment(1, 0, 9))) | {"topic": topic}
    with pytest.raises(CorruptSegment, match=r"key: field topic: .* is not a topic name"):
        decode_segment(json.dumps(document).encode(), "key")
    fields = {"version": 1, "topic": topic, "topic_id": uuid_text(UUID(int=1)), "partition": 0}
    with pytest.raises(CorruptSegment, match=r"key: field topic: .* is not a topic name"):
        decode_partition_deletion(json.dumps(fields).encode(), "key")


def test_the_longest_name_is_one() -> None:
    for event in of_topic("x" * 249):
        assert decode_message(encode_message(event), WHERE) == event


LAST = segment(1, OFFSET_MAX, OFFSET_MAX)
LARGEST = replace(LAST, segment_size_bytes=SEGMENT_BYTES_MAX, copied_end_offset=OFFSET_MAX)
BEYOND = {
    "offsets": replace(LAST, end_offset=OFFSET_MAX + 1),
    "copied to": replace(LAST, copied_end_offset=OFFSET_MAX + 1),
    "bytes": replace(LAST, segment_size_bytes=SEGMENT_BYTES_MAX + 1),
    "leader epoch": replace(LAST, segment_leader_epochs=(EpochStart(0, OFFSET_MAX + 1),)),
}


def as_message(segment_metadata: RemoteLogSegmentMetadata) -> object:
    return decode_message(encode_message(segment_metadata), WHERE)


def as_object(segment_metadata: RemoteLogSegmentMetadata) -> object:
    return decode_segment(encode_segment(segment_metadata), WHERE)


def as_entry(segment_metadata: RemoteLogSegmentMetadata) -> object:
    entry = encode_cache_entry(segment_metadata)
    return decode_entry(entry[decode_uvarint(entry, 0)[1] :], TP, WHERE)


def as_cache_file(segment_metadata: RemoteLogSegmentMetadata) -> object:
    """Many entries of a file are read at once."""
    entries = encode_cache_entry(segment(2, 0, 9)) + encode_cache_entry(segment_metadata)
    return list(PartitionTable.load(TP, entries).segments())[-1]


READERS = [as_message, as_object, as_entry, as_cache_file]


@pytest.mark.parametrize("round_trip", READERS)
def test_the_limits_themselves_are_possible(
    round_trip: Callable[[RemoteLogSegmentMetadata], object],
) -> None:
    assert round_trip(LAST) == LAST
    assert round_trip(LARGEST) == LARGEST


@pytest.mark.parametrize("round_trip", READERS)
@pytest.mark.parametrize("field", sorted(BEYOND))
def test_no_value_beyond_the_limits(
    round_trip: Callable[[RemoteLogSegmentMetadata], object], field: str
) -> None:
    if round_trip is as_cache_file and field == "leader epoch":
        return  # its epochs are checked at use; `as_message` has the case
    with pytest.raises(CorruptSegment, match=field):
        round_trip(BEYOND[field])


def test_no_partition_below_zero() -> None:
    raw = encode_message(deletion("orders"))
    at = raw.index(bytes(UUID(int=7).bytes)) + 16
    with pytest.raises(CorruptSegment, match="field partition is -1"):
        decode_message(raw[:at] + b"\xff" * 4 + raw[at + 4 :], WHERE)


def test_a_number_of_thousands_of_digits_is_no_partition() -> None:
    positions = {uuid_text(UUID(int=1)): {"1" * 5000: 0}}
    with pytest.raises(CorruptSegment, match="is not a partition"):
        decode_positions(json.dumps({"version": 1, "positions": positions}).encode(), "key")


@pytest.mark.parametrize("topic", ["../../../owned", "/tmp/owned", "a\0b", "no topic"])
async def test_such_events_make_no_file_and_end_nothing(topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c" / "cache"
    async with ScriptedStore(MemoryObjectStore()) as store:
        backing = TopicBacking(store)
        for starts in (1, 2):  # again after a restart
            unreadable = METADATA_UNREADABLE._value.get()
            async with backing.cached(folder) as manager:
                for number in range(len(backing.log.logs)):
                    await backing.log.append(number, encode_message(deletion(topic)))
                assert list(await manager.list_partitions()) == []
                assert len(manager.problems(TP)) == starts
                assert METADATA_UNREADABLE._value.get() == unreadable + 3 * starts
    names = {path.name for path in tmp_path.rglob("*")}
    assert names <= {"a", "b", "c", "cache", ".lock", "committed-offsets"}


async def test_of_many_such_events_few_are_kept_and_all_counted() -> None:
    """Each takes a log line and memory; a writer of a million such events must fill neither."""
    async with ScriptedStore(MemoryObjectStore()) as store:
        backing = TopicBacking(store)
        for _ in range(PROBLEMS_MAX + 7):
            await backing.log.append(backing.number(TP), b"\xff")
        unreadable = METADATA_UNREADABLE._value.get()
        with capture_logs() as logs:
            async with backing.manager() as manager:
                await manager.list_partitions()
                assert len(manager.problems(TP)) == PROBLEMS_MAX
        assert METADATA_UNREADABLE._value.get() == unreadable + PROBLEMS_MAX + 7
        events = [line["event"] for line in logs]
        assert events.count("metadata_event_unreadable") == PROBLEMS_MAX
        assert events.count("more_metadata_events_unreadable") == 1
