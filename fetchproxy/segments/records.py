"""The events of the metadata topic as bytes, and the entries of its file cache. Pure.

A message of `__remote_log_metadata` has a null key and this value (KIP-405):

    type     unsigned varint, the `apiKey` of the record's schema
    version  unsigned varint, of that schema
    topic-id-partition   topic string (int16 length), topic id uuid, partition int32
    data     the record in Kafka's message format without flexible versions

An entry of a partition's file has a length in front and no topic-id-partition, as the file has only
one partition ("Stored" in the schema's name):

    length   unsigned varint, bytes of type, version and data
    type, version, data

Records (versions in brackets are those that have the field):

    0  RemoteLogSegmentMetadataRecord: see `description.FIELDS`
    1  DeletePartitionStateRecord
         epoch int32, eventTimestamp int64, remotePartitionState int8
    2  LogStartOffsetRecord
         logStartOffset int64, eventTimestamp int64, afterEpoch int32 [1]
    3  CacheFileCheckpointRecord, in files only: see `flat_files`
         metadataTopicOffset int64, checksum int32
    4  LogHistoryRecord
         afterEpoch int32, keptBelow int64, keptEpoch int32, eventTimestamp int64,
         earlier array of int32 [1], number int64 [2], madeTo int64 [2], shownTo int64 [2],
         caughtUpMs int64 [2]
    5  RestoreRecord
         restoring bool, eventTimestamp int64

`fetchproxy restore` writes a RestoreRecord before and after the records of a partition. In between
the partition is not known. A fetchproxy that is too old for it takes it for an unreadable event,
reports that, and tells no client that an offset is missing.

All versions are read, and the newest of each is written, with exceptions so that older programs can
read more. A log start of the first history, and a history without `earlier`, have version 0. A
history without a compacted copy has version 1 at most. A segment's metadata have the least version,
from 1 on, that has all their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import (
    INT32,
    Cursor,
    decode_uvarint,
    encode_string,
    encode_uvarint,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    CompactedCopy,
    EpochStart,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.description import (
    EPOCHS_FIELD,
    FIELDS,
    FieldKind,
    StoredField,
    legal_segment,
)
from fetchproxy.segments.json_fields import NewerMetadataVersion, legal_partition

T = TypeVar("T")
S = TypeVar("S", bound=IntEnum)
NO_OFFSET = -1
_NO_EPOCH = -1
_BEFORE_EPOCHS = FIELDS[: FIELDS.index(EPOCHS_FIELD)]
_BEHIND_EPOCHS = FIELDS[FIELDS.index(EPOCHS_FIELD) + 1 :]
_FORMATS = {FieldKind.SIZE: "q", FieldKind.OPTIONAL_INT64: "q"}
SEGMENT_EPOCH = Struct(">iq")
_TAIL_SINCE = 1  # the first version with such a tail; each later one has further fields at its end
_DELETION = Struct(">iqb")
_LOG_START = Struct(">qq")
_LOG_START_AFTER = Struct(">qqi")
_LOG_HISTORY = Struct(">iqiq")
_COMPACTED_COPY = Struct(">qqqq")
_RESTORE = Struct(">?q")
# The bytes at which an entry begins, its record begins (after the length), and the entry ends.
# Then, for a segment's metadata in a version of `SEGMENT_TAILS`, the number of leader epochs; -1
# for other entries and for entries of a wrong length. Plain numbers, as there may be millions.
Entry = tuple[int, int, int, int]
_FINISHED = int(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_GONE = int(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
# The names of the structs' values. leaderEpoch and the number of epochs belong to no field.
HEAD_FIELDS = (*(f.attribute if f.json else f.record for f in _BEFORE_EPOCHS), "epochs")
TAIL_FIELDS = tuple(f.attribute for f in _BEHIND_EPOCHS)


class RecordType(IntEnum):
    """`apiKey` of the schemas."""

    REMOTE_LOG_SEGMENT_METADATA = 0
    DELETE_PARTITION_STATE = 1
    LOG_START_OFFSET = 2
    CACHE_FILE_CHECKPOINT = 3
    LOG_HISTORY = 4
    RESTORE = 5


NEWEST_VERSION = {
    RecordType.REMOTE_LOG_SEGMENT_METADATA: max(field.since for field in FIELDS),
    RecordType.DELETE_PARTITION_STATE: 0,
    RecordType.LOG_START_OFFSET: 1,
    RecordType.CACHE_FILE_CHECKPOINT: 0,
    RecordType.LOG_HISTORY: 2,
    RecordType.RESTORE: 0,
}


def _struct_of(fields: Iterable[StoredField], more: str = "") -> Struct:
    return Struct(">" + "".join(_FORMATS.get(f.kind, f.kind.value) for f in fields) + more)


# A segment's record in its newest version: up to the number of leader epochs, each epoch, the rest.
SEGMENT_HEAD = _struct_of(_BEFORE_EPOCHS, "i")


# By version: the struct after the epochs, and the values of later versions' fields.
SEGMENT_TAILS: dict[int, tuple[Struct, tuple[Any, ...]]] = {
    version: (
        _struct_of(f for f in _BEHIND_EPOCHS if f.since <= version),
        tuple(f.if_absent for f in _BEHIND_EPOCHS if f.since > version),
    )
    for version in range(_TAIL_SINCE, NEWEST_VERSION[RecordType.REMOTE_LOG_SEGMENT_METADATA] + 1)
}
START_AT = _struct_of(FIELDS[:1]).size  # byte of the start offset, after the id


@dataclass(frozen=True, slots=True)
class LogStartOffset:
    """All offsets below `offset` count as deleted."""

    topic_id_partition: TopicIdPartition
    offset: int
    event_timestamp_ms: int
    after_epoch: int = -1  # of its history


@dataclass(frozen=True, slots=True)
class LogHistoryRecord:
    """A person's statement about a log that began again. The last statement counts."""

    topic_id_partition: TopicIdPartition
    history: LogHistory
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Restore:
    """`restoring` True: from here on the topic lacks a part of the partition; False: no longer."""

    topic_id_partition: TopicIdPartition
    restoring: bool
    event_timestamp_ms: int


MetadataEvent = (
    RemoteLogSegmentMetadata
    | RemotePartitionDeleteMetadata
    | LogStartOffset
    | LogHistoryRecord
    | Restore
)


def encode_message(event: MetadataEvent) -> bytes:
    head, data = _encode(event)
    tp = event.topic_id_partition
    place = encode_string(tp.topic, False) + tp.topic_id.bytes + tp.partition.to_bytes(4, "big")
    return head + place + data


def encode_cache_entry(event: MetadataEvent) -> bytes:
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
    return _decoded(raw, None, where)


def decode_entry(raw: bytes, tp: TopicIdPartition, where: str) -> MetadataEvent:
    """`raw`: an entry of `tp`'s file, without its length. Raises as `decode_message`."""
    return _decoded(raw, tp, where)


def _decoded(raw: bytes, tp: TopicIdPartition | None, where: str) -> MetadataEvent:
    """`tp` None: the record has it after its head."""
    try:
        fields = _Fields(raw)
        kind, version = fields.record_head()
        event = _decode(fields, kind, version, tp or fields.partition())
        if fields.remaining:
            raise CorruptSegment(f"{fields.remaining} bytes behind the last field")
        return event
    except CorruptSegment as error:
        raise type(error)(f"{where}: {error}") from None


def _at_least(name: str, value: int, low: int) -> int:
    if value < low:
        raise CorruptSegment(f"field {name} is {value}, below {low}")
    return value


class _Fields:
    """Reads one record front to back. A fault raises CorruptSegment, naming the field."""

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
        return _at_least(name, self.read(name, kind), low)

    def state(self, name: str, states: type[S]) -> S:
        value = self.read(name, Cursor.int8)
        try:
            return states(value)
        except ValueError:
            raise CorruptSegment(f"field {name}: {value} is not a {states.__name__}") from None

    def boolean(self, name: str) -> bool:
        value = self.read(name, Cursor.int8)
        if value not in (0, 1):
            raise CorruptSegment(f"field {name} is {value}, neither 0 nor 1")
        return bool(value)

    def partition(self) -> TopicIdPartition:
        topic = self.read("topic", lambda cursor: cursor.string(False))
        topic_id = self.read("topic id", Cursor.uuid)
        return legal_partition(topic_id, topic, self.read("partition", Cursor.int32))

    def record_head(self) -> tuple[RecordType, int]:
        kind = self.read("type", Cursor.uvarint)
        version = self.read("version", Cursor.uvarint)
        if kind not in RecordType.__members__.values():
            raise NewerMetadataVersion(f"record type {kind} is not known to this fetchproxy")
        record_type = RecordType(kind)
        if version > NEWEST_VERSION[record_type]:
            raise NewerMetadataVersion(
                f"{record_type.name} version {version} was written by a newer fetchproxy, "
                f"this one reads up to version {NEWEST_VERSION[record_type]}"
            )
        return record_type, version


def _encode(event: MetadataEvent) -> tuple[bytes, bytes]:
    """The encoded type and version, and the encoded record."""
    if isinstance(event, RemoteLogSegmentMetadata):
        version = _least_version(event)
        head = record_head(RecordType.REMOTE_LOG_SEGMENT_METADATA, version)
        return head, _encode_segment(event, version)
    at_ms = event.event_timestamp_ms
    if isinstance(event, LogStartOffset):
        kind = RecordType.LOG_START_OFFSET
        if event.after_epoch < 0:
            return record_head(kind, 0), _LOG_START.pack(event.offset, at_ms)
        return record_head(kind), _LOG_START_AFTER.pack(event.offset, at_ms, event.after_epoch)
    if isinstance(event, LogHistoryRecord):
        history = event.history
        data = _LOG_HISTORY.pack(history.after_epoch, history.kept_below, history.kept_epoch, at_ms)
        copy = history.compacted
        if not history.earlier and copy is None:
            return record_head(RecordType.LOG_HISTORY, 0), data
        data += INT32.pack(len(history.earlier)) + b"".join(map(INT32.pack, history.earlier))
        if copy is None:
            return record_head(RecordType.LOG_HISTORY, 1), data
        data += _COMPACTED_COPY.pack(copy.number, copy.made_to, copy.shown_to, copy.caught_up_ms)
        return record_head(RecordType.LOG_HISTORY), data
    if isinstance(event, Restore):
        return record_head(RecordType.RESTORE), _RESTORE.pack(event.restoring, at_ms)
    data = _DELETION.pack(event.epoch, at_ms, event.state)
    return record_head(RecordType.DELETE_PARTITION_STATE), data


def _least_version(metadata: RemoteLogSegmentMetadata) -> int:
    """The least version that has every field with a value other than its `if_absent`."""
    return max(
        _TAIL_SINCE,
        *(f.since for f in _BEHIND_EPOCHS if getattr(metadata, f.attribute) != f.if_absent),
    )


def _encode_segment(metadata: RemoteLogSegmentMetadata, version: int) -> bytes:
    epochs = metadata.segment_leader_epochs
    head = SEGMENT_HEAD.pack(*[_packed(metadata, f) for f in _BEFORE_EPOCHS], len(epochs))
    fields = [_packed(metadata, f) for f in _BEHIND_EPOCHS if f.since <= version]
    tail = SEGMENT_TAILS[version][0].pack(*fields)
    return b"".join([head, *(SEGMENT_EPOCH.pack(e.epoch, e.start_offset) for e in epochs), tail])


def _packed(metadata: RemoteLogSegmentMetadata, field: StoredField) -> Any:
    value = getattr(metadata, field.attribute)
    if field.kind is FieldKind.UUID:
        return value.id.bytes
    if field.kind is FieldKind.LAST_EPOCH:
        return value[-1].epoch if value else _NO_EPOCH
    return NO_OFFSET if value is None else value


def _decode(fields: _Fields, kind: RecordType, version: int, tp: TopicIdPartition) -> MetadataEvent:
    if kind is RecordType.REMOTE_LOG_SEGMENT_METADATA:
        return _decode_segment(fields, version, tp)
    if kind is RecordType.DELETE_PARTITION_STATE:
        epoch = fields.integer("epoch", Cursor.int32, _NO_EPOCH)
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        state = fields.state("remotePartitionState", RemotePartitionDeleteState)
        return RemotePartitionDeleteMetadata(tp, state, at_ms, epoch)
    if kind is RecordType.LOG_START_OFFSET:
        offset = fields.integer("logStartOffset", Cursor.int64, 0)
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        after_epoch = fields.integer("afterEpoch", Cursor.int32, 0) if version else _NO_EPOCH
        return LogStartOffset(tp, offset, at_ms, after_epoch)
    if kind is RecordType.LOG_HISTORY:
        history = LogHistory(
            after_epoch=fields.integer("afterEpoch", Cursor.int32, _NO_EPOCH),
            kept_below=fields.integer("keptBelow", Cursor.int64, 0),
            kept_epoch=fields.integer("keptEpoch", Cursor.int32, _NO_EPOCH),
        )
        at_ms = fields.integer("eventTimestamp", Cursor.int64, -1)
        if version:
            history = replace(history, earlier=_decode_earlier(fields))
        if version > 1:
            history = replace(history, compacted=_decode_copy(fields))
        return LogHistoryRecord(tp, history, at_ms)
    if kind is RecordType.RESTORE:
        restoring = fields.boolean("restoring")
        return Restore(tp, restoring, fields.integer("eventTimestamp", Cursor.int64, -1))
    raise CorruptSegment(f"{kind.name} is not an event")


def _decode_segment(
    fields: _Fields, version: int, tp: TopicIdPartition
) -> RemoteLogSegmentMetadata:
    values: dict[str, Any] = {}
    for field in FIELDS:
        value = field.if_absent
        if version >= field.since:
            value = _read(fields, field, field.least(values), version, tp)
        values[field.attribute] = value
    return legal_segment(RemoteLogSegmentMetadata(**values))


def _read(fields: _Fields, field: StoredField, low: int, version: int, tp: TopicIdPartition) -> Any:
    name, kind = field.record, field.kind
    if kind is FieldKind.UUID:
        return RemoteLogSegmentId(tp, fields.read(name, Cursor.uuid))
    if kind is FieldKind.EPOCHS:
        return _decode_epochs(fields)
    if kind is FieldKind.STATE:
        return fields.state(name, RemoteLogSegmentState)
    if kind is FieldKind.BOOLEAN:
        return fields.boolean(name)
    short = kind is FieldKind.LAST_EPOCH or (kind is FieldKind.SIZE and version == 0)
    value = fields.read(name, Cursor.int32 if short else Cursor.int64)
    if kind is FieldKind.OPTIONAL_INT64 and value == NO_OFFSET:
        return None
    return _at_least(name, value, low)


def _decode_earlier(fields: _Fields) -> tuple[int, ...]:
    count = fields.integer("earlier", Cursor.int32, 0)
    if count * INT32.size > fields.remaining:
        raise CorruptSegment(f"field earlier claims {count} elements")
    return tuple(fields.integer("earlier.epoch", Cursor.int32, 0) for _ in range(count))


def _decode_copy(fields: _Fields) -> CompactedCopy:
    return CompactedCopy(
        number=fields.integer("number", Cursor.int64, 0),
        made_to=fields.integer("madeTo", Cursor.int64, 0),
        shown_to=fields.integer("shownTo", Cursor.int64, -1),
        caught_up_ms=fields.integer("caughtUpMs", Cursor.int64, -1),
    )


def _decode_epochs(fields: _Fields) -> tuple[EpochStart, ...]:
    name = "segmentLeaderEpochs"
    count = fields.integer(name, Cursor.int32, 0)
    if count * SEGMENT_EPOCH.size > fields.remaining:
        raise CorruptSegment(f"field {name} claims {count} elements")
    return tuple(
        EpochStart(
            fields.integer(f"{name}.leaderEpoch", Cursor.int32, _NO_EPOCH),
            fields.integer(f"{name}.offset", Cursor.int64, 0),
        )
        for _ in range(count)
    )


EPOCHS_AT = 2 + SEGMENT_HEAD.size  # from the record's start to the first leader epoch

_STATE_AT = _struct_of(_BEHIND_EPOCHS[:1]).size
_SEGMENT = record_head(RecordType.REMOTE_LOG_SEGMENT_METADATA)[0]
_FIXED_BYTES = {version: EPOCHS_AT + packed.size for version, (packed, _) in SEGMENT_TAILS.items()}
_FIXED_BYTES_MIN = min(_FIXED_BYTES.values())
_COUNT_AT = EPOCHS_AT - INT32.size


def walk_entries(entries: bytes, where: str) -> Iterator[Entry]:
    """Raises CorruptSegment, naming `where` and the byte, if an entry is not whole."""
    position, size = 0, len(entries)
    while position < size:
        length, body = entries[position], position + 1
        if length >= 0x80:
            try:
                length, body = decode_uvarint(entries, position)
            except WireError as error:
                raise CorruptSegment(f"{where}, entry at byte {position}: {error}") from None
        end, epochs = body + length, -1
        if end > size or not length:
            raise CorruptSegment(f"{where}, entry at byte {position}: not whole")
        if length >= _FIXED_BYTES_MIN and entries[body] == _SEGMENT:
            counted: int = INT32.unpack_from(entries, body + _COUNT_AT)[0]
            fixed_bytes = _FIXED_BYTES.get(entries[body + 1])
            if fixed_bytes and length == fixed_bytes + SEGMENT_EPOCH.size * counted:
                epochs = counted
        yield position, body, end, epochs
        position = end


def compact(entries: bytes, tp: TopicIdPartition, where: str) -> bytes:
    """The entries that still count: the last entry of each segment, by start offset, and likewise
    of the rest.

    A deleted segment leaves no entry, and a deleted partition none at all. Finished segments come
    last. Raises CorruptSegment as `walk_entries`, NewerMetadataVersion.
    """
    last: dict[bytes, tuple[int, int, bytes]] = {}  # state, start offset, entry
    log_starts: dict[int, tuple[int, bytes]] = {}
    history = deletion = restore = b""
    for begin, body, end, epochs in walk_entries(entries, where):
        raw = entries[begin:end]
        if epochs >= 0:
            position = body + 2
            state = entries[body + EPOCHS_AT + SEGMENT_EPOCH.size * epochs + _STATE_AT]
            start = int.from_bytes(entries[position + START_AT : position + START_AT + 8], "big")
            last[entries[position : position + START_AT]] = state, start, raw
            continue
        if entries[body] == RecordType.CACHE_FILE_CHECKPOINT:
            continue
        event = decode_entry(entries[body:end], tp, f"{where}, byte {begin}")
        if isinstance(event, RemoteLogSegmentMetadata):
            last[event.segment_id.id.bytes] = int(event.state), event.start_offset, raw
        elif isinstance(event, LogStartOffset):
            previous = log_starts.get(event.after_epoch, (-1, b""))
            log_starts[event.after_epoch] = max(previous, (event.offset, raw))
        elif isinstance(event, LogHistoryRecord):
            history = raw
        elif isinstance(event, Restore):
            restore = raw if event.restoring else b""
        elif event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            last, log_starts, history, deletion, restore = {}, {}, b"", b"", b""
        else:
            deletion = raw
    lasting = sorted(
        (s == _FINISHED, start, s, raw) for s, start, raw in last.values() if s != _GONE
    )
    starts = [raw for _, raw in log_starts.values()]
    return b"".join([history, *starts, deletion, restore, *(raw for *_, raw in lasting)])
