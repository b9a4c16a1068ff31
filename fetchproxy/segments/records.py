"""The events of the metadata topic as bytes, and the entries of its file cache. Pure.

A message of `__remote_log_metadata` has a null key and this value (KIP-405):

    type     unsigned varint, the `apiKey` of the record's schema
    version  unsigned varint, of that schema
    topic-id-partition   topic string (int16 length), topic id uuid, partition int32
    data     the record in Kafka's message format without flexible versions

An entry of a partition's file has a length in front and no topic-id-partition, as the file is of
one partition ("Stored" in the schema's name):

    length   unsigned varint, bytes of type, version and data
    type, version, data

Records (versions in brackets are those that have the field):

    0  RemoteLogSegmentMetadataRecord
         segmentId uuid, startOffset int64, endOffset int64, leaderEpoch int32, maxTimestamp int64,
         eventTimestamp int64, segmentLeaderEpochs [] {leaderEpoch int32, offset int64},
         segmentSizeInBytes int32 [0] int64 [1], remoteLogState int8,
         hasAbortedTxns bool [1], copiedEndOffset int64, -1 for none [1]
    1  DeletePartitionStateRecord
         epoch int32, eventTimestamp int64, remotePartitionState int8
    2  LogStartOffsetRecord
         logStartOffset int64, eventTimestamp int64, afterEpoch int32 [1]
    3  CacheFileCheckpointRecord, in files only: see `flat_files`
         metadataTopicOffset int64, checksum int32
    4  LogHistoryRecord
         afterEpoch int32, keptBelow int64, keptEpoch int32, eventTimestamp int64
    5  RestoreRecord
         restoring bool, eventTimestamp int64

A RestoreRecord stands before and behind what `fetchproxy restore` writes of a partition: in between
the partition is not known. A fetchproxy that is too old for it takes it for an event that cannot be
read, says so, and tells nobody that an offset is not there.

The newest version of each is written, all are read; a log start of the first history is written in
version 0, as programs that know no other can read that, and so is a history with no `earlier`. A
version 0 segment does not say whether transactions were aborted in it: it is read as if there were,
so that a reader asks for its transaction index and fails without one instead of serving aborted
records. `leaderEpoch` is the last of the segment's own epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import TypeVar

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    EpochStart,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.description import NewerMetadataVersion, legal_partition, legal_segment
from protocol.apis import WireError
from protocol.primitives import INT32, Cursor, encode_string, encode_uvarint

T = TypeVar("T")
S = TypeVar("S", bound=IntEnum)


class RecordType(IntEnum):
    """`apiKey` of the schemas."""

    REMOTE_LOG_SEGMENT_METADATA = 0
    DELETE_PARTITION_STATE = 1
    LOG_START_OFFSET = 2
    CACHE_FILE_CHECKPOINT = 3
    LOG_HISTORY = 4
    RESTORE = 5


NEWEST_VERSION = {
    RecordType.REMOTE_LOG_SEGMENT_METADATA: 1,
    RecordType.DELETE_PARTITION_STATE: 0,
    RecordType.LOG_START_OFFSET: 1,
    RecordType.CACHE_FILE_CHECKPOINT: 0,
    RecordType.LOG_HISTORY: 1,
    RecordType.RESTORE: 0,
}
NO_OFFSET = -1
NO_EPOCH = -1

# Parts of a segment's record; `columns` finds fields by their sizes.
SEGMENT_HEAD = Struct(">16sqqiqqi")  # up to the number of leader epochs
SEGMENT_EPOCH = Struct(">iq")
SEGMENT_TAIL = Struct(">qb?q")  # of version 1
_DELETION = Struct(">iqb")
_LOG_START = Struct(">qq")
_LOG_START_AFTER = Struct(">qqi")
_LOG_HISTORY = Struct(">iqiq")
_RESTORE = Struct(">?q")


@dataclass(frozen=True, slots=True)
class LogStartOffset:
    """Below `offset` everything counts as deleted."""

    topic_id_partition: TopicIdPartition
    offset: int
    event_timestamp_ms: int
    after_epoch: int = -1  # of the history that it is of


@dataclass(frozen=True, slots=True)
class LogHistorySaid:
    """A person's word about a log that began again; the last one counts."""

    topic_id_partition: TopicIdPartition
    history: LogHistory
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Restore:
    """`restoring`: from here on the topic does not say all of the partition; else it does again."""

    topic_id_partition: TopicIdPartition
    restoring: bool
    event_timestamp_ms: int


MetadataEvent = (
    RemoteLogSegmentMetadata
    | RemotePartitionDeleteMetadata
    | LogStartOffset
    | LogHistorySaid
    | Restore
)


def encode_message(event: MetadataEvent) -> bytes:
    head, data = _encode(event)
    tip = event.topic_id_partition
    place = encode_string(tip.topic, False) + tip.topic_id.bytes + tip.partition.to_bytes(4, "big")
    return head + place + data


def encode_entry(event: MetadataEvent) -> bytes:
    head, data = _encode(event)
    return framed(head + data)


def record_head(kind: RecordType, version: int | None = None) -> bytes:
    """Type and version; None: the newest."""
    return encode_uvarint(kind) + encode_uvarint(
        NEWEST_VERSION[kind] if version is None else version
    )


def framed(record: bytes) -> bytes:
    """An entry of a file: the record with its length in front."""
    return encode_uvarint(len(record)) + record


def decode_message(raw: bytes, where: str) -> MetadataEvent:
    """Raises CorruptSegment, naming `where` and the field; NewerMetadataVersion."""

    def read(fields: _Fields) -> MetadataEvent:
        kind, version = fields.record_head()
        topic = fields.read("topic", lambda cursor: cursor.string(False))
        topic_id = fields.read("topic id", Cursor.uuid)
        partition = fields.read("partition", Cursor.int32)
        return _decode(fields, kind, version, legal_partition(topic_id, topic, partition))

    return _whole(raw, where, read)


def decode_entry(raw: bytes, tip: TopicIdPartition, where: str) -> MetadataEvent:
    """An entry of `tip`'s file behind its length. Raises as `decode_message`."""

    def read(fields: _Fields) -> MetadataEvent:
        return _decode(fields, *fields.record_head(), tip)

    return _whole(raw, where, read)


def _whole(raw: bytes, where: str, read: Callable[[_Fields], T]) -> T:
    try:
        fields = _Fields(raw)
        event = read(fields)
        if fields.remaining:
            raise CorruptSegment(f"{fields.remaining} bytes behind the last field")
        return event
    except NewerMetadataVersion as error:
        raise NewerMetadataVersion(f"{where}: {error}") from None
    except CorruptSegment as error:
        raise CorruptSegment(f"{where}: {error}") from None


class _Fields:
    """One record front to back; a fault is a CorruptSegment that names the field."""

    def __init__(self, raw: bytes) -> None:
        self._cursor = Cursor(raw)

    @property
    def remaining(self) -> int:
        return self._cursor.remaining

    def read(self, name: str, kind: Callable[[Cursor], T]) -> T:
        try:
            return kind(self._cursor)
        except WireError as error:
            raise CorruptSegment(f"field {name}: {error}") from None

    def integer(self, name: str, kind: Callable[[Cursor], int], low: int) -> int:
        value = self.read(name, kind)
        if value < low:
            raise CorruptSegment(f"field {name} is {value}, below {low}")
        return value

    def state(self, name: str, states: type[S]) -> S:
        value = self.read(name, Cursor.int8)
        try:
            return states(value)
        except ValueError:
            raise CorruptSegment(f"field {name}: {value} is no {states.__name__}") from None

    def boolean(self, name: str) -> bool:
        value = self.read(name, Cursor.int8)
        if value not in (0, 1):
            raise CorruptSegment(f"field {name} is {value}, neither 0 nor 1")
        return bool(value)

    def record_head(self) -> tuple[RecordType, int]:
        kind = self.read("type", Cursor.uvarint)
        version = self.read("version", Cursor.uvarint)
        if kind not in RecordType.__members__.values():
            raise NewerMetadataVersion(f"record type {kind} is not known to this fetchproxy")
        known = RecordType(kind)
        if version > NEWEST_VERSION[known]:
            raise NewerMetadataVersion(
                f"{known.name} version {version} was written by a newer fetchproxy, "
                f"this one reads up to version {NEWEST_VERSION[known]}"
            )
        return known, version


def _encode(event: MetadataEvent) -> tuple[bytes, bytes]:
    """Type and version, and the record."""
    if isinstance(event, RemoteLogSegmentMetadata):
        return record_head(RecordType.REMOTE_LOG_SEGMENT_METADATA), _encode_segment(event)
    at_ms = event.event_timestamp_ms
    if isinstance(event, LogStartOffset):
        kind = RecordType.LOG_START_OFFSET
        if event.after_epoch < 0:
            return record_head(kind, 0), _LOG_START.pack(event.offset, at_ms)
        return record_head(kind), _LOG_START_AFTER.pack(event.offset, at_ms, event.after_epoch)
    if isinstance(event, LogHistorySaid):
        said = event.history
        data = _LOG_HISTORY.pack(said.after_epoch, said.kept_below, said.kept_epoch, at_ms)
        if not said.earlier:
            return record_head(RecordType.LOG_HISTORY, 0), data
        data += INT32.pack(len(said.earlier)) + b"".join(map(INT32.pack, said.earlier))
        return record_head(RecordType.LOG_HISTORY), data
    if isinstance(event, Restore):
        return record_head(RecordType.RESTORE), _RESTORE.pack(event.restoring, at_ms)
    data = _DELETION.pack(event.epoch, at_ms, event.state)
    return record_head(RecordType.DELETE_PARTITION_STATE), data


def _encode_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    epochs = metadata.segment_leader_epochs
    head = SEGMENT_HEAD.pack(
        metadata.segment_id.id.bytes,
        metadata.start_offset,
        metadata.end_offset,
        epochs[-1].epoch if epochs else NO_EPOCH,
        metadata.max_timestamp_ms,
        metadata.event_timestamp_ms,
        len(epochs),
    )
    copied = metadata.copied_end_offset
    tail = SEGMENT_TAIL.pack(
        metadata.segment_size_bytes,
        metadata.state,
        metadata.has_aborted_txns,
        NO_OFFSET if copied is None else copied,
    )
    return b"".join([head, *(SEGMENT_EPOCH.pack(e.epoch, e.start_offset) for e in epochs), tail])


def _decode(
    fields: _Fields, kind: RecordType, version: int, tip: TopicIdPartition
) -> MetadataEvent:
    if kind is RecordType.REMOTE_LOG_SEGMENT_METADATA:
        return _decode_segment(fields, version, tip)
    if kind is RecordType.DELETE_PARTITION_STATE:
        epoch = fields.integer("epoch", Cursor.int32, NO_EPOCH)
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        state = fields.state("remotePartitionState", RemotePartitionDeleteState)
        return RemotePartitionDeleteMetadata(tip, state, at_ms, epoch)
    if kind is RecordType.LOG_START_OFFSET:
        offset = fields.integer("logStartOffset", Cursor.int64, 0)
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        after_epoch = fields.integer("afterEpoch", Cursor.int32, 0) if version else NO_EPOCH
        return LogStartOffset(tip, offset, at_ms, after_epoch)
    if kind is RecordType.LOG_HISTORY:
        history = LogHistory(
            after_epoch=fields.integer("afterEpoch", Cursor.int32, NO_EPOCH),
            kept_below=fields.integer("keptBelow", Cursor.int64, 0),
            kept_epoch=fields.integer("keptEpoch", Cursor.int32, NO_EPOCH),
        )
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        if version:
            history = replace(history, earlier=_decode_earlier(fields))
        return LogHistorySaid(tip, history, at_ms)
    if kind is RecordType.RESTORE:
        restoring = fields.boolean("restoring")
        return Restore(tip, restoring, fields.integer("eventTimestamp", Cursor.int64, -1))
    raise CorruptSegment(f"{kind.name} is no event")


def _decode_segment(
    fields: _Fields, version: int, tip: TopicIdPartition
) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(tip, fields.read("segmentId", Cursor.uuid))
    start_offset = fields.integer("startOffset", Cursor.int64, 0)
    end_offset = fields.integer("endOffset", Cursor.int64, start_offset)
    fields.integer("leaderEpoch", Cursor.int32, NO_EPOCH)
    max_timestamp_ms = fields.integer("maxTimestamp", Cursor.int64, -1)
    event_timestamp_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
    epochs = _decode_epochs(fields)
    size = fields.integer("segmentSizeInBytes", Cursor.int64 if version else Cursor.int32, 0)
    state = fields.state("remoteLogState", RemoteLogSegmentState)
    has_aborted_txns, copied = True, NO_OFFSET
    if version:
        has_aborted_txns = fields.boolean("hasAbortedTxns")
        copied = fields.integer("copiedEndOffset", Cursor.int64, NO_OFFSET)
        if NO_OFFSET < copied < end_offset:
            raise CorruptSegment(f"field copiedEndOffset is {copied}, below endOffset {end_offset}")
    return legal_segment(
        RemoteLogSegmentMetadata(
            segment_id=segment_id,
            start_offset=start_offset,
            end_offset=end_offset,
            max_timestamp_ms=max_timestamp_ms,
            event_timestamp_ms=event_timestamp_ms,
            segment_leader_epochs=epochs,
            segment_size_bytes=size,
            state=state,
            has_aborted_txns=has_aborted_txns,
            copied_end_offset=None if copied == NO_OFFSET else copied,
        )
    )


def _decode_earlier(fields: _Fields) -> tuple[int, ...]:
    count = fields.integer("earlier", Cursor.int32, 0)
    if count * INT32.size > fields.remaining:
        raise CorruptSegment(f"field earlier claims {count} elements")
    return tuple(fields.integer("earlier.epoch", Cursor.int32, 0) for _ in range(count))


def _decode_epochs(fields: _Fields) -> tuple[EpochStart, ...]:
    name = "segmentLeaderEpochs"
    count = fields.integer(name, Cursor.int32, 0)
    if count * SEGMENT_EPOCH.size > fields.remaining:
        raise CorruptSegment(f"field {name} claims {count} elements")
    return tuple(
        EpochStart(
            fields.integer(f"{name}.leaderEpoch", Cursor.int32, NO_EPOCH),
            fields.integer(f"{name}.offset", Cursor.int64, 0),
        )
        for _ in range(count)
    )
